"""The sample pictures that come with the page: own drawings, listed in an index."""

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
    """One picture.

    Attributes:
        name: Its id.
        title: What people see.
        shape: (C, H, W) of the models that it is made for.
        label: Name of its class, under the data sets of ``data`` only.
        data: Names of data sets.
        file: The PNG file.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    label: str | None
    data: tuple[str, ...]
    file: Path

    def label_for(self, data: str | None) -> str | None:
        """The class that a model of a data set should give it; None where there is no right answer."""
        return self.label if data in self.data else None


@lru_cache(maxsize=4)
def samples(folder: Path = FOLDER) -> Mapping[str, Sample]:
    """All of them by id, in the order of the index.

    Raises:
        DataError: The index is damaged, or names a file that is not there.
    """
    index = folder / "index.json"
    try:
        entries = json.loads(index.read_text(encoding="utf-8"))
        found = [
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
    missing = [sample.file.name for sample in found if not sample.file.is_file()]
    if missing:
        raise DataError(f"{index} names files that are not there: {', '.join(missing)}; install ltnode again")
    return {sample.name: sample for sample in found}


def samples_of(shape: Sequence[int]) -> list[Sample]:
    """Those made for inputs of a shape."""
    return [sample for sample in samples().values() if sample.shape == tuple(shape)]
