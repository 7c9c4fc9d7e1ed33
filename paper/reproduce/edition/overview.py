"""What `ltnode reproduce images --list` shows: the state of every cell, and how far the edition is."""

from __future__ import annotations

from collections.abc import Sequence

from paper.reproduce.edition.cells import edition_cells, gaps_in_provenance
from paper.reproduce.edition.expected import Expected, recorded_trainings, total
from paper.reproduce.edition.record import measured_text, read_records
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.cells import Places, State, state
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import read_results

HEADER = ("Cell", "Epochs", "Precision", "State", "Provenance", "Expected", "Run folder")
WORDS = (0, 2, 3, 4, 5, 6)
"""Indices of the columns of text."""
_COMPLETE = "complete"


def expected_times(folder: PaperFolder) -> Expected:
    """Estimates from the records of the repository."""
    results = read_results(folder.results)
    return Expected(results, recorded_trainings(results, folder.zoo))


def state_rows(cells: Sequence[Cell], places: Places, protocols: Sequence[str], expected: Expected) -> list[list[str]]:
    """One row below `HEADER` for each cell."""
    rows = []
    for cell in cells:
        reached, done = state(cell, places, protocols)
        recorded = places.recorded(cell)
        gaps = [] if recorded is None else gaps_in_provenance(recorded)
        provenance = "" if recorded is None else f"without {', '.join(gaps)}" if gaps else _COMPLETE
        left = None if reached is State.DONE else expected.evaluation(cell) if reached is State.TRAINED else expected.both(cell)
        some = f" ({', '.join(done)})" if done and reached is not State.DONE else ""
        config = cell.config
        row = [cell.title, str(config.epochs), config.precision, reached.value + some, provenance, left.text if left else ""]
        rows.append([*row, cell.name])
    return rows


def summary(cells: Sequence[Cell], places: Places, protocols: Sequence[str], expected: Expected) -> list[str]:
    """Lines on all cells that are listed, and on those that belong to the edition."""
    kinds = [("listed cells", list(cells))]
    paper = edition_cells(cells)
    if paper and len(paper) < len(cells):
        kinds.append(("cells of the paper (its models, sets and number of seeds)", paper))
    lines = []
    for name, chosen in kinds:
        states = {cell: state(cell, places, protocols)[0] for cell in chosen}
        left = [cell for cell in chosen if states[cell] is not State.DONE]
        recorded = [found for cell in chosen if cell not in left and (found := places.recorded(cell)) is not None]
        complete = sum(not gaps_in_provenance(result) for result in recorded)
        line = f"{len(chosen) - len(left)} of {len(chosen)} done: {name}; {complete} with a complete provenance."
        untrained = [cell for cell in left if states[cell] is not State.TRAINED]
        if (work := _work(untrained, left, expected)) is not None:
            line += f" The rest needs {work} on one {expected.device}."
        if (whole := _work(chosen, chosen, expected)) is not None:
            line += f" All of them need {whole}, added up from the records."
        lines.append(line)
    measured = measured_text(read_records(places.out), cells, expected)
    if measured:
        lines.append(measured)
    return lines


def _work(untrained: Sequence[Cell], not_evaluated: Sequence[Cell], expected: Expected) -> str | None:
    """Expected time of the device for trainings, and for evaluations one after the other; sessions do both at the same time."""
    training = total(expected.training(cell) for cell in untrained)
    evaluation = total(expected.evaluation(cell) for cell in not_evaluated)
    kinds = {"training": training, "evaluation": evaluation}
    return " and ".join(f"{time.text} of {kind}" for kind, time in kinds.items() if time is not None) or None
