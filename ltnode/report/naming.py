"""Titles, order and appearance of models and data sets in reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ltnode.evaluation import ResultRow


class Look(NamedTuple):
    """How a model appears: its title, the marker of its points, and its colour on light and on dark pages."""

    title: str
    marker: str
    light: str
    dark: str


MODELS: Mapping[str, Look] = {
    "node": Look("NODE", "s", "#5f6368", "#a5abb1"),
    "sde-net": Look("SDE-Net", "v", "#CC79A7", "#E3A1C6"),
    "node-gp": Look("NODE-GP", "D", "#B58900", "#E0B83C"),
    "uni-node": Look("Uni-NODE", "^", "#D55E00", "#F0863A"),
    "lt-node": Look("LT-NODE", "o", "#0072B2", "#56B4E9"),
    "alt-node": Look("ALT-NODE", "P", "#009E73", "#2FC79B"),
    "lt-node-mixture": Look("LT-NODE, mixture", "*", "#56B4E9", "#8AD0F5"),
    "steer": Look("STEER", "<", "#882255", "#D07AA0"),
    "mc-dropout": Look("MC dropout", ">", "#6B7A1F", "#B7C464"),
    "ensemble": Look("Ensemble", "h", "#332288", "#A79BE8"),
}
"""The paper's models in its order, then further ones."""

DATA_TITLES: Mapping[str, str] = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR10",
    "svhn": "SVHN",
    "gap": "1-D data with a gap",
    "synthetic": "1-D data with a gap",
}


def model_title(name: str) -> str:
    """Title of a model; an unknown model keeps its name."""
    return MODELS[name].title if name in MODELS else name


def data_title(name: str) -> str:
    """Title of a data set; an unknown data set keeps its name."""
    return DATA_TITLES.get(name, name)


@dataclass(frozen=True)
class Variant:
    """Runs that differ only in their seed.

    Attributes:
        model: Name of the model.
        preset: Preset that it was built with.
        detail: Other settings that distinguish it from runs in the same report; see `ltnode.report.runs`.
    """

    model: str
    preset: str | None
    detail: str = ""

    @classmethod
    def of(cls, row: ResultRow) -> Variant:
        """The variant of a result."""
        return cls(row.model, row.preset, row.extra.get("variant", ""))

    @property
    def title(self) -> str:
        """Title in legends and tables, with the preset unless it is the default, and with the detail."""
        words = [self.preset if self.preset not in (None, "default") else "", self.detail]
        added = ", ".join(word for word in words if word)
        return model_title(self.model) + (f" ({added})" if added else "")

    @property
    def marker(self) -> str:
        """Marker of its points, so that a curve can be identified without its colour."""
        return MODELS[self.model].marker if self.model in MODELS else "x"

    @property
    def dashes(self) -> str | tuple[int, tuple[float, ...]]:
        """Style of its lines: dashed for the paper's preset, dotted for a variant with a detail."""
        if self.detail:
            return (0, (1.0, 1.5))
        return (0, (4.0, 2.0)) if self.preset == "paper" else "-"


def in_order(variants: Iterable[Variant]) -> list[Variant]:
    """Distinct variants in the paper's order; unknown models follow by name, and the default preset comes first."""
    known = list(MODELS)

    def position(v: Variant) -> tuple[int, str, bool, str, str]:
        place = known.index(v.model) if v.model in known else len(known)
        return (place, v.model, v.preset != "default", v.preset or "", v.detail)

    return sorted(set(variants), key=position)


def data_in_order(names: Iterable[str]) -> list[str]:
    """Distinct data sets in the paper's order; unknown ones follow by name."""
    known = list(DATA_TITLES)
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))
