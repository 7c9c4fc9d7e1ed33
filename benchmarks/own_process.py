"""Rows of a benchmark that needs a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
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
