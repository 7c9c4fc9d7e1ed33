"""The operating point of a classifier: it abstains above an entropy, and calls inputs below a score out-of-distribution."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ltnode import files, metrics
from ltnode.checks import checked_count
from ltnode.errors import CheckpointError, InputError, unknown_name
from ltnode.models import Prediction
from ltnode.training.run_config import check_format
from ltnode.typing import Float, Int, Tensor

FILE = "operating_point.json"
FORMAT = 1
DEFAULT_SCORE = "max_probability"

SCORES: Mapping[str, Callable[[Any], Tensor]] = {
    "max_probability": lambda p: p.probs.amax(1),
    "entropy": lambda p: -p.entropy,
    "mutual_information": lambda p: -p.epistemic,
}
"""Scores of a `Prediction` (or of its columns), larger = more in-distribution; the paper uses the first."""


@dataclass(frozen=True)
class OperatingPoint:
    """Thresholds that were chosen on examples of the training distribution that training did not see.

    Attributes:
        coverage: Share of these examples that the model was to answer.
        entropy_threshold: Entropy in nats above which the model abstains.
        ood_score: Name of the score, one of `SCORES`; larger = more in-distribution.
        ood_threshold: Score below which an input is called out-of-distribution.
        ood_keeps: Share of these examples that were to be accepted as in-distribution.
        n: Number of examples.
        data: Description of the examples.
        accuracy: Share of correct predictions among all examples.
        accuracy_kept: Share of correct predictions among the examples that the model answers.
        samples: Number of end-times (members) per prediction.
        weights: Digest of the weights that it was chosen for; None if unknown.
    """

    coverage: float
    entropy_threshold: float
    ood_score: str
    ood_threshold: float
    ood_keeps: float
    n: int
    data: str
    accuracy: float
    accuracy_kept: float
    samples: int = 10
    weights: str | None = None

    def __post_init__(self) -> None:
        _check_share("coverage", self.coverage)
        _check_share("ood_keeps", self.ood_keeps)
        if self.ood_score not in SCORES:
            raise InputError(unknown_name("out-of-distribution score", self.ood_score, SCORES))
        for name in ("entropy_threshold", "ood_threshold", "accuracy", "accuracy_kept"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(f"{name} must be a finite number, not {value!r}")
        for name in ("n", "samples"):
            checked_count(name, getattr(self, name))

    def abstains(self, entropy: float) -> bool:
        """Whether the model abstains from an input with this predictive entropy."""
        return entropy > self.entropy_threshold

    def is_ood(self, score: float) -> bool:
        """Whether an input with this ``ood_score`` is called out-of-distribution."""
        return score < self.ood_threshold

    def to_json(self) -> dict[str, Any]:
        """All values as JSON types."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    def save(self, folder: Path | str) -> Path:
        """Write it into the folder of its model, and return the path of the file.

        Raises:
            CheckpointError: The file cannot be written.
        """
        path = Path(folder) / FILE
        files.write_json(path, self.to_json())
        return path

    @classmethod
    def read(cls, folder: Path | str) -> OperatingPoint | None:
        """Read the operating point of a run folder; None if it has none.

        Raises:
            CheckpointError: The file is damaged or was not written by ltnode.
        """
        path = Path(folder) / FILE
        if not path.exists():
            return None
        content = files.read_json(path, lambda value: isinstance(value, dict), "a folder with an operating point")
        check_format(path, content.pop("format", None), FORMAT)
        try:
            return cls(**content)
        except (TypeError, InputError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); delete it, then choose a new one with: ltnode operating-point RUN"
            ) from error


def abstention_threshold(entropy: Float[Tensor, " N"], coverage: float) -> float:
    """The smallest entropy t with ``P(entropy <= t) >= coverage``, which is the ceil(coverage N)-th smallest.

    Without ties, the share of answered examples exceeds ``coverage`` by less than 1/N.
    """
    return entropy.sort().values[_rank(coverage, entropy.numel(), "coverage") - 1].item()


def acceptance_threshold(score: Float[Tensor, " N"], keeps: float) -> float:
    """The largest score t with ``P(score >= t) >= keeps``, which is the ceil(keeps N)-th largest, as in `metrics.fpr95`."""
    return score.sort(descending=True).values[_rank(keeps, score.numel(), "keeps") - 1].item()


def operating_point(
    prediction: Prediction,
    labels: Int[Tensor, " N"],
    *,
    data: str,
    coverage: float = 0.95,
    ood_score: str = DEFAULT_SCORE,
    ood_keeps: float = 0.95,
    samples: int = 10,
    weights: str | None = None,
) -> OperatingPoint:
    """The operating point for the prediction of some examples with known labels; see `OperatingPoint` for the other arguments.

    Raises:
        InputError: A share is not in (0, 1], the score is unknown, or the probabilities are invalid.
    """
    if ood_score not in SCORES:
        raise InputError(unknown_name("out-of-distribution score", ood_score, SCORES))
    probs, entropy = prediction.probs, prediction.entropy
    threshold = abstention_threshold(entropy, coverage)
    answered = entropy <= threshold
    return OperatingPoint(
        coverage=coverage,
        entropy_threshold=threshold,
        ood_score=ood_score,
        ood_threshold=acceptance_threshold(SCORES[ood_score](prediction), ood_keeps),
        ood_keeps=ood_keeps,
        n=probs.shape[0],
        data=data,
        accuracy=1.0 - metrics.error(probs, labels),
        accuracy_kept=1.0 - metrics.error(probs[answered], labels[answered]),
        samples=samples,
        weights=weights,
    )


def _rank(share: float, n: int, name: str) -> int:
    """``ceil(share n)``, computed with the decimal number: 0.07 x 100 is 7, not 7.000000000000001."""
    _check_share(name, share)
    return math.ceil(Fraction(str(share)) * n)


def _check_share(name: str, share: float) -> None:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise InputError(f"{name} must be a share of the examples in (0, 1], for example 0.95, not {share!r}")
