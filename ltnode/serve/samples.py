"""The sample images of the explorer page, which are drawn by code and listed in an index."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ltnode.errors import DataError

FOLDER = Path(__file__).parent / "samples"


class Sample(BaseModel):
    """One sample image for models with the input ``shape``; ``label`` is its class in the data sets named in ``data``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    title: str
    file: str
    shape: tuple[int, ...]
    label: str | None
    data: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Path of the PNG file."""
        return FOLDER / self.file


@cache
def samples() -> Mapping[str, Sample]:
    """All samples by id, in the order of the index; a damaged index or a missing file raises a DataError."""
    index = FOLDER / "index.json"
    try:
        listed = TypeAdapter(list[Sample]).validate_json(index.read_bytes())
    except (OSError, ValidationError) as error:
        raise DataError(f"{index} is damaged or missing ({error}); install ltnode again") from error
    missing = [sample.file for sample in listed if not sample.path.is_file()]
    if missing:
        raise DataError(f"{index} lists missing files: {', '.join(missing)}; install ltnode again")
    return {sample.id: sample for sample in listed}
