"""Our evidence for a claim: numbers over seeds, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ltnode.report.aggregate import Measured
from ltnode.report.naming import model_title


class Seeds(NamedTuple):
    """How many seeds are behind numbers; 0 if the numbers do not depend on a seed or do not exist."""

    fewest: int
    most: int


@dataclass(frozen=True)
class Evidence:
    """What we measured.

    Attributes:
        numbers: Numbers by name; None for those that were not measured.
        text: The numbers as the page shows them.
        seed_counts: Numbers of seeds, if they are not those of `numbers`.
        unusable: Reason why the numbers decide nothing; empty if they can be judged.
    """

    numbers: Mapping[str, Measured | None]
    text: str
    seed_counts: tuple[int, ...] | None = None
    unusable: str = ""

    @property
    def seeds(self) -> Seeds:
        """The fewest and the most seeds behind any of the numbers."""
        counts = [n.seeds for n in self.numbers.values() if n is not None] if self.seed_counts is None else self.seed_counts
        return Seeds(min(counts, default=0), max(counts, default=0))


def of_number(number: Measured | None) -> Evidence:
    """Evidence that consists of one number, shown with three decimal places, or four if it is below 1."""
    return Evidence({"number": number}, "" if number is None else number.text(4 if number.mean < 1 else 3))


def of_models(numbers: Mapping[str, Measured | None], digits: int, unusable: str = "") -> Evidence:
    """Evidence that compares models, shown as a list of titles with numbers.

    Args:
        numbers: Numbers by the name of the model.
        digits: Decimal places to show.
        unusable: See `Evidence`.
    """
    titled = {model_title(name): number for name, number in numbers.items()}
    text = ", ".join(f"{title} {number.text(digits)}" for title, number in titled.items() if number is not None)
    return Evidence(titled, text, unusable=unusable)
