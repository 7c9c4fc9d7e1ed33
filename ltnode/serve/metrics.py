"""The metrics at /metrics, in the text format of Prometheus."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ltnode.trained import PredictionRow

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_FAMILIARITIES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0)
_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters, histograms and gauges of one application."""

    def __init__(self, queue_length: Callable[[], int | float]) -> None:
        # Each application has a registry of its own: several may run in one process.
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("ltnode_requests", "Answered requests.", ("method", "path", "status"), registry=registry)
        self.latency = Histogram(
            "ltnode_request_seconds", "Time from a request to its answer.", ("path",), buckets=_LATENCY_SECONDS, registry=registry
        )
        self.batches = Histogram(
            "ltnode_batch_inputs", "Inputs in one batch.", ("model",), buckets=_BATCH_SIZES, registry=registry
        )
        self.familiarity = Histogram(
            "ltnode_familiarity",
            "Familiarity of predicted inputs: uniform between 0 and 1 while they come from the source of the calibration.",
            ("model",),
            buckets=_FAMILIARITIES,
            registry=registry,
        )
        self.unfamiliar = Counter("ltnode_unfamiliar_inputs", "Inputs called unfamiliar.", ("model",), registry=registry)
        self.refused = Counter("ltnode_refused", "Requests refused before any work.", ("why",), registry=registry)
        queue = Gauge("ltnode_queue_length", "Requests that wait for a model.", registry=registry)
        queue.set_function(queue_length)
        # prometheus_client's own process metrics exist on Linux only.
        memory = Gauge("process_resident_memory_bytes", "Resident memory in bytes.", registry=registry)
        memory.set_function(resident_memory)

    def count_rows(self, model: str, rows: Sequence[PredictionRow]) -> None:
        """Count the familiarity of predicted inputs, so that a drift of the inputs is seen."""
        for row in rows:
            if row.familiarity is not None:
                self.familiarity.labels(model).observe(row.familiarity)
                self.unfamiliar.labels(model).inc(int(row.unfamiliar or False))

    def text(self) -> str:
        """All metrics in the text format, version 0.0.4."""
        return generate_latest(self._registry).decode()


def resident_memory() -> int:
    """Resident memory of this process in bytes; its peak where the system does not report the current value, 0 on Windows."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
