"""Faster executions of the models' layers and solves; `ltnode.models.execution` defines the reference that they replace."""

from __future__ import annotations

from torch import nn

from ltnode.accelerate import layers as fused_layers
from ltnode.accelerate.solve import fused_replayer
from ltnode.models.execution import Execution
from ltnode.models.options import SolverOptions
from ltnode.ode.replay import Replayer
from ltnode.typing import Tensor


class FusedSolves(Execution):
    """Replays training grids in fused kernels where device and field support it; the default of the package."""

    def replayer(self, field: nn.Module, h: Tensor, times: Tensor, options: SolverOptions) -> Replayer | None:
        """See `Execution.replayer`."""
        if options.recompute:
            return None
        return fused_replayer(field, h, times, options.method, options.rtol, options.atol)


class FusedLayers(FusedSolves):
    """Also runs layers on images in fused kernels; for captured training steps of models without an adaptive solve."""

    def run_layers(self, layers: nn.Module, x: Tensor) -> Tensor:
        """See `Execution.run_layers`."""
        return fused_layers.run_layers(layers, x)

    def relu_of_norm(self, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        """See `Execution.relu_of_norm`."""
        return fused_layers.relu_of_norm(norm, x)

    def normed_convolutions(
        self, t: Tensor, h: Tensor, convs: tuple[nn.Conv2d, nn.Conv2d], norms: tuple[nn.GroupNorm, nn.GroupNorm, nn.GroupNorm]
    ) -> Tensor | None:
        """See `Execution.normed_convolutions`."""
        return fused_layers.convolutions_between_norms(t, h, convs, norms)
