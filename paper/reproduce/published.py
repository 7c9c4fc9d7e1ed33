"""The values that the paper prints, by name."""

from __future__ import annotations

from typing import Any, NamedTuple

from ltnode.report.published import Published


class Printed(NamedTuple):
    """A number as the paper prints it: mean and population standard deviation over 5 initialisations.

    ``seeds`` is 0 for a number that the paper prints without a deviation; ``std`` is then what the judge uses in its place.
    """

    mean: float
    std: float
    seeds: int = 5

    @property
    def text(self) -> str:
        """Mean ± standard deviation."""
        return f"{self.mean:.3f} ± {self.std:.3f}"


class PaperValues(Published):
    """The content of ``paper/published.toml``; every look-up returns None if the paper prints nothing."""

    def parameters_in_millions(self, data: str, model: str) -> float | None:
        """Number of parameters, in millions."""
        value: float | None = self.value("generalisation", data, model, "parameters")
        return value

    def error(self, data: str, model: str) -> Printed | None:
        """Test error."""
        return _printed(self.value("generalisation", data, model, "error"))

    def detection(self, data: str, other: str, model: str, metric: str) -> Printed | None:
        """``auroc``, ``aupr_in`` or ``aupr_out`` against another data set, in percent."""
        return _printed(self.value("ood", data, other, model, metric))

    def entropy(self, data: str, other: str, model: str) -> Printed | None:
        """Mean entropy on another data set, in nats."""
        return _printed(self.value("entropy", data, other, model))

    @property
    def gap_entropies(self) -> dict[str, float]:
        """Entropy E of the 1-D experiment in the gap, in nats, by model."""
        return {model: float(value) for model, value in (self.value("synthetic", "entropy") or {}).items()}

    def learnt_posterior(self, prior: tuple[float, float]) -> tuple[float, float] | None:
        """Shape and rate of the posterior that LT-NODE learnt in the 1-D experiment under a prior."""
        entries = self.value("synthetic", "posterior") or ()
        learnt = next((entry["learnt"] for entry in entries if tuple(entry["prior"]) == prior), None)
        return None if learnt is None else (float(learnt[0]), float(learnt[1]))


def _printed(value: Any) -> Printed | None:
    return None if value is None else Printed(float(value[0]), float(value[1]))
