"""Writing the generated pages. They depend only on the files in ``paper``: written again, they have the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paper.reproduce.claims.all_claims import one_dimensional_results
from paper.reproduce.claims.verdict import JudgedClaim
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import ImageResult
from paper.reproduce.images.zoo import read_zoo
from paper.reproduce.pages.causes import read_compared
from paper.reproduce.pages.claims import paper_page
from paper.reproduce.pages.figures import draw
from paper.reproduce.pages.readme import BEGIN, RESULT_PAGES, read_promises, with_results
from paper.reproduce.pages.remarks import Remarks
from paper.reproduce.pages.tables import tables_page
from paper.reproduce.pages.zoo import card, overview


def write_paper_pages(
    paper: PaperFolder, results: Sequence[ImageResult], judged: Sequence[JudgedClaim], *, figures: bool = True
) -> list[Path]:
    """Write ``tables.md``, ``README.md`` and, if ``figures`` is true, the figures of the folder ``paper``; returns the files."""
    remarks, published = Remarks.read(paper.remarks), paper.published()
    remarks.check(entry.claim.key for entry in judged)
    causes = read_compared(paper, results)
    made = [_write(paper.path / "tables.md", tables_page(results, published))]
    if figures:
        trained = one_dimensional_results(paper.results).trained
        made += draw(results, trained, judged, causes, published, paper.path / "figures")
    page = paper_page(judged, remarks, results, published, paper.figure_names(), causes)
    return [*made, _write(paper.path / "README.md", page)]


def write_results(paper: PaperFolder, judged: Sequence[JudgedClaim]) -> list[Path]:
    """Replace the results in the README and the documentation; pages without a place for them are not changed."""
    made = []
    for page, block in RESULT_PAGES.items():
        file = paper.repository / page
        if BEGIN in (text := _read(file)):
            made.append(_write(file, with_results(text, block(read_promises(paper.promises), judged))))
    return made


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def write_zoo_cards(paper: PaperFolder, grid: Sequence[Cell]) -> list[Path]:
    """Write the cards of the trained models and the overview of the zoo, if there is a zoo."""
    if not paper.zoo.is_dir():
        return []
    published, entries = paper.published(), read_zoo(paper.zoo, grid, paper.records)
    made = [_write(entry.folder / "README.md", card(entry, published)) for entry in entries]
    note = Remarks.read(paper.remarks).zoo
    return [*made, _write(paper.zoo / "README.md", overview(entries, published, note))]


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
