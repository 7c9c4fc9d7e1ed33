"""Predictions in CUDA graphs, for every model and batch that supports them; see `ModelGraphs`."""

from __future__ import annotations

import logging
from threading import Lock
from typing import cast
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ltnode.accelerate.predicting.graphs import ChangedError, ModelGraphs
from ltnode.accelerate.predicting.read_parts import unsupported_reason_model
from ltnode.models.contract import Draw, check_draw
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.prediction import Prediction
from ltnode.ode.replay import traced
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")
_ATTEMPTS = 2


class CapturedPredictions:
    """Graphs of all models that predict on CUDA; copies and pickles of models have none.

    Args:
        kernels: Whether the trajectory may run in fused kernels.
    """

    def __init__(self, kernels: bool = True) -> None:
        self._kernels = kernels
        self._lock = Lock()
        self._graphs: WeakKeyDictionary[nn.Module, ModelGraphs] = WeakKeyDictionary()
        self._reasons: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()

    def predict(self, model: nn.Module, x: Tensor, samples: int, draw: str, seed: int) -> Prediction | None:
        """Return the prediction on the stored grid; None asks the caller to compute it."""
        check_draw(draw)
        reason = self._unsupported_reason(model, x, samples)
        if reason is None:
            assert isinstance(model, LatentTimeODE)
            graphs = self._graphs_of(model)
            with graphs.lock:
                if not graphs.parts.unchanged(model):
                    graphs.forget(model)
                reason = graphs.refused or ("a hook watches a layer" if graphs.parts.watched() else None)
                if reason is None:
                    return self._attempt(graphs, model, x, samples, cast(Draw, draw), seed)
        if x.is_cuda and self._reasons.get(model) != reason:
            self._reasons[model] = reason
            _LOG.debug("predictions run without a CUDA graph: %s", reason)
        return None

    def _attempt(
        self, graphs: ModelGraphs, model: LatentTimeODE, x: Tensor, samples: int, draw: Draw, seed: int
    ) -> Prediction | None:
        for _ in range(_ATTEMPTS):
            try:
                return graphs.predict(model, x, samples, draw, seed)
            except ChangedError:  # a training step in between changed the posterior
                graphs.look_at_values(model)
        return None

    def _unsupported_reason(self, model: nn.Module, x: Tensor, samples: int) -> str | None:
        if not can_capture(x.device):
            return "the device has no CUDA graphs"
        if type(x) is not torch.Tensor or traced(x) or not isinstance(samples, int) or samples < 1:
            return "the input is traced, or no plain tensor"
        if type(model) is LatentTimeODE and model in self._graphs:
            return None if model.grid.device == x.device else "input and model are on different devices"
        reason = unsupported_reason_model(model)
        if reason is None and any(p.device != x.device for p in model.parameters()):
            return "input and model are on different devices"
        return reason

    def _graphs_of(self, model: LatentTimeODE) -> ModelGraphs:
        with self._lock:
            if (graphs := self._graphs.get(model)) is None:
                graphs = self._graphs[model] = ModelGraphs(model, self._kernels)
            return graphs


def can_capture(device: torch.device) -> bool:
    """Whether a device has CUDA graphs."""
    return device.type == "cuda" and torch.version.hip is None
