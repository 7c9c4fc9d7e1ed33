"""``ltnode reproduce``: the paper's experiments, which live beside the package in the folder ``paper`` of a clone."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import typer

from ltnode.cli import console
from ltnode.errors import ConfigError

CLONE = Path(__file__).resolve().parents[3]
"""The folder that holds the package: the root of a clone, or site-packages."""
_HELP = "Repeat the paper's experiments: its settings, its numbers beside ours."


def register(app: typer.Typer) -> None:
    """Add the commands of the reproduction, or in an installed package one that says where to find them."""
    if (CLONE / "paper" / "reproduce" / "command.py").exists():
        if str(CLONE) not in sys.path:
            sys.path.append(str(CLONE))
        importlib.import_module("paper.reproduce.command").register(app)
    else:
        settings = {"allow_extra_args": True, "ignore_unknown_options": True}
        app.command("reproduce", help=_HELP, context_settings=settings, epilog=console.example("ltnode reproduce --help"))(
            elsewhere
        )


def elsewhere() -> None:
    """Say that the reproduction is not part of the installed package."""
    raise ConfigError(
        "the reproduction of the paper is not part of the installed package: clone the repository of ltnode, "
        "run `make install` there, and use `ltnode reproduce` from the clone"
    )
