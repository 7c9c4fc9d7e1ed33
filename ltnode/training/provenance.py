"""Provenance of results: version, commit, configuration, data, device.

Environment:
    LTNODE_COMMIT   commit of the source, for a machine that has a copy of the source but no git
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ltnode._version import __version__
from ltnode.errors import ConfigError
from ltnode.training.config import TrainConfig


def provenance(config: TrainConfig, data: dict[str, Any], device: torch.device, wall_time_s: float) -> dict[str, Any]:
    """Return the provenance that results.json records, as JSON; the wall time includes all resumed parts."""
    return {
        "version": __version__,
        **source_state(),
        "config_hash": config.hash,
        "data": data,
        "seed": config.seed,
        "device": device_name(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "wall_time_s": round(wall_time_s, 3),
    }


def device_name(device: torch.device) -> str:
    """Return a description of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"


@lru_cache
def source_state(package: Path | None = None) -> dict[str, Any]:
    """Return the commit of the repository that tracks the package, and whether its files have changed since.

    Outside of a repository the commit is that of LTNODE_COMMIT, or None, and changes are unknown (None).

    Raises:
        ConfigError: LTNODE_COMMIT is used and is not a commit.
    """
    folder = package or Path(__file__).parents[1]
    if _git(folder, "ls-files", "--error-unmatch", "_version.py") is None:
        commit = os.environ.get("LTNODE_COMMIT", "").strip() or None
        if commit is not None and not re.fullmatch(r"[0-9a-f]{7,40}", commit):
            raise ConfigError(f"LTNODE_COMMIT must be a commit of 7 to 40 hexadecimal digits, or unset, not {commit!r}")
        return {"git_commit": commit, "git_modified": None}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", ".")
    return {"git_commit": _git(folder, "rev-parse", "HEAD"), "git_modified": None if changed is None else bool(changed)}


def _git(folder: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
