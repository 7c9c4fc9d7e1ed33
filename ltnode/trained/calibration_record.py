"""The record of the examples among which distances are ranked: calibration.json in a run folder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltnode import files
from ltnode.checks import checked_count
from ltnode.errors import CheckpointError, InputError
from ltnode.training.run_config import check_format

FILE = "calibration.json"
FORMAT = 1


@dataclass(frozen=True)
class CalibrationRecord:
    """The examples whose distances model.safetensors keeps, so that a familiarity is a rank among them.

    Attributes:
        n: Number of examples.
        data: Description of the examples.
        weights: Digest of the weights that gave the distances; None if unknown.
    """

    n: int
    data: str
    weights: str | None = None

    def __post_init__(self) -> None:
        checked_count("n", self.n)
        if not isinstance(self.data, str) or not isinstance(self.weights, str | None):
            raise InputError(f"data and weights must be text, not {self.data!r} and {self.weights!r}")

    @property
    def smallest_rate(self) -> float:
        """Smallest false-alarm rate at which an input can be called unfamiliar, ``1 / (n + 1)``."""
        return 1 / (self.n + 1)

    def to_json(self) -> dict[str, Any]:
        """All values as JSON types."""
        return {"format": FORMAT, **dataclasses.asdict(self), "smallest_rate": self.smallest_rate}

    def save(self, folder: Path | str) -> Path:
        """Write it into the folder of its model, and return the path of the file.

        Raises:
            CheckpointError: The file cannot be written.
        """
        path = Path(folder) / FILE
        files.write_json(path, self.to_json())
        return path

    @classmethod
    def read(cls, folder: Path | str) -> CalibrationRecord | None:
        """Read the record of a run folder; None if it has none.

        Raises:
            CheckpointError: The file is damaged or was not written by ltnode.
        """
        path = Path(folder) / FILE
        if not path.exists():
            return None
        content = files.read_json(path, lambda value: isinstance(value, dict), "a folder with a record of its calibration")
        check_format(path, content.pop("format", None), FORMAT)
        smallest = content.pop("smallest_rate", None)
        try:
            record = cls(**content)
            if smallest != record.smallest_rate:
                raise InputError(f"smallest_rate must be {record.smallest_rate!r} for {record.n} examples, not {smallest!r}")
        except (TypeError, InputError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}); delete it, then calibrate again with: ltnode calibrate RUN --data NEW"
            ) from error
        return record
