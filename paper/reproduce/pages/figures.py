"""The paper's Figures 3 and 4, drawn from the recorded results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ltnode.report.aggregate import Rows
from ltnode.report.figures_images import figure_3_rotation, figure_4_shift_and_attack
from ltnode.report.style import LIGHT, themed
from paper.reproduce.images.results import ImageResult


def draw(results: Sequence[ImageResult], folder: Path) -> list[Path]:
    """Draw both figures as SVG for every data set with results of their protocols, without variants; returns the files."""
    rows = Rows(row for result in results if not result.variant for row in result.rows())
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for stem, protocols, figure in (
        ("figure-3", ("rotation",), figure_3_rotation),
        ("figure-4", ("rotation", "ood", "fgsm"), figure_4_shift_and_attack),
    ):
        for data in dict.fromkeys(data for protocol in protocols for data in rows.data_sets(protocol)):
            drawn.append(folder / f"{stem}-{data}.svg")
            with themed(LIGHT):
                # Without a date in the file, the same figure has the same bytes.
                figure(LIGHT, rows, data).savefig(drawn[-1], metadata={"Date": None})
    return sorted(drawn)
