"""Writing the generated pages. All of them are functions of the files in ``paper``: written again, they have the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paper.reproduce.claims.evidence import Claim
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import ImageResult
from paper.reproduce.images.zoo import read_zoo
from paper.reproduce.pages.claims import claims_page, read_remarks, zoo_note
from paper.reproduce.pages.figures import draw
from paper.reproduce.pages.readme import BEGIN, results_block, with_results
from paper.reproduce.pages.tables import tables_page
from paper.reproduce.pages.zoo import write_cards


def write_paper_pages(
    paper: PaperFolder, results: Sequence[ImageResult], claims: Sequence[Claim], *, figures: bool = True
) -> list[Path]:
    """Write ``tables.md``, ``README.md`` and, if asked for, the figures of the folder ``paper``; returns the files.

    Args:
        paper: The folder.
        results: Results of the image experiments.
        claims: The judged claims.
        figures: Also draw the figures.
    """
    made = [_write(paper.path / "tables.md", tables_page(results, paper.published()))]
    if figures:
        made += draw(results, paper.path / "figures")
    page = claims_page(claims, read_remarks(paper.remarks, claims), paper.figure_names())
    return [*made, _write(paper.path / "README.md", page)]


def write_readme_results(paper: PaperFolder, results: Sequence[ImageResult], claims: Sequence[Claim]) -> list[Path]:
    """Replace the table of results in the README of the repository; a README without a place for it is left alone."""
    text = paper.readme.read_text(encoding="utf-8") if paper.readme.exists() else ""
    if BEGIN not in text:
        return []
    return [_write(paper.readme, with_results(text, results_block(results, paper.published(), claims)))]


def write_zoo_cards(paper: PaperFolder, grid: Sequence[Cell]) -> list[Path]:
    """Write the cards of the trained models and the overview of the zoo; nothing where there is no zoo."""
    if not paper.zoo.is_dir():
        return []
    return write_cards(paper.zoo, read_zoo(paper.zoo, grid, paper.results), paper.published(), zoo_note(paper.remarks))


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
