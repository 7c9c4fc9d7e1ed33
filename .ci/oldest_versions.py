"""Print the lower bounds in pyproject.toml of what the package and its command line import, as constraints: ``torch==2.8.0``."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
IMPORTED = ("torch", "numpy", "safetensors", "typer")


def oldest_versions(requirements: list[str]) -> list[str]:
    """``torch>=2.8`` becomes ``torch==2.8.0``, for every package of `IMPORTED`."""
    bounds = dict(found.groups() for line in requirements if (found := re.fullmatch(r"([\w-]+)>=([\d.]+)", line)))
    return [f"{name}=={'.'.join([*bounds[name].split('.'), '0', '0'][:3])}" for name in IMPORTED]


if __name__ == "__main__":
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    sys.stdout.write("\n".join(oldest_versions(project["dependencies"])) + "\n")
