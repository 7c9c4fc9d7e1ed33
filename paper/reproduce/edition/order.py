"""The order in which a session makes cells: first those that bring the most claims to five seeds per minute of the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from paper.reproduce.claims.verdict import JudgedClaim
from paper.reproduce.edition.cells import SEEDS, edition_cells
from paper.reproduce.edition.expected import Expected, total
from paper.reproduce.images.grid import Cell

_UNKNOWN_S = 60.0
"""Time of the cells of a data set of which nothing is recorded."""


def ordered(cells: Sequence[Cell], missing: Sequence[Cell], claims: Iterable[JudgedClaim], expected: Expected) -> list[Cell]:
    """Order cells by data set, those of the edition before all others.

    Most claims compare all models of one data set, so a data set is completed before the next one begins: first the one with the
    most open claims per second that its missing cells take. Within it, the seeds of a model follow each other, because
    claims on a printed number need one model only.

    Args:
        cells: What is to be ordered, in the order of the grid.
        missing: Those that are not done.
        claims: All claims with their verdicts.
        expected: Estimates of the times.
    """
    open_claims = claims_per_set(claims)
    edition = edition_cells(cells)
    models = list(dict.fromkeys(cell.model for cell in edition))

    def worth(data: str) -> float:
        time = total(expected.both(cell) for cell in edition if cell.data == data and cell in missing)
        return open_claims[data] / (time.value if time is not None else _UNKNOWN_S)

    sets = sorted(dict.fromkeys(cell.data for cell in edition), key=lambda data: -worth(data))
    first = sorted(edition, key=lambda cell: (sets.index(cell.data), models.index(cell.model), cell.seed))
    return [*first, *(cell for cell in cells if cell not in first)]


def claims_per_set(claims: Iterable[JudgedClaim]) -> Counter[str]:
    """How many claims of every data set have fewer seeds than an edition, among those that depend on seeds at all."""
    found: Counter[str] = Counter()
    for entry in claims:
        data = _data_of(entry)
        if data is not None and entry.verdict.seeds.most > 0 and entry.verdict.seeds.fewest < len(SEEDS):
            found[data] += 1
    return found


def _data_of(entry: JudgedClaim) -> str | None:
    """The data set in the command that makes a claim's numbers; None if it has none."""
    words = entry.claim.command.split()
    return words[words.index("--data") + 1] if "--data" in words else None
