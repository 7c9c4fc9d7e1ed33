"""What makes an input unfamiliar: columns of a table, or places in an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ltnode.device import product_precision
from ltnode.errors import InputError
from ltnode.models.familiar_model import FamiliarModel
from ltnode.trained.model import Raw, TrainedModel
from ltnode.typing import Float, Tensor

_TOP = 3
"""Number of columns that a description names."""
_ROWS, _COLUMNS = ("top", "middle", "bottom"), ("left", "centre", "right")
_SPREAD = 2 / 9
"""A ninth of an image is named if it holds more than twice its share of the explanation."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """How much of the distance each part of an input explains.

    Attributes:
        falls: By how much the distance falls if a part is replaced by its mean over the training inputs: (D,) for the columns
            of a table, (rows, columns) for the cells of an image. Negative where the mean is less familiar than the input.
    """

    falls: Float[Tensor, "*parts"]

    @property
    def shares(self) -> Float[Tensor, "*parts"]:
        """Parts of the sum of all falls, which are at least 0 and sum to 1; all 0 if the distance falls nowhere."""
        positive = self.falls.clamp_min(0.0)
        return positive / positive.sum().clamp_min(torch.finfo(positive.dtype).tiny)

    def to_json(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """All columns in the order of their shares, or the map of an image, as JSON types."""
        if self.falls.ndim == 2:
            return {"description": self.describe(), "map": self.falls.tolist()}
        shares, falls = self.shares.tolist(), self.falls.tolist()
        order = sorted(range(len(shares)), key=lambda column: -falls[column])
        return {
            "description": self.describe(names),
            "columns": [{"column": _name(column, names), "share": shares[column], "fall": falls[column]} for column in order],
        }

    def describe(self, names: Sequence[str] = ()) -> str:
        """One phrase for people: the columns with the largest shares, or the part of the image with the largest share."""
        shares = self.shares
        if not bool(shares.any()):
            return "no single part"
        if shares.ndim == 1:
            best = shares.topk(min(_TOP, len(shares)))
            named = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            return ", ".join(f"{share:.0%} column {_name(column, names)}" for share, column in named if share >= 0.01)
        ninths = [[part.sum() for part in band.tensor_split(3, dim=1)] for band in shares.tensor_split(3, dim=0)]
        largest = max((float(ninths[i][j]), i, j) for i in range(3) for j in range(3))
        if largest[0] < _SPREAD:
            return "spread over the whole image"
        share, row, column = largest
        place = "in the centre" if (row, column) == (1, 1) else f"at the {_ROWS[row]} {_COLUMNS[column]}"
        return f"{share:.0%} of it {place}"


def explain(trained: TrainedModel, raw: Raw) -> list[Explanation]:
    """Explain the distances of raw inputs; each costs as many predictions as it has columns, or up to 64 for an image.

    Raises:
        InputError: The predictions of the model have no distance.
    """
    return explain_inputs(trained, trained.prepare(raw))


def explain_inputs(trained: TrainedModel, x: Float[Tensor, "B *shape"]) -> list[Explanation]:
    """Explain the distances of network inputs; see `explain`."""
    if not isinstance(trained.model, FamiliarModel) or not trained.has_familiarity:
        raise InputError(f"{trained.flag_problem}: there is no distance to explain")
    with product_precision("fp32"):
        groups = None if trained.schema is None else trained.schema.feature_columns
        falls = trained.model.attribute_distance(x, groups).double().cpu()
    return [Explanation(part) for part in falls]


def part_names(trained: TrainedModel) -> tuple[str, ...]:
    """Names of the parts of an explanation, the columns of a table; none for other inputs."""
    return () if trained.schema is None else tuple(column.name for column in trained.schema.columns)


def _name(column: int, names: Sequence[str]) -> str:
    return names[column] if names else str(column + 1)
