"""What the paper prints, to stand beside our results."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ltnode.errors import DataError

PLACES = (Path("paper") / "published.toml", Path(__file__).parents[2] / "paper" / "published.toml")
"""Where the file is looked for: below the current folder, and in the source tree."""


@dataclass(frozen=True)
class Printed:
    """A number as the paper prints it: mean and population standard deviation over 5 initialisations."""

    mean: float
    std: float


@dataclass(frozen=True)
class Published:
    """The paper's numbers; every look-up gives None where the paper prints nothing.

    Attributes:
        tables: Content of the file.
    """

    tables: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path | None = None) -> Published:
        """Read the values.

        Args:
            path: The TOML file; by default ``paper/published.toml`` of the current folder or of the source tree. Where there is
                none, as in an installed package, nothing is known.

        Raises:
            DataError: A file that was named is missing, or the file is not TOML.
        """
        for place in PLACES if path is None else (Path(path),):
            try:
                return cls(tomllib.loads(place.read_text(encoding="utf-8")))
            except FileNotFoundError:
                continue
            except (OSError, tomllib.TOMLDecodeError) as error:
                raise DataError(f"cannot read the published values in {place}: {error}") from error
        if path is not None:
            raise DataError(f"{path} does not exist; give the TOML file of the published values, or leave it out")
        return cls()

    def models(self, data: str) -> list[str]:
        """Models that the paper reports on a data set, in its order."""
        return [name for name, value in self._table("generalisation", data).items() if isinstance(value, Mapping)]

    def parameters_in_millions(self, data: str, model: str) -> float | None:
        """Number of parameters, in millions."""
        return self._table("generalisation", data, model).get("parameters")

    def error(self, data: str, model: str) -> Printed | None:
        """Test error."""
        return _printed(self._table("generalisation", data, model).get("error"))

    def detection(self, data: str, other: str, model: str, metric: str) -> Printed | None:
        """``auroc``, ``aupr_in`` or ``aupr_out`` against another set, in percent."""
        return _printed(self._table("ood", data, other, model).get(metric))

    def entropy(self, data: str, other: str, model: str) -> Printed | None:
        """Mean entropy on another set, in nats."""
        return _printed(self._table("entropy", data, other).get(model))

    @property
    def gap_entropies(self) -> dict[str, float]:
        """Entropy E of the 1-D experiment in the gap, in nats, by model."""
        return {model: float(value) for model, value in self._table("synthetic", "entropy").items()}

    def learnt_posterior(self, prior: tuple[float, float]) -> tuple[float, float] | None:
        """Shape and rate of the posterior that LT-NODE learnt in the 1-D experiment under a prior."""
        entries = self._table("synthetic").get("posterior", ())
        return next((tuple(entry["learnt"]) for entry in entries if tuple(entry["prior"]) == prior), None)

    def _table(self, *keys: str) -> Mapping[str, Any]:
        found: Any = self.tables
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found if isinstance(found, Mapping) else {}


def _printed(value: Any) -> Printed | None:
    return None if value is None else Printed(float(value[0]), float(value[1]))
