"""The figure of the model selection: validation error against the end-time, with the learnt densities q(T)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ltnode.report.style import Theme, new_figure
from ltnode.typing import Float, Tensor
from paper.reproduce.one_dimensional.selection import standard_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VISIBLE = 0.995
"""Share of the values of a density that its axis must show: a density that is infinite at 0 must not flatten the rest."""


@dataclass(frozen=True)
class ErrorCurve:
    """Validation errors of models that were trained with one end-time each.

    Attributes:
        label: What the errors are.
        times: The end-times.
        errors: Validation error at each end-time, in the units of the target.
        standard_errors: Standard error of each.
    """

    label: str
    times: Sequence[float]
    errors: Sequence[float]
    standard_errors: Sequence[float]

    @classmethod
    def of(cls, results: Sequence[Mapping[str, Any]], mode: str, label: str) -> ErrorCurve:
        """Make a curve of the results of all end-times, with BatchNorm in a mode (``eval`` or ``train``)."""
        errors = [float(r["validation_rmse"][mode]) for r in results]
        widths = [standard_error(error, int(r["n_validation"])) for error, r in zip(errors, results, strict=True)]
        return cls(label, [float(r["time"]) for r in results], errors, widths)


def selection_figure(
    theme: Theme, curves: Sequence[ErrorCurve], t: Float[Tensor, " n"], densities: Mapping[str, Float[Tensor, " n"]]
) -> Figure:
    """Draw the figure.

    Args:
        theme: Colours.
        curves: Validation errors.
        t: Times of the densities.
        densities: Densities by label.
    """
    figure = new_figure(6.6, 3.7)
    axes = figure.subplots()
    other = axes.twinx()
    other.spines["right"].set_visible(True)
    axes.set_zorder(other.get_zorder() + 1)
    axes.patch.set_visible(False)
    for order, (label, density) in enumerate(densities.items()):
        other.fill_between(t.numpy(), 0, density.numpy(), color=theme.hues[(2 * order) % 6], alpha=0.14, lw=0)
        other.plot(t.numpy(), density.numpy(), color=theme.hues[(2 * order) % 6], lw=1.2, label=label)
    for curve, (colour, marker) in zip(curves, ((theme.hues[1], "o"), (theme.text, "s")), strict=False):
        look: dict[str, Any] = {"color": colour, "marker": marker, "ms": 5, "lw": 1.2, "capsize": 3}
        axes.errorbar(curve.times, curve.errors, yerr=curve.standard_errors, label=curve.label, **look)
    axes.set_xlabel("end-time T")
    axes.set_ylabel("validation RMSE")
    axes.set_ylim(0, None)
    axes.set_xlim(0, float(t[-1]))
    if densities:
        other.set_ylabel("density q(T)")
        top = torch.cat(list(densities.values()))
        other.set_ylim(0, 1.6 * float(top[torch.isfinite(top)].quantile(_VISIBLE)))
    else:
        other.set_visible(False)
    handles, labels = zip(
        *(pair for a in (axes, other) for pair in zip(*a.get_legend_handles_labels(), strict=True)), strict=True
    )
    figure.legend(list(handles), list(labels), loc="outside lower center", ncols=2)
    return figure
