"""Fuzz the readers of untrusted bytes for a while: ``python -m fuzz.run --seconds 60`` (in ``tests/``).

Every target runs in a process of its own with a limit on memory, and every input has a limit on time, so that a crash, a hang or
a memory bomb is found as well as a wrong exception. Inputs are a function of (target, seed, number): what was found is written to
the folder of the findings, to be added to the corpus together with a fix. The exit status is 1 if anything was found.
"""

from __future__ import annotations

import argparse
import logging
import mmap
import os
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import IO

from fuzz.targets import TARGETS, Target, check, clean_up

INPUT_SECONDS = 10
"""Limit on the processor time of one input, which does not depend on what else the machine does."""
WAITING_SECONDS = 300
"""Limit on the time of one input by the clock, for a target that waits."""
MEMORY_BYTES = 6 << 30
_FOUND = 7


def fuzz(name: str, target: Target, seed: int, seconds: float, number: mmap.mmap, log: IO[bytes]) -> None:
    """Give a target inputs until the time is over; the number of the current one is kept where the parent finds it."""
    os.dup2(log.fileno(), 2)  # C libraries write there, too
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for limit in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(limit, signal.SIG_DFL)
    until, index = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        number[:8] = struct.pack("<Q", index)
        data = target.inputs(name, seed, index)
        signal.setitimer(signal.ITIMER_PROF, INPUT_SECONDS)
        signal.alarm(WAITING_SECONDS)
        try:
            check(target, data)
        except BaseException:
            os.write(2, b"FOUND\n" + traceback.format_exc(limit=-6).encode())
            os._exit(_FOUND)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        index += 1
    number[:8] = struct.pack("<Q", index)
    os._exit(0)


def run(name: str, seed: int, seconds: float, findings: Path) -> bool:
    """Fuzz one target in a process of its own; returns whether it held."""
    target, number = TARGETS[name], mmap.mmap(-1, 8)
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            fuzz(name, target, seed, seconds, number, log)
        _, status = os.waitpid(child, 0)
        log.seek(0)
        said = log.read().decode(errors="replace")
    (index,) = struct.unpack("<Q", number[:8])
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        print(f"{name:<16} {index:>8} inputs, nothing found", flush=True)
        return True
    how = {
        _FOUND: "wrong exception",
        -signal.SIGPROF: f"over {INPUT_SECONDS} s of processor time",
        -signal.SIGALRM: f"over {WAITING_SECONDS} s",
    }.get(code, f"ended with status {code}")
    findings.mkdir(parents=True, exist_ok=True)
    path = findings / f"{name}-{seed}-{index}"
    path.write_bytes(target.inputs(name, seed, index))
    print(f"{name:<16} {how} at input {index}: {path}\n{said.partition('FOUND')[2]}", flush=True)
    return False


def main() -> int:
    """Share the time among the targets."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="by default another one every time")
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"))
    chosen = parser.parse_args()
    seed = int(time.time()) if chosen.seed is None else chosen.seed
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    print(f"seed {seed}", flush=True)
    share = chosen.seconds / len(chosen.targets)
    held = [run(name, seed, share, chosen.findings) for name in chosen.targets]
    clean_up()
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
