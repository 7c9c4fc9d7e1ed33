"""A training step of a model without an adaptive solver as one CUDA graph: loss, gradient and update of every phase.

`EagerStep` is the reference. A recorded pass draws from torch's generator, which counts on from replay to replay.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from ltnode.accelerate.execution import FusedLayers
from ltnode.accelerate.flat_sgd import FlatSGD
from ltnode.accelerate.recorder import Recorder
from ltnode.device import autocast
from ltnode.models import Model, execution
from ltnode.ode import Stats
from ltnode.training.batches import Batch
from ltnode.training.config import TrainConfig
from ltnode.training.step import LossPieces, Optimizers
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")
_PIECES = ("loss", "expected_log_likelihood", "kl")


@dataclass(frozen=True)
class _Captured:
    """One graph with its static inputs and outputs."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    y: Tensor
    pieces: Tensor
    stats: Stats | None


class PhasesGraphStep:
    """`TrainingStep` that replays one CUDA graph per batch size; an update whose loss is no number is masked and counted.

    Args:
        model: With ``fixed_operations``, in train mode on CUDA.
        optimizers: Those of the eager step; SGD.
        config: Precision.
        n_data: Number of training examples.
        fused: Take the fused kernels of layers on images.
        side_by_side: Trainings that share the device at the same time.
    """

    def __init__(
        self,
        model: Model,
        optimizers: Optimizers,
        config: TrainConfig,
        n_data: int,
        fused: bool = False,
        side_by_side: int = 1,
    ) -> None:
        self.model, self.config, self.n_data, self.fused = model, config, n_data, fused
        self._optimizers = optimizers
        self._execution = FusedLayers() if fused else execution.current()
        self._updates: dict[str, FlatSGD] = {}
        self._graphs: dict[int, _Captured] = {}
        device = next(model.parameters()).device
        self._recorder = Recorder(device, side_by_side)
        self._failures = torch.zeros((), dtype=torch.long, device=device)
        names = (name if phase == model.phases[0] else f"{phase}.{name}" for phase in model.phases for name in _PIECES)
        self._names = tuple(names)

    def __call__(self, batch: Batch) -> LossPieces:
        """Update the model; see `TrainingStep`.

        Raises:
            CaptureError: The step cannot be captured, and nothing has changed.
        """
        if not self._updates:  # at the first step, when a resumed run has put the optimisers' state back
            self._updates = {phase: FlatSGD(self._optimizers[phase]) for phase in self.model.phases}
        for update in self._updates.values():
            update.refresh_rates()
        captured = self._graphs.get(len(batch.y))
        if captured is None:
            captured = self._graphs[len(batch.y)] = self._capture(batch)
        captured.x.copy_(batch.x, non_blocking=True)
        captured.y.copy_(batch.y, non_blocking=True)
        captured.graph.replay()
        self.model.solve_stats = captured.stats
        return LossPieces(self._names, captured.pieces)

    def counts(self) -> dict[str, int]:
        """Masked updates so far."""
        return {"masked_updates": int(self._failures)}

    def release(self) -> None:
        """Let the captured graphs and their memory go; the counter stays."""
        self._graphs.clear()

    def _capture(self, batch: Batch) -> _Captured:
        x, y = batch.x.clone(), batch.y.clone()
        graph, pieces = self._recorder.record(self.model, lambda: self._pass(x, y))
        kind = "fused kernels" if self.fused else "layers"
        _LOG.info("captured a training step: batch %d, %s, %s", len(y), type(self.model).__name__, kind)
        return _Captured(graph, x, y, pieces, self.model.solve_stats)

    def _pass(self, x: Tensor, y: Tensor) -> Tensor:
        """All phases in turn: what the graph holds; returns the pieces of their losses."""
        model, enabled = self.model, self._recorder.enabled
        pieces: list[Tensor] = []
        for phase, update in self._updates.items():
            with autocast(self.config.precision, x.device), execution.using(self._execution):
                loss = model.loss(x, y, n_data=self.n_data, phase=phase)
            parts = model.loss_parts
            assert parts is not None
            gradients = torch.autograd.grad(loss, update.parameters)
            valid = torch.isfinite(loss) & enabled
            self._failures += ~valid & enabled
            update.update(gradients, valid)
            model.after_step()
            pieces += [loss.detach(), parts.expected_log_likelihood.detach(), parts.kl.detach()]
        return torch.stack([piece.double() for piece in pieces])
