"""The hypotheses: what differs, why it might, and which run tests it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ltnode.errors import ConfigError, unknown_name
from paper.reproduce.causes.again import CHANGES
from paper.reproduce.images.grid import STANDARD

MEASURES = ("error", "auroc", "fgsm", "attacks", "rate", "gap-entropy")
READINGS = {
    "attacks": ("pixel", "weakest", "without-node-gp"),
    "error": ("five-draws",),
    "auroc": ("five-draws", "entropy-score"),
}
"""Other readings of the recorded runs, by measure."""
_IMAGES, _ONE_DIMENSIONAL = ("error", "auroc", "fgsm"), ("rate", "gap-entropy")


@dataclass(frozen=True)
class Cause:
    """One hypothesis.

    Attributes:
        measure: What differs: ``"error"``, ``"auroc"`` and ``"fgsm"`` (mean error over the strengths of an attack) of an image
            experiment, ``"attacks"`` (how many claims on attacks are reproduced), ``"rate"`` (of the 1-D posterior of LT-NODE),
            or ``"gap-entropy"`` (E of the 1-D experiment).
        hypothesis: Why it might differ.
        data: Data set of an image experiment.
        model: The model whose number differs.
        target: ``"printed"``, or the model whose number it should reach.
        preset: Preset of the run that tests the hypothesis.
        variant: Variant of that run.
        reading: Another reading of the recorded runs, in place of a run.
        again: Another way of predicting with a stored network, in place of a run: a key of `again.CHANGES`.
    """

    measure: str
    hypothesis: str
    data: str = ""
    model: str = "lt-node"
    target: str = "printed"
    preset: str = "paper"
    variant: str = ""
    reading: str = ""
    again: str = ""

    @property
    def is_image(self) -> bool:
        """Whether an image experiment tests it."""
        return self.measure in _IMAGES

    @property
    def command(self) -> str:
        """The command that tests it."""
        if self.again:
            protocol = {"error": "clean", "auroc": "ood", "fgsm": "fgsm"}[self.measure]
            run = f"zoo/{self.model}-{self.data}-paper"
            return f"ltnode reproduce again {run} --changes {self.again} --protocols {protocol}"
        if self.is_image and not self.reading:
            chosen = f"--data {self.data} --models {self.model} --presets {self.preset} --variants {self.variant or STANDARD}"
            return f"ltnode reproduce images {chosen}"
        return f"ltnode reproduce synthetic --models {self.variant}" if self.variant else "ltnode reproduce claims"


def read_causes(path: Path) -> list[Cause]:
    """Read the hypotheses; without a file there are none.

    Raises:
        ConfigError: The file is not TOML, or an entry has an unknown key or value.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("causes", [])
    except FileNotFoundError:
        return []
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the hypotheses in {path}: {error}") from error
    return [_checked(path, entry) for entry in entries]


def _checked(path: Path, entry: Mapping[str, Any]) -> Cause:
    known = [field.name for field in fields(Cause)]
    for key, value in entry.items():
        if key not in known:
            raise ConfigError(f"{path}: {unknown_name('key of a hypothesis', key, known)}")
        if not isinstance(value, str):
            raise ConfigError(f"{path}: {key} must be a string, not {value!r}")
    if "hypothesis" not in entry or "measure" not in entry:
        raise ConfigError(f"{path}: a hypothesis needs measure and hypothesis, not only {', '.join(entry) or 'nothing'}")
    cause = Cause(**entry)
    if cause.measure not in MEASURES:
        raise ConfigError(f"{path}: {unknown_name('measure', cause.measure, MEASURES)}")
    readings = READINGS.get(cause.measure, ())
    if (cause.reading or cause.measure == "attacks") and cause.reading not in readings:
        raise ConfigError(f"{path}: {unknown_name(f'reading of {cause.measure}', cause.reading, readings)}")
    if cause.again and (cause.again not in CHANGES or not cause.is_image):
        raise ConfigError(f"{path}: {unknown_name('way of predicting on images', cause.again, CHANGES)}")
    if cause.measure in _ONE_DIMENSIONAL and not cause.variant:
        raise ConfigError(f"{path}: a hypothesis on the 1-D experiment needs the variant that tests it")
    tested = cause.variant or cause.preset != "paper" or cause.reading or cause.again
    if cause.is_image and not (cause.data and tested):
        raise ConfigError(f"{path}: a hypothesis on images needs data, and a variant, a reading, again, or another preset")
    return cause
