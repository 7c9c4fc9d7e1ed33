"""Counters, histograms and gauges in the text format that Prometheus reads."""

from __future__ import annotations

import os
import sys
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

LATENCY_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Counter:
    """Counts per combination of labels; only the server names labels, so there are few."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...] = ()) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._values: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._lock = threading.Lock()

    def add(self, *labels: str, amount: int | float = 1.0) -> None:
        """Add to the count of these label values."""
        with self._lock:
            self._values[labels] += amount

    def value(self, *labels: str) -> float:
        """The count of these label values; of all of them together without any."""
        with self._lock:
            return self._values[labels] if labels or not self.labels else sum(self._values.values())

    def lines(self) -> list[str]:
        """The text format."""
        with self._lock:
            values = sorted(self._values.items()) or ([((), 0.0)] if not self.labels else [])
        head = [f"# HELP {self.name} {self.text}", f"# TYPE {self.name} counter"]
        return head + [f"{self.name}{_labels(self.labels, key)} {_number(value)}" for key, value in values]


class Histogram:
    """How often values fell below each of some bounds, per combination of labels."""

    def __init__(self, name: str, text: str, bounds: Sequence[int | float], labels: tuple[str, ...] = ()) -> None:
        self.name, self.text, self.bounds, self.labels = name, text, tuple(bounds), labels
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._lock = threading.Lock()

    def observe(self, value: int | float, *labels: str) -> None:
        """Note one value."""
        with self._lock:
            counts = self._counts.setdefault(labels, [0] * (len(self.bounds) + 1))
            counts[bisect_left(self.bounds, value)] += 1
            self._sums[labels] += value

    def lines(self) -> list[str]:
        """The text format: cumulative buckets, sum and count."""
        result = [f"# HELP {self.name} {self.text}", f"# TYPE {self.name} histogram"]
        names = (*self.labels, "le")
        with self._lock:
            for key, counts in sorted(self._counts.items()):
                below = 0
                for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
                    below += count
                    result.append(f"{self.name}_bucket{_labels(names, (*key, _number(bound)))} {below}")
                result.append(f"{self.name}_sum{_labels(self.labels, key)} {_number(self._sums[key])}")
                result.append(f"{self.name}_count{_labels(self.labels, key)} {below}")
        return result


class Gauge:
    """A value that is read when it is asked for."""

    def __init__(self, name: str, text: str, read: Callable[[], int | float]) -> None:
        self.name, self.text, self.read = name, text, read

    def lines(self) -> list[str]:
        """The text format."""
        return [f"# HELP {self.name} {self.text}", f"# TYPE {self.name} gauge", f"{self.name} {_number(self.read())}"]


class Metrics:
    """Everything that /metrics shows."""

    def __init__(self, queue_length: Callable[[], int | float]) -> None:
        self.requests = Counter("ltnode_requests_total", "Requests answered.", ("method", "path", "status"))
        self.latency = Histogram("ltnode_request_seconds", "From the request to its answer.", LATENCY_SECONDS, ("path",))
        self.batches = Histogram("ltnode_batch_inputs", "Inputs of one pass through a model.", BATCH_SIZES, ("model",))
        self.refused = Counter("ltnode_refused_total", "Requests refused before any work.", ("why",))
        self._all = (
            self.requests,
            self.latency,
            self.batches,
            self.refused,
            Gauge("ltnode_queue_length", "Requests that wait for a model.", queue_length),
            Gauge("process_resident_memory_bytes", "Resident memory.", resident_memory),
        )

    def text(self) -> str:
        """The text format, version 0.0.4."""
        return "\n".join(line for metric in self._all for line in metric.lines()) + "\n"


def resident_memory() -> int:
    """Resident memory of this process in bytes; where the system does not tell, the most it ever was."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _number(value: int | float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
