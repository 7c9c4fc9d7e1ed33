"""The operating point of a classifier: when it abstains, and how often it may call a familiar input unfamiliar."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from ltnode import files, metrics
from ltnode.checks import checked_count, is_finite_number
from ltnode.errors import CheckpointError, InputError
from ltnode.models import Prediction
from ltnode.training.run_config import check_format
from ltnode.typing import Float, Int, Tensor

FILE = "operating_point.json"
FORMAT = 2
FALSE_ALARM_RATE = 0.05
"""Rate of false alarms at which inputs are called unfamiliar, unless the user chooses another one."""
_FORMAT_1 = ("ood_score", "ood_threshold", "ood_keeps")
"""Fields of format 1, in which the largest probability decided what was foreign."""


@dataclass(frozen=True)
class OperatingPoint:
    """Thresholds that were chosen on examples of the training distribution that training did not see.

    Attributes:
        coverage: Share of these examples that the model was to answer.
        entropy_threshold: Entropy in nats above which the model abstains.
        n: Number of examples.
        data: Description of the examples.
        accuracy: Share of correct predictions among all examples.
        accuracy_kept: Share of correct predictions among the examples that the model answers.
        samples: Number of end-times (members) per prediction.
        weights: Digest of the weights that it was chosen for; None if unknown.
        false_alarm_rate: Familiarity at or below which an input is called unfamiliar: at most this share of inputs from the
            source of the training data.
    """

    coverage: float
    entropy_threshold: float
    n: int
    data: str
    accuracy: float
    accuracy_kept: float
    samples: int = 10
    weights: str | None = None
    false_alarm_rate: float = FALSE_ALARM_RATE

    def __post_init__(self) -> None:
        _check_share("coverage", self.coverage)
        check_rate(self.false_alarm_rate)
        for name in ("entropy_threshold", "accuracy", "accuracy_kept"):
            value = getattr(self, name)
            if not is_finite_number(value):
                raise InputError(f"{name} must be a finite number, not {value!r}")
        for name in ("accuracy", "accuracy_kept"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must be a share of the examples in [0, 1], not {getattr(self, name)!r}")
        for name in ("n", "samples"):
            checked_count(name, getattr(self, name))

    def abstains(self, entropy: float) -> bool:
        """Whether the model abstains from an input with this predictive entropy."""
        return entropy > self.entropy_threshold

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
        version = content.pop("format", None)
        check_format(path, version, FORMAT)
        if version == 1:
            content = {name: value for name, value in content.items() if name not in _FORMAT_1}
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


def operating_point(
    prediction: Prediction,
    labels: Int[Tensor, " N"],
    *,
    data: str,
    coverage: float = 0.95,
    false_alarm_rate: float = FALSE_ALARM_RATE,
    samples: int = 10,
    weights: str | None = None,
) -> OperatingPoint:
    """The operating point for the prediction of some examples with known labels; see `OperatingPoint` for the other arguments.

    Raises:
        InputError: The coverage is not in (0, 1], the rate is not in (0, 1), or the probabilities are invalid.
    """
    probs, entropy = prediction.probs, prediction.entropy
    threshold = abstention_threshold(entropy, coverage)
    answered = entropy <= threshold
    return OperatingPoint(
        coverage=coverage,
        entropy_threshold=threshold,
        n=probs.shape[0],
        data=data,
        accuracy=1.0 - metrics.error(probs, labels),
        accuracy_kept=1.0 - metrics.error(probs[answered], labels[answered]),
        samples=samples,
        weights=weights,
        false_alarm_rate=false_alarm_rate,
    )


def check_rate(rate: float) -> float:
    """Check a rate of false alarms, and return it.

    Raises:
        InputError: It is not a number strictly between 0 and 1.
    """
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
        raise InputError(f"a false-alarm rate must be a share of inputs strictly between 0 and 1, for example 0.05, not {rate!r}")
    return rate


def _rank(share: float, n: int, name: str) -> int:
    """``ceil(share n)``, computed with the decimal number: 0.07 x 100 is 7, not 7.000000000000001."""
    _check_share(name, share)
    return math.ceil(Fraction(str(share)) * n)


def _check_share(name: str, share: float) -> None:
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise InputError(f"{name} must be a share of the examples in (0, 1], for example 0.95, not {share!r}")
