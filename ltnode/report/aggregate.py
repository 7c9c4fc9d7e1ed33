"""Rows of several seeds together: mean and population standard deviation, as the paper reports them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        mean: Mean at each, over the seeds that have a value there.
        std: Population standard deviation at each.
        seeds: How many runs are behind it.
    """

    x: Array
    mean: Array
    std: Array
    seeds: int


class Rows:
    """Results of many runs, to be asked for.

    Args:
        rows: Of any models, data, seeds and protocols.
    """

    def __init__(self, rows: Iterable[ResultRow]) -> None:
        self.all = list(rows)

    def where(
        self, protocol: str, metric: str | None = None, data: str | None = None, setting: Mapping[str, Any] | None = None
    ) -> list[ResultRow]:
        """Rows of a protocol; ``setting`` must be part of theirs. Spreads over draws are left out unless asked for."""
        wanted = dict(setting or {})
        spreads = "statistic" in wanted
        return [
            row
            for row in self.all
            if row.protocol == protocol
            and (metric is None or row.metric == metric)
            and (data is None or row.data == data)
            and ("statistic" in row.setting) == spreads
            and all(row.setting.get(key) == value for key, value in wanted.items())
        ]

    def variants(self, protocol: str, data: str | None = None) -> list[Variant]:
        """Variants with results of a protocol, in the paper's order."""
        return in_order(Variant.of(row) for row in self.where(protocol, data=data))

    def number(
        self, variant: Variant, protocol: str, metric: str, data: str, setting: Mapping[str, Any] | None = None
    ) -> Measured | None:
        """A number of one variant over its seeds; None if no seed has it."""
        found = [r.number for r in self.where(protocol, metric, data, setting) if Variant.of(r) == variant]
        values = tuple(value for value in found if not math.isnan(value))
        return Measured(values) if values else None

    def curve(
        self, variant: Variant, protocol: str, metric: str, data: str, setting: Mapping[str, Any] | None = None
    ) -> Band | None:
        """A curve of one variant over its seeds; None where there is none."""
        found = [r for r in self.where(protocol, metric, data, setting) if Variant.of(r) == variant]
        return _band(found[0].extra["x"], [r.curve for r in found]) if found else None

    def histogram(
        self, variant: Variant, protocol: str, metric: str, data: str, width: float, setting: Mapping[str, Any] | None = None
    ) -> Band | None:
        """Counts per bin (curves over the bins' lower edges) as shares per wider bin, at its centre, over the seeds."""
        found = [r for r in self.where(protocol, metric, data, setting) if Variant.of(r) == variant]
        if not found:
            return None
        edges = found[0].extra["x"]
        fine = edges[1] - edges[0]
        merged = max(1, round(width / fine))
        shares = [_merged(np.array(r.curve), merged) / sum(r.curve) for r in found]
        centres = edges[0] + fine * merged * (np.arange(len(shares[0])) + 0.5)
        return _band(centres.tolist(), [share.tolist() for share in shares])

    def along(
        self, variant: Variant, protocol: str, metric: str, data: str, key: str, setting: Mapping[str, Any] | None = None
    ) -> Band | None:
        """Numbers of one variant against what the protocol varied (an angle, an epsilon), over its seeds."""
        found = [r for r in self.where(protocol, metric, data, setting) if Variant.of(r) == variant and key in r.setting]
        xs = sorted({float(r.setting[key]) for r in found})
        per_seed: dict[int | None, dict[float, float]] = {}
        for row in found:
            per_seed.setdefault(row.seed, {})[float(row.setting[key])] = row.number
        curves = [[values.get(x, math.nan) for x in xs] for values in per_seed.values()]
        return _band(xs, curves) if curves else None

    def cost(self, variant: Variant, protocol: str, data: str) -> Cost | None:
        """Mean cost of a variant's predictions under a protocol (the largest memory); None where it is not known."""
        costs = [r.cost for r in self.where(protocol, data=data) if Variant.of(r) == variant and r.cost is not None]
        if not costs:
            return None
        work = [c.evaluations for c in costs if c.evaluations is not None]
        peaks = [c.peak_memory_bytes for c in costs if c.peak_memory_bytes is not None]
        seconds = sum(c.seconds_per_1000 for c in costs) / len(costs)
        return Cost(sum(work) / len(work) if work else None, seconds, max(peaks, default=None))

    def data_sets(self, protocol: str) -> list[str]:
        """Data sets with results of a protocol, in the paper's order."""
        return data_in_order(row.data for row in self.where(protocol))

    def settings(self, protocol: str, data: str, key: str) -> list[Any]:
        """Distinct values of a key of the settings, in the order of appearance."""
        return list(dict.fromkeys(row.setting[key] for row in self.where(protocol, data=data) if key in row.setting))

    def seeds(self, protocol: str, data: str | None = None) -> int:
        """Largest number of seeds of any variant."""
        seeds: dict[Variant, set[int | None]] = {}
        for row in self.where(protocol, data=data):
            seeds.setdefault(Variant.of(row), set()).add(row.seed)
        return max((len(found) for found in seeds.values()), default=0)


def _band(x: Sequence[float], curves: Sequence[Sequence[float]]) -> Band:
    values = np.array(curves, dtype=np.float64)
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    # A point that no seed has (accuracy of no predictions at all) stays a gap in the curve.
    mean = np.divide(total, count, out=np.full(len(x), np.nan), where=count > 0)
    squares = np.where(known, np.square(values - mean), 0.0).sum(axis=0)
    variance = np.divide(squares, count, out=np.full(len(x), np.nan), where=count > 0)
    return Band(np.array(x, dtype=np.float64), mean, np.sqrt(variance), len(values))


def _merged(counts: Array, merged: int) -> Array:
    return np.asarray(np.pad(counts, (0, -len(counts) % merged)).reshape(-1, merged).sum(axis=1))
