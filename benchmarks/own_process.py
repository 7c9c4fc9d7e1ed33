"""Rows of a benchmark that needs a separate process, and what a command of ltnode costs."""

from __future__ import annotations

import json
import os
import platform
import pty
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def rows_of_script(script: str, *words: str, seconds: float) -> list[dict[str, Any]]:
    """The rows that a script of this folder writes to its ``--json`` file, those before a failure included.

    A failure of the script costs the caller only the missing rows; one printed line says what happened.

    Args:
        script: Name of the file.
        words: Its options.
        seconds: When it is ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder, "rows.json")
        command = [sys.executable, str(Path(__file__).with_name(script)), *words, "--json", str(record)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
            if done.returncode:
                print((done.stderr.strip().splitlines() or [f"{script}: ended with status {done.returncode}"])[-1], flush=True)
        except subprocess.TimeoutExpired:
            print(f"{script}: ended after {seconds:g} s", flush=True)
        except OSError as error:
            print(f"{script}: {error}", flush=True)
        try:
            return json.loads(record.read_text()) if record.exists() else []
        except ValueError:  # ended while it wrote
            return []


def cost_of_command(*words: str) -> dict[str, Any]:
    """Run a command of ltnode with a terminal for its progress bar: seconds, those of all its threads, and peak memory in MiB.

    Raises:
        SystemExit: It failed; what it wrote to standard error is shown.
    """
    terminal, end = pty.openpty()
    began = time.perf_counter()
    command = [sys.executable, "-m", "ltnode.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=end, env={**os.environ, "COLUMNS": "120"})
    os.close(end)
    written = _read_to_the_end(terminal)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        print(written[-2000:])
        raise SystemExit(f"ltnode {' '.join(words)} ended with status {process.returncode}")
    unit = 1 if platform.system() == "Darwin" else 1024
    return {
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mib": round(usage.ru_maxrss * unit / 2**20),
        "progress_bar": "\N{BOX DRAWINGS HEAVY HORIZONTAL}" in written,
    }


def _read_to_the_end(terminal: int) -> str:
    parts = []
    with open(terminal, "rb", buffering=0) as stream:
        while True:
            try:
                part = stream.read(1 << 16)
            except OSError:  # how Linux says that the other end is closed
                part = b""
            if not part:
                return b"".join(parts).decode(errors="replace")
            parts.append(part)
