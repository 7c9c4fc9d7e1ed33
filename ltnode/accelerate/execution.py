"""Faster executions of the models' layers and solves; `ltnode.models.execution` defines the reference that they replace.

In training steps on a CPU, and for inputs that are not images, the layers themselves run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ltnode.accelerate.joint_solve import faster_together, solve_together
from ltnode.accelerate.kernels.conv_trajectory import EPS, FieldTensors, ThreeNorms, field_evaluation
from ltnode.accelerate.kernels.cuda import conv_trajectory as conv_trajectory_cuda
from ltnode.accelerate.kernels.cuda.norm_relu import norm_relu
from ltnode.accelerate.kernels.fused_sequential import run_fused
from ltnode.accelerate.predicting.captured import CapturedPredictions
from ltnode.accelerate.prepared_field import PreparedField, can_be_prepared
from ltnode.accelerate.solve import fused_replayer
from ltnode.models.execution import Execution
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.options import SolverOptions
from ltnode.models.prediction import Prediction
from ltnode.models.shared_grid import same_grid
from ltnode.ode import Stats
from ltnode.ode.replay import Replayer
from ltnode.ode.step import Field
from ltnode.typing import Tensor


class FusedSolves(Execution):
    """Replays training grids in fused kernels, and prepares fields on CPUs, where they support it; the default of the package."""

    def __init__(self, predictions: CapturedPredictions | None = None) -> None:
        self._predictions = predictions or CapturedPredictions()

    def predict(self, model: nn.Module, x: Tensor, samples: int, draw: str, seed: int) -> Prediction | None:
        """See `Execution.predict`; on CUDA in a graph."""
        return self._predictions.predict(model, x, samples, draw, seed)

    def replayer(self, field: nn.Module, h: Tensor, times: Tensor, options: SolverOptions) -> Replayer | None:
        """See `Execution.replayer`."""
        if options.recompute:
            return None
        return fused_replayer(field, h, times, options.method, options.rtol, options.atol)

    def prediction_field(self, field: nn.Module, h: Tensor) -> Field:
        """See `Execution.prediction_field`."""
        return PreparedField(field) if can_be_prepared(field, h) else field

    def solve_networks(
        self, networks: Sequence[nn.Module], x: Tensor, times: Sequence[Tensor]
    ) -> tuple[list[Tensor], Stats] | None:
        """See `Execution.solve_networks`; networks with a common prediction grid are solved together where this is faster."""
        known = [network for network in networks if isinstance(network, LatentTimeODE)]
        if len(known) < 2 or not faster_together(x) or not same_grid(known):
            return None
        return solve_together(known, x, times)


class FusedLayers(FusedSolves):
    """Also runs layers on images in fused kernels; for captured training steps of models without an adaptive solve."""

    def run_layers(self, layers: nn.Module, x: Tensor) -> Tensor:
        """See `Execution.run_layers`."""
        return run_fused(layers, x) if isinstance(layers, nn.Sequential) and _supports(x) else layers(x)

    def relu_of_norm(self, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        """See `Execution.relu_of_norm`."""
        return norm_relu(x, norm) if _supports(x) else super().relu_of_norm(norm, x)

    def normed_convolutions(self, t: Tensor, h: Tensor, convs: tuple[nn.Conv2d, nn.Conv2d], norms: ThreeNorms) -> Tensor | None:
        """See `Execution.normed_convolutions`; one kernel per direction computes all layers."""
        in_bf16 = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
        if not _supports(h) or t.ndim > 0 or not in_bf16:
            return None
        layers = (*convs, *norms)
        if any(p.dtype != torch.float32 for layer in layers for p in layer.parameters()) or any(n.eps != EPS for n in norms):
            return None
        if conv_trajectory_cuda.unsupported_reason(h, norms[0].num_groups, "bf16") is not None:
            return None
        with torch.autocast("cuda", enabled=False):
            return field_evaluation(t, h, FieldTensors.of(convs, norms, h.shape[-1]), "bf16")


def _supports(x: Tensor) -> bool:
    # A compiled or exported program must contain the layers themselves.
    return not torch.compiler.is_compiling() and x.is_cuda and x.ndim == 4
