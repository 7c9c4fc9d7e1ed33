"""``ltnode reproduce`` in a clone and in an installed package, which does not contain the folder ``paper``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT, repository_file


def reproduce(package: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command with the package in another folder than the repository."""
    command = [sys.executable, "-m", "ltnode.cli", "reproduce", *words]
    environment = {**os.environ, "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, as in site-packages."""
    folder = tmp_path_factory.mktemp("site-packages")
    shutil.copytree(ROOT / "ltnode", folder / "ltnode", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_a_clone_has_the_experiments(tmp_path: Path) -> None:
    repository_file("paper/reproduce/command.py")
    result = reproduce(ROOT, tmp_path, "--help")
    assert result.returncode == 0, result.stderr
    assert "images" in result.stdout and "motivating" in result.stdout


@pytest.mark.parametrize("words", [(), ("synthetic", "--seeds", "0", "--iterations", "3"), ("images", "--list")])
def test_an_installed_package_says_where_the_experiments_are(installed: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Whatever the arguments, the answer is one line that says what to do."""
    result = reproduce(installed, tmp_path, *words)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and len(result.stderr.strip().splitlines()) == 1
    assert "clone the repository" in result.stderr and "ltnode reproduce" in result.stderr
    assert not any(tmp_path.iterdir())


def test_the_help_of_an_installed_package_mentions_the_clone(installed: Path, tmp_path: Path) -> None:
    result = reproduce(installed, tmp_path, "--help")
    assert result.returncode == 0, result.stderr
    assert "clone of the repository" in result.stdout and "Example" in result.stdout
