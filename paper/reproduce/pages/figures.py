"""The paper's Figures 3 and 4, drawn from the recorded results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ltnode.report.aggregate import Rows
from ltnode.report.figures_images import figure_3_rotation, figure_4_shift_and_attack
from ltnode.report.style import LIGHT, Theme, themed
from paper.reproduce.images.results import ImageResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(results: Sequence[ImageResult], folder: Path) -> list[Path]:
    """The paper's figures 3 and 4 of every data set that has the protocols, as SVG; variants are left to the tables."""
    rows = Rows(row for result in results if not result.variant for row in result.rows())
    drawn: list[Path] = []
    for stem, protocols, draw_one in (
        ("figure-3", ("rotation",), figure_3_rotation),
        ("figure-4", ("rotation", "ood", "fgsm"), figure_4_shift_and_attack),
    ):
        names = dict.fromkeys(data for protocol in protocols for data in rows.data_sets(protocol))
        for data in names:
            drawn.append(_figure(partial(draw_one, rows=rows, data=data), folder / f"{stem}-{data}.svg"))
    return sorted(drawn)


def _figure(make: Callable[[Theme], Figure], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with themed(LIGHT):
        # No date in the file: the same figure has the same bytes.
        make(LIGHT).savefig(path, metadata={"Date": None})
    return path
