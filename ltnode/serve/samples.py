"""The sample images of the explorer page, which are drawn by code and listed in an index."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ltnode.errors import DataError

FOLDER = Path(__file__).parent / "samples"


@dataclass(frozen=True)
class Sample:
    """One sample image.

    Attributes:
        name: Id of the sample.
        title: Title on the page.
        shape: Input shape (C, H, W) of the models that it is made for.
        label: Name of its class in the data sets ``data``.
        data: Names of the data sets in which it has a class.
        file: Path of the PNG file.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    label: str | None
    data: tuple[str, ...]
    file: Path

    def label_for(self, data: str | None) -> str | None:
        """Correct class for a model trained on a data set; None if there is no correct answer."""
        return self.label if data in self.data else None


@lru_cache(maxsize=4)
def samples(folder: Path = FOLDER) -> Mapping[str, Sample]:
    """All samples by id, in the order of the index.

    Raises:
        DataError: The index is damaged, or names a missing file.
    """
    index = folder / "index.json"
    try:
        entries = json.loads(index.read_text(encoding="utf-8"))
        listed = [
            Sample(
                str(entry["id"]),
                str(entry["title"]),
                tuple(int(n) for n in entry["shape"]),
                entry["label"],
                tuple(entry["data"]),
                folder / Path(entry["file"]).name,
            )
            for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{index} is damaged or missing ({error}); install ltnode again") from error
    missing = [sample.file.name for sample in listed if not sample.file.is_file()]
    if missing:
        raise DataError(f"{index} lists missing files: {', '.join(missing)}; install ltnode again")
    return {sample.name: sample for sample in listed}


def samples_of(shape: Sequence[int]) -> list[Sample]:
    """The samples for models with this input shape."""
    return [sample for sample in samples().values() if sample.shape == tuple(shape)]
