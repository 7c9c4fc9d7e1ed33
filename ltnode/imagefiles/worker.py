"""The program of a decoding process: reads jobs from standard input, and writes pixels or a reason to standard output.

A job and its answer are one JSON object each, preceded by its length in four bytes and followed by raw bytes (files, or pixels).
The operating system ends the process when a job exceeds its CPU time, and a decoder that needs more memory than allowed fails.
The process imports only the decoder, NumPy and Pillow, so that it starts in a fraction of a second. It ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import sys
from typing import Any, BinaryIO

if __package__:
    from ltnode.imagefiles.decode import UnusableImage, decode, pixel_count
else:  # started by its path: the package itself would import torch
    from decode import UnusableImage, decode, pixel_count  # type: ignore[import-not-found,no-redef]

LENGTH = struct.Struct(">I")
_MEMORY_BYTES = 2 << 30


def write_message(stream: BinaryIO, head: dict[str, Any], content: bytes = b"") -> None:
    """Write one message."""
    encoded = json.dumps(head).encode()
    stream.write(LENGTH.pack(len(encoded)) + encoded)
    stream.write(content)
    stream.flush()


def answer(job: dict[str, Any], files: list[bytes]) -> tuple[dict[str, Any], bytes]:
    """Decode the files of a job; the answer has the notes of every file, or the reason and number of the first bad file."""
    position, total = 0, 0
    try:
        for position, data in enumerate(files):  # noqa: B007  (an error names it)
            # Headers first: a request with too many pixels must cost nothing.
            total += pixel_count(data, job["max_pixels"]) if data else 0
            if total > job["total_pixels"]:
                return {"too_many_pixels": total}, b""
        pixels, notes = [], []
        for position, data in enumerate(files):  # noqa: B007  (an error names it)
            decoded, conversions = decode(data, tuple(job["shape"]), job["max_pixels"])
            pixels.append(decoded.tobytes())
            notes.append(conversions)
    except UnusableImage as error:
        return {"reason": str(error), "file": position}, b""
    except MemoryError:
        return {"reason": "decoding the image needs too much memory", "file": position}, b""
    content = b"".join(pixels)
    return {"notes": notes, "bytes": len(content)}, content


def main() -> None:
    """Work until the input ends."""
    from PIL import Image

    Image.init()  # all plugins now, so that no job waits for them
    _limit_memory()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    write_message(sink, {"ready": True})
    patient = False
    while len(length := source.read(LENGTH.size)) == LENGTH.size:
        job = json.loads(source.read(LENGTH.unpack(length)[0]))
        files = [source.read(size) for size in job["sizes"]]
        if job["patient"] and not patient and hasattr(os, "nice"):
            patient = bool(os.nice(10))  # large images must not slow down what everybody waits for
        _limit_cpu(job["cpu_seconds"])
        head, content = answer(job, files)
        _limit_cpu(0)
        write_message(sink, head, content)


def _limit_cpu(seconds: float) -> None:
    # The default action of SIGPROF ends the process, also inside a C library that does not return to Python. Zero: no limit.
    if hasattr(signal, "ITIMER_PROF"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # not on every system
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # it writes to a pipe only


if __name__ == "__main__":
    main()
