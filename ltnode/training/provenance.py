"""Where a result comes from: version, commit, configuration, data, device."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ltnode._version import __version__
from ltnode.training.config import TrainConfig


def provenance(config: TrainConfig, data: dict[str, Any], device: torch.device, wall_time_s: float) -> dict[str, Any]:
    """What results.json records beside the numbers, as JSON.

    Args:
        config: Of the run.
        data: Description of the data, with checksums.
        device: That the run used last.
        wall_time_s: Seconds of training, over all resumed parts.
    """
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
    """The model of the device, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.machine()}, {torch.get_num_threads()} threads)"


@lru_cache
def source_state(package: Path | None = None) -> dict[str, Any]:
    """Commit of the repository that tracks the package, and whether its files were changed since; None outside of one."""
    folder = package or Path(__file__).parents[1]
    if _git(folder, "ls-files", "--error-unmatch", "_version.py") is None:
        return {"git_commit": None, "git_modified": None}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", ".")
    return {"git_commit": _git(folder, "rev-parse", "HEAD"), "git_modified": None if changed is None else bool(changed)}


def _git(folder: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
