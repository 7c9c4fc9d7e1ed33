"""The units of a regression target: networks compute standardised values, and everything outside of them has the user's units.

A head that ends with ``z -> mean + std z``, together with noise that begins at ``std``, has the gradients of a training on
standardised targets: the Gaussian log-likelihood differs by the constant ``log std``. Losses, predictions, noise, widening,
evaluation, export and server then need no conversion of their own.
"""

from __future__ import annotations

import torch
from torch import nn

from ltnode.models.input_spec import InputSpec
from ltnode.typing import Float, Tensor


class ToUnits(nn.Module):
    """Maps standardised values z to ``mean + std z``; outputs after the first are scales of the noise and stay as they are."""

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, z: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        """Return values in the units of the target."""
        values = z[:, :1] * self.std + self.mean
        return values if z.shape[1] == 1 else torch.cat([values, z[:, 1:]], dim=1)

    def extra_repr(self) -> str:
        """Return the constants, for ``repr``."""
        return f"mean={self.mean:g}, std={self.std:g}"


def head_in_units(head: nn.Module, spec: InputSpec) -> nn.Module:
    """Return a head whose outputs have the units of the target; unchanged if nothing is known about them."""
    return head if spec.target is None else nn.Sequential(head, ToUnits(*spec.target))
