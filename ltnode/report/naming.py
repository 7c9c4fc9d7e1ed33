"""What reports call models, data sets and measures, and in which order they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ltnode.evaluation import ResultRow

MODEL_TITLES: Mapping[str, str] = {
    "node": "NODE",
    "sde-net": "SDE-Net",
    "node-gp": "NODE-GP",
    "uni-node": "Uni-NODE",
    "lt-node": "LT-NODE",
    "alt-node": "ALT-NODE",
    "lt-node-mixture": "LT-NODE, mixture",
    "steer": "STEER",
    "mc-dropout": "MC dropout",
    "ensemble": "Ensemble",
}
"""In the paper's order, then what it does not have."""

DATA_TITLES: Mapping[str, str] = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR10",
    "svhn": "SVHN",
    "gap": "1-D data with a gap",
    "synthetic": "1-D data with a gap",
}

METRIC_TITLES: Mapping[str, str] = {
    "error": "error (share of wrong predictions)",
    "log_likelihood": "log-likelihood (nats)",
    "brier": "Brier score (over classes)",
    "ece": "ECE",
}

_MARKERS: Mapping[str, str] = {
    "node": "s", "sde-net": "v", "node-gp": "D", "uni-node": "^", "lt-node": "o", "alt-node": "P", "lt-node-mixture": "*",
    "steer": "<", "mc-dropout": ">", "ensemble": "h",
}  # fmt: skip


def model_title(name: str) -> str:
    """A model's name in a text."""
    return MODEL_TITLES.get(name, name)


def data_title(name: str) -> str:
    """A data set's name in a text."""
    return DATA_TITLES.get(name, name)


@dataclass(frozen=True)
class Variant:
    """Runs that differ in their seed alone.

    Attributes:
        model: Name of the model.
        preset: Preset that it was built with.
        detail: What else sets it apart from other runs of the same report; see `ltnode.report.runs`.
    """

    model: str
    preset: str | None
    detail: str = ""

    @classmethod
    def of(cls, row: ResultRow) -> Variant:
        """The variant that a row belongs to."""
        return cls(row.model, row.preset, row.extra.get("variant", ""))

    @property
    def title(self) -> str:
        """For legends and tables, with the preset unless it is the default, and with what else sets it apart."""
        words = [self.preset if self.preset not in (None, "default") else "", self.detail]
        added = ", ".join(word for word in words if word)
        return model_title(self.model) + (f" ({added})" if added else "")

    @property
    def marker(self) -> str:
        """Shape of its points, so that a curve is known without its colour."""
        return _MARKERS.get(self.model, "x")

    @property
    def dashes(self) -> str | tuple[int, tuple[float, ...]]:
        """Style of its lines: dashed for the paper's preset, dotted for what differs in a detail."""
        if self.detail:
            return (0, (1.0, 1.5))
        return (0, (4.0, 2.0)) if self.preset == "paper" else "-"


def in_order(variants: Iterable[Variant]) -> list[Variant]:
    """Without repetition, in the paper's order; unknown models follow by name, the default preset comes first."""
    known = list(MODEL_TITLES)

    def position(v: Variant) -> tuple[int, str, bool, str, str]:
        place = known.index(v.model) if v.model in known else len(known)
        return (place, v.model, v.preset != "default", v.preset or "", v.detail)

    return sorted(set(variants), key=position)


def data_in_order(names: Iterable[str]) -> list[str]:
    """Without repetition, in the paper's order; unknown sets follow by name."""
    known = list(DATA_TITLES)
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))
