"""How much one request may ask for, and how many requests may wait."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields

from ltnode.checks import checked_count, checked_number


@dataclass(frozen=True)
class Limits:
    """Limits of the server; a request beyond one is answered at once with an error that gives the reason.

    Attributes:
        body_bytes: Largest size of a request body, counted while it arrives.
        held_bytes: Largest total size of all request bodies in the server; beyond it the answer is 503.
        pixels: Largest width times height of an uploaded image, read from its header before it is decoded.
        images: Most inputs in one request.
        samples: Most end-times of one prediction.
        points: Most points of a trajectory or a curve.
        angles: Most angles of a sweep.
        models: Most models compared in one sweep.
        max_batch: Most inputs in one batch, collected over requests.
        max_wait_ms: How long the first request of a batch waits for others.
        max_queue: Most requests that may wait for a model; one more is answered 503 at once.
        seconds: Longest time from the first byte of a request to its answer, including the time in the queue.
    """

    body_bytes: int = 8 * 1024 * 1024
    held_bytes: int = 128 * 1024 * 1024
    pixels: int = 16_000_000
    images: int = 64
    samples: int = 100
    points: int = 500
    angles: int = 61
    models: int = 8
    max_batch: int = 64
    max_wait_ms: int | float = 4.0
    max_queue: int = 256
    seconds: int | float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type == "int":
                checked_count(name, value)
            else:
                lowest = 0.0 if name == "max_wait_ms" else 1e-3
                checked_number(name, value, f"a finite number >= {lowest:g}", lowest, sys.float_info.max)
