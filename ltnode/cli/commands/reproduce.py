"""``ltnode reproduce``: the experiments of the paper, which are in the folder ``paper`` of a clone of the repository."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import typer

from ltnode.cli import console
from ltnode.errors import ConfigError

_ROOT = Path(__file__).resolve().parents[3]
"""The folder that holds the package: a clone, or site-packages."""


def register(app: typer.Typer) -> None:
    """Add the commands of the reproduction in a clone, and elsewhere a command that says where to find them."""
    if (_ROOT / "paper" / "reproduce" / "command.py").exists():
        if str(_ROOT) not in sys.path:
            sys.path.append(str(_ROOT))
        importlib.import_module("paper.reproduce.command").register(app)
        return
    any_arguments = {"allow_extra_args": True, "ignore_unknown_options": True}
    examples = console.example("ltnode reproduce synthetic")
    app.command("reproduce", context_settings=any_arguments, epilog=examples)(explain)


def explain() -> None:
    """Repeat the experiments of the paper (in a clone of the repository only)."""
    raise ConfigError(
        "the installed package does not contain the experiments of the paper: "
        "clone the repository of ltnode, run `make install` in the clone, and run `.venv/bin/ltnode reproduce` there"
    )
