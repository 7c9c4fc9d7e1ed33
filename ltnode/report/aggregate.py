"""Results of several seeds together: mean and population standard deviation, as in the paper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ltnode.checks import is_finite_number
from ltnode.evaluation import Cost, ResultRow
from ltnode.report.naming import Variant, data_in_order, in_order

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A number that was measured with one or more seeds.

    Attributes:
        values: One value per seed.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return math.fsum(self.values) / len(self.values)

    @property
    def std(self) -> float:
        """Population standard deviation (ddof 0), as in the paper; 0 for one seed."""
        return math.sqrt(math.fsum((value - self.mean) ** 2 for value in self.values) / len(self.values))

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.values)

    def text(self, digits: int, scale: float = 1.0) -> str:
        """Format as mean ± standard deviation, or as a single value if there is one seed."""
        mean = f"{scale * self.mean:.{digits}f}"
        return mean if self.seeds == 1 else f"{mean} ± {scale * self.std:.{digits}f}"


@dataclass(frozen=True, eq=False)
class Band:
    """A curve over seeds.

    Attributes:
        x: Abscissae.
        mean: Mean at each abscissa, over the seeds that have a value there.
        std: Population standard deviation at each abscissa.
        seeds: Number of seeds.
    """

    x: Array
    mean: Array
    std: Array
    seeds: int


class Rows:
    """Results of many runs, for look-ups. Further keyword arguments of the methods must be part of a row's setting.

    Args:
        rows: Results of any models, data sets, seeds and protocols.
    """

    def __init__(self, rows: Iterable[ResultRow]) -> None:
        self.all = list(rows)

    def where(self, protocol: str, metric: str | None = None, data: str | None = None, **setting: Any) -> list[ResultRow]:
        """Rows of a protocol. Spreads over draws are included only if ``statistic`` is part of the setting."""
        return [
            row
            for row in self.all
            if row.protocol == protocol
            and (metric is None or row.metric == metric)
            and (data is None or row.data == data)
            and ("statistic" in row.setting) == ("statistic" in setting)
            and all(row.setting.get(key) == value for key, value in setting.items())
        ]

    def of(self, variant: Variant, protocol: str, metric: str | None, data: str, **setting: Any) -> list[ResultRow]:
        """Rows of one variant."""
        return [row for row in self.where(protocol, metric, data, **setting) if Variant.of(row) == variant]

    def number(self, variant: Variant, protocol: str, metric: str, data: str, **setting: Any) -> Measured | None:
        """A number of one variant over its seeds; None if no seed has it."""
        found = _numbers(self.of(variant, protocol, metric, data, **setting))
        values = tuple(row.number for row in found if not math.isnan(row.number))
        return Measured(values) if values else None

    def curve(self, variant: Variant, protocol: str, metric: str, data: str, **setting: Any) -> Band | None:
        """A curve of one variant over its seeds; None if no seed has it."""
        found = _curves(self.of(variant, protocol, metric, data, **setting))
        return _band(found[0].extra["x"], [row.curve for row in found]) if found else None

    def histogram(self, variant: Variant, protocol: str, metric: str, data: str, width: float, **setting: Any) -> Band | None:
        """Counts over the lower edges of fine bins as shares of wider bins, over the seeds; None if no seed has them."""
        found = [row for row in _curves(self.of(variant, protocol, metric, data, **setting)) if sum(row.curve) > 0]
        edges = found[0].extra["x"] if found else []
        if len(edges) < 2 or edges[0] >= edges[1]:
            return None
        fine = edges[1] - edges[0]
        merged = max(1, round(width / fine))
        shares = [_merged(np.array(row.curve), merged) / sum(row.curve) for row in found]
        centres = edges[0] + fine * merged * (np.arange(len(shares[0])) + 0.5)
        return _band(centres.tolist(), [share.tolist() for share in shares])

    def along(self, variant: Variant, protocol: str, metric: str, data: str, key: str, **setting: Any) -> Band | None:
        """Numbers of one variant against the setting that the protocol varied (an angle, an epsilon), over its seeds."""
        found = _numbers(self.of(variant, protocol, metric, data, **setting))
        found = [row for row in found if is_finite_number(row.setting.get(key))]
        xs = sorted({float(row.setting[key]) for row in found})
        per_seed: dict[int | None, dict[float, float]] = {}
        for row in found:
            per_seed.setdefault(row.seed, {})[float(row.setting[key])] = row.number
        curves = [[values.get(x, math.nan) for x in xs] for values in per_seed.values()]
        return _band(xs, curves) if curves else None

    def cost(self, variant: Variant, protocol: str, data: str) -> Cost | None:
        """Cost of a variant's predictions under a protocol; None if it is not known."""
        return mean_cost(self.of(variant, protocol, None, data))

    def variants(self, protocol: str, data: str | None = None) -> list[Variant]:
        """Variants with results of a protocol, in the paper's order."""
        return in_order(Variant.of(row) for row in self.where(protocol, data=data))

    def data_sets(self, protocol: str) -> list[str]:
        """Data sets with results of a protocol, in the paper's order."""
        return data_in_order(row.data for row in self.where(protocol))

    def settings(self, protocol: str, data: str, key: str) -> list[Any]:
        """Distinct values of one key of the settings, in order of appearance."""
        return list(dict.fromkeys(row.setting[key] for row in self.where(protocol, data=data) if key in row.setting))

    def seeds(self, protocol: str, data: str | None = None) -> int:
        """Largest number of seeds of any variant."""
        seeds: dict[Variant, set[int | None]] = {}
        for row in self.where(protocol, data=data):
            seeds.setdefault(Variant.of(row), set()).add(row.seed)
        return max((len(found) for found in seeds.values()), default=0)


def _numbers(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """The rows that are numbers; a file that was changed may have a curve in their place."""
    return [row for row in rows if not isinstance(row.value, tuple)]


def _curves(rows: Iterable[ResultRow]) -> list[ResultRow]:
    """The rows that are curves over the same abscissae as the first of them."""
    found = [row for row in rows if isinstance(row.value, tuple)]
    return [row for row in found if row.extra["x"] == found[0].extra["x"]]


def mean_cost(rows: Sequence[ResultRow]) -> Cost | None:
    """Mean cost of the predictions behind some rows, with the largest memory; None if no row has a cost."""
    costs = [row.cost for row in rows if row.cost is not None]
    if not costs:
        return None
    work = [cost.evaluations for cost in costs if cost.evaluations is not None]
    peaks = [cost.peak_memory_bytes for cost in costs if cost.peak_memory_bytes is not None]
    seconds = math.fsum(cost.seconds_per_1000 for cost in costs) / len(costs)
    return Cost(math.fsum(work) / len(work) if work else None, seconds, max(peaks, default=None))


def _band(x: Sequence[float], curves: Sequence[Sequence[float]]) -> Band:
    values = np.array(curves, dtype=np.float64)
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    # A point that no seed has, such as the accuracy of no predictions at all, stays a gap in the curve.
    mean = np.divide(total, count, out=np.full(len(x), np.nan), where=count > 0)
    squares = np.where(known, np.square(values - mean), 0.0).sum(axis=0)
    variance = np.divide(squares, count, out=np.full(len(x), np.nan), where=count > 0)
    return Band(np.array(x, dtype=np.float64), mean, np.sqrt(variance), len(values))


def _merged(counts: Array, merged: int) -> Array:
    return np.asarray(np.pad(counts, (0, -len(counts) % merged)).reshape(-1, merged).sum(axis=1))
