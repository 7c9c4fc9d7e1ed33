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
        request_pixels: Largest number of pixels of all images in one request.
        decode_seconds: Most processor time for decoding the images of one request.
        decoders: Number of decoding processes, every second one of them for images that take long.
        images: Most inputs in one request.
        samples: Most end-times of one prediction.
        points: Most points of a trajectory or a curve.
        angles: Most angles of a sweep.
        models: Most models compared in one sweep.
        max_batch: Most inputs in one batch, collected over requests.
        max_wait_ms: How long the first request of a batch waits for others that are being received or decoded.
        max_queue: Most requests that may wait for a model; one more is answered 503 at once.
        seconds: Longest time from the first byte of a request to its answer, including the time in the queue.
        sweep_seconds: Longest time of a sweep, which then answers with the angles that are done.
        header_seconds: Longest time for the header of a request to arrive, and of a connection without a request.
        stall_seconds: Longest pause between two parts of a body.
        connections: Most open connections; beyond it, those that wait for a request are closed, oldest first.
        client_connections: Most open connections of one client.
        grace_seconds: How long accepted requests may take after SIGTERM.
    """

    body_bytes: int = 8 * 1024 * 1024
    held_bytes: int = 128 * 1024 * 1024
    pixels: int = 16_000_000
    request_pixels: int = 32_000_000
    decode_seconds: int | float = 2.0
    decoders: int = 2
    images: int = 64
    samples: int = 100
    points: int = 500
    angles: int = 61
    models: int = 8
    max_batch: int = 64
    max_wait_ms: int | float = 4.0
    max_queue: int = 256
    seconds: int | float = 30.0
    sweep_seconds: int | float = 5.0
    header_seconds: int | float = 10.0
    stall_seconds: int | float = 5.0
    connections: int = 512
    client_connections: int = 128
    grace_seconds: int | float = 6.0

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if field.type == "int":
                checked_count(name, value)
            else:
                lowest = 0.0 if name == "max_wait_ms" else 1e-3
                checked_number(name, value, f"a finite number >= {lowest:g}", lowest, sys.float_info.max)
