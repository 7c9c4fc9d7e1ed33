"""The image experiments of a full edition: the paper's six models on its four sets with five seeds, in its own preset."""

from __future__ import annotations

from collections.abc import Sequence

from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import ImageResult

SEEDS = (0, 1, 2, 3, 4)
"""The seeds of an edition: as many as in the paper."""
_TRAINING = ("device", "torch", "python", "version", "config_hash", "wall_time_s", "git_commit")
_EVALUATION = ("device", "torch", "python", "version", "wall_time_s", "git_commit")


def edition_cells(grid: Sequence[Cell]) -> list[Cell]:
    """The cells of the grid that belong to an edition, the most important ones first."""
    return [c for c in grid if c.preset == "paper" and not c.variant and not c.trial and c.seed in SEEDS]


def gaps_in_provenance(result: ImageResult) -> list[str]:
    """What the provenance of a result leaves open, such as ``git_commit of training``; empty if it is complete."""
    content = result.content
    gaps = [f"{key} of training" for key in _TRAINING if content["training"].get(key) is None]
    for name, part in result.protocols.items():
        gaps += [f"{key} of {name}" for key in _EVALUATION if part["provenance"].get(key) is None]
    return gaps if content["data_checksums"] else [*gaps, "checksums of the data"]
