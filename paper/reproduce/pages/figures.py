"""The figures of the folder ``paper``, drawn from the recorded results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ltnode.report.aggregate import Rows
from ltnode.report.figures_images import figure_3_rotation, figure_4_shift_and_attack
from ltnode.report.style import LIGHT, themed
from paper.reproduce.causes.outcome import Compared, Effect
from paper.reproduce.claims.verdict import JudgedClaim
from paper.reproduce.images.results import ImageResult
from paper.reproduce.pages.front import DIFFERS_FIGURE, HOLDS_FIGURE, WHY_FIGURE
from paper.reproduce.pages.paper_figures import figure_2, figure_3, figure_4, paper_rows
from paper.reproduce.pages.statements import statements
from paper.reproduce.pages.summary_figures import differs_figure, holds_figure, why_figure
from paper.reproduce.published import PaperValues

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(
    results: Sequence[ImageResult],
    one_dimensional: Sequence[Mapping[str, Any]],
    judged: Sequence[JudgedClaim],
    causes: Sequence[Compared],
    published: PaperValues,
    folder: Path,
) -> list[Path]:
    """Draw all figures for which there are results as SVG: those of the first page, the paper's, and one per data set.

    Args:
        results: Results of the image experiments.
        one_dimensional: Results of the 1-D experiment.
        judged: All claims.
        causes: Hypotheses on why numbers differ.
        published: What the paper prints.
        folder: Folder of the figures.

    Returns:
        The files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = paper_rows(results)
    made: dict[str, Callable[[], Figure]] = {HOLDS_FIGURE: lambda: holds_figure(LIGHT, statements(judged))}
    made[DIFFERS_FIGURE] = lambda: differs_figure(LIGHT, results, published)
    if any(one.effect is not Effect.NOT_RUN for one in causes):
        made[WHY_FIGURE] = lambda: why_figure(LIGHT, causes)
    if one_dimensional:
        made["figure-2"] = lambda: figure_2(LIGHT, one_dimensional, published)
    made |= {"figure-3": lambda: figure_3(LIGHT, rows), "figure-4": lambda: figure_4(LIGHT, rows)}
    return sorted([*(_save(figure, folder / f"{name}.svg") for name, figure in made.items()), *_per_data_set(results, folder)])


def _per_data_set(results: Sequence[ImageResult], folder: Path) -> list[Path]:
    """The panels of Figures 3 and 4 for every data set with results of their protocols, with the default preset beside."""
    rows = Rows(row for result in results if not result.variant for row in result.rows())
    drawn = []
    for stem, protocols, figure in (
        ("figure-3", ("rotation",), figure_3_rotation),
        ("figure-4", ("rotation", "ood", "fgsm"), figure_4_shift_and_attack),
    ):
        for data in dict.fromkeys(data for protocol in protocols for data in rows.data_sets(protocol)):
            drawn.append(_save(partial(figure, LIGHT, rows, data), folder / f"{stem}-{data}.svg"))
    return drawn


def _save(figure: Callable[[], Figure], path: Path) -> Path:
    with themed(LIGHT):
        # Without a date in the file, the same figure has the same bytes.
        figure().savefig(path, metadata={"Date": None})
    return path
