"""The three small figures of the first page: what holds, what differs, and which hypotheses explain it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ltnode.report.naming import MODELS as LOOKS
from ltnode.report.naming import data_title, model_title
from ltnode.report.panels import found_labels
from ltnode.report.style import Theme, new_figure
from paper.reproduce.causes.outcome import EXPLAINED, IN_PART, Compared, Effect
from paper.reproduce.claims.foreign import ENTROPY_TOLERANCE, PERCENT_TOLERANCE
from paper.reproduce.claims.generalisation import ERROR_TOLERANCE
from paper.reproduce.claims.numbers import DATA, FOREIGN, MODELS, ImageNumbers, Read
from paper.reproduce.images.results import ImageResult
from paper.reproduce.pages.statements import ELSEWHERE, Statement, set_title
from paper.reproduce.published import PaperValues, Printed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 9.6
_LARGEST = 6.0
"""Largest distance that is drawn at its place, in tolerances."""
_MOST_LEFT = 120.0
"""Longest bar of what is left of a difference, in percent."""
_HOLDS, _FAILS = "#009E73", "#D55E00"
"""Colours for 'holds' and 'does not', which colour-blind readers can distinguish."""


def holds_figure(theme: Theme, found: Sequence[Statement]) -> Figure:
    """One row per statement, one column per data set: the share of claims that are reproduced, as a colour and as numbers."""
    columns = (*DATA, ELSEWHERE)
    figure = new_figure(_WIDTH, 0.36 * len(found) + 0.5)
    axes = figure.subplots()
    for row, statement in enumerate(found):
        for data, share in statement.by_data.items():
            column = columns.index(data)
            axes.add_patch(_tile(column, row, share.part))
            text = f"{share.reproduced} of {share.claims}"
            axes.text(column, row, text, ha="center", va="center", fontsize=8.5, color="#1c1e21")
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_yticks(range(len(found)), [textwrap.fill(statement.text, 78) for statement in found], fontsize=8.5)
    axes.set_xticks(range(len(columns)), [set_title(data) for data in columns])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure


def _tile(column: int, row: int, part: float) -> Any:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    low, high, middle = to_rgb(_FAILS), to_rgb(_HOLDS), (0.96, 0.94, 0.88)
    end, weight = (high, 2 * part - 1) if part >= 0.5 else (low, 1 - 2 * part)
    colour = tuple(0.75 * weight * e + (1 - 0.75 * weight) * m for e, m in zip(end, middle, strict=True))
    return Rectangle((column - 0.47, row - 0.44), 0.94, 0.88, color=colour, lw=0)


def differs_figure(theme: Theme, results: Sequence[ImageResult], published: PaperValues) -> Figure:
    """One row per printed column: how far our numbers are from the printed ones, in tolerances, one marker per model."""
    numbers = ImageNumbers(results)
    rows = [(f"test error, {data_title(data)}", _errors(numbers, published, data)) for data in DATA]
    rows += [(f"AUROC, {_pair(data)}", _detections(numbers, published, data)) for data in FOREIGN]
    rows += [(f"entropy, {_pair(data)}", _entropies(numbers, published, data)) for data in FOREIGN]
    figure = new_figure(_WIDTH, 0.36 * len(rows) + 1.1)
    axes = figure.subplots()
    axes.axvspan(-1, 1, color=theme.shade, lw=0, zorder=0)
    axes.axvline(0, color=theme.faint, lw=0.8, zorder=1)
    for row, (_, distances) in enumerate(rows):
        for place, model in enumerate(MODELS):
            if (distance := distances.get(model)) is not None:
                _mark(axes, theme, model, distance, row + 0.1 * (place - 2.5))
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(-_LARGEST - 0.5, _LARGEST + 0.5)
    axes.set_xlabel("ours minus printed, in tolerances (shaded: reproduced; triangles: farther away)")
    found = found_labels(axes)
    figure.legend(list(found.values()), list(found), loc="outside upper center", ncols=len(MODELS))
    return figure


def _mark(axes: Axes, theme: Theme, model: str, distance: float, height: float) -> None:
    beyond = abs(distance) > _LARGEST
    marker = (">" if distance > 0 else "<") if beyond else LOOKS[model].marker
    x = max(-_LARGEST - 0.25, min(_LARGEST + 0.25, distance))
    look: dict[str, Any] = {"marker": marker, "ls": "", "ms": 5.5, "color": theme.of_model(model), "clip_on": False}
    axes.plot([x], [height], label=None if beyond else model_title(model), **look)


def _errors(numbers: ImageNumbers, published: PaperValues, data: str) -> dict[str, float]:
    printed = {model: published.error(data, model) for model in MODELS}
    return _distances(numbers, numbers.number("clean", "error"), data, printed, ERROR_TOLERANCE[data])


def _detections(numbers: ImageNumbers, published: PaperValues, data: str) -> dict[str, float]:
    other = FOREIGN[data]
    read = numbers.number("ood", "auroc", 100, ood=other, score="max_probability")
    printed = {model: published.detection(data, other, model, "auroc") for model in MODELS}
    return _distances(numbers, read, data, printed, PERCENT_TOLERANCE)


def _entropies(numbers: ImageNumbers, published: PaperValues, data: str) -> dict[str, float]:
    other = FOREIGN[data]
    read = numbers.number("ood", "mean_entropy", ood=other, part="out")
    printed = {model: published.entropy(data, other, model) for model in MODELS}
    return _distances(numbers, read, data, printed, ENTROPY_TOLERANCE)


def _distances(
    numbers: ImageNumbers, read: Read, data: str, printed: dict[str, Printed | None], tolerance: float
) -> dict[str, float]:
    """Differences in units of what the judge allows: the tolerance, or two of the paper's deviations if that is more."""
    found = {}
    for model, value in printed.items():
        ours = numbers.measured(read, data, model)
        if value is not None and ours is not None:
            found[model] = (ours.mean - value.mean) / max(tolerance, 2 * value.std)
    return found


def _pair(data: str) -> str:
    return f"{data_title(data)} against {data_title(FOREIGN[data])}"


def why_figure(theme: Theme, causes: Sequence[Compared]) -> Figure:
    """One bar per difference: the part that is left of it under the hypothesis that leaves the least."""
    best = _best(causes)
    figure = new_figure(_WIDTH, 0.46 * len(best) + 0.8)
    axes = figure.subplots()
    colours = {Effect.EXPLAINS: _HOLDS, Effect.IN_PART: "#E69F00", Effect.UNDECIDED: theme.faint, Effect.NO: _FAILS}
    for row, (one, left) in enumerate(best):
        axes.barh(row, min(left, _MOST_LEFT), height=0.62, color=colours[one.effect], alpha=0.75)
        axes.text(min(left, _MOST_LEFT) + 1.5, row, f"{left:.0f} %", va="center", fontsize=8.5)
    for limit in (EXPLAINED, IN_PART):
        axes.axvline(100 * limit, color=theme.faint, lw=0.9, ls=(0, (4, 3)), zorder=0)
    names = [f"{one.what}\n{textwrap.shorten(one.cause.hypothesis, 88)}" for one, _ in best]
    axes.set_yticks(range(len(best)), names, fontsize=8)
    axes.set_ylim(len(best) - 0.4, -0.6)
    axes.set_xlim(0, _MOST_LEFT + 15)
    axes.set_xticks((0, 25, 50, 75, 100))
    axes.set_xlabel("difference left (%)")
    axes.tick_params(axis="y", length=0)
    used = {one.effect for one, _ in best}
    shown = [effect for effect in colours if effect in used]
    handles = [axes.barh([0], [0], color=colours[effect], alpha=0.75, label=effect.value) for effect in shown]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
    return figure


def _best(causes: Sequence[Compared]) -> list[tuple[Compared, float]]:
    """For every difference with a tested hypothesis, the one that leaves the least of it, with the rest in percent."""
    found: dict[str, tuple[Compared, float]] = {}
    for one in causes:
        left = one.left
        if left is not None and (one.what not in found or 100 * left < found[one.what][1]):
            found[one.what] = (one, 100 * left)
    return list(found.values())
