"""Files of the repository that are not in the source distribution: scripts, records and pages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def repository_file(path: str) -> Path:
    """A file by its path in the repository; the test is skipped where there is no repository."""
    file = ROOT / path
    if not file.is_file():
        pytest.skip(f"{path} is in the repository only")
    return file


def load_script(path: str) -> ModuleType:
    """A script as a module."""
    file = repository_file(path)
    spec = importlib.util.spec_from_file_location(f"{file.stem}_script", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
