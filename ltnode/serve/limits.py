"""What one request may ask for, and how many may wait."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ltnode.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Limits of the server; beyond one the answer is an error with a reason, never a slow server.

    Attributes:
        body_bytes: Size of a request, counted while it arrives.
        held_bytes: Size of all bodies that are in the server at the same time; beyond it the answer is 503.
        pixels: Width times height of an uploaded picture, read from its header before it is decoded.
        images: Inputs in one request.
        samples: End-times of one prediction.
        points: Points of a trajectory or a curve.
        angles: Angles of a sweep.
        models: Models compared in one sweep.
        max_batch: Inputs of one pass through a model, collected over requests.
        max_wait_ms: How long a first request waits for others.
        max_queue: Requests that may wait for the model; one more is answered 503 at once.
        seconds: From a request's first byte to its answer, waiting included.
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
            value = getattr(self, field.name)
            whole = field.type == "int"
            fits = isinstance(value, int) and not isinstance(value, bool) if whole else isinstance(value, int | float)
            lowest = 0 if field.name == "max_wait_ms" else 1 if whole else 1e-3
            if not fits or not lowest <= value < math.inf:
                kind = "a whole number" if whole else "a number"
                raise InputError(f"{field.name} = {value!r} is impossible: a limit is {kind} of at least {lowest:g}")
