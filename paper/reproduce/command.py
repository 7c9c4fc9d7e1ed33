"""``ltnode reproduce``: the paper's experiments with its own settings, and our results next to its numbers."""

from __future__ import annotations

import typer

from ltnode.cli import console
from paper.reproduce.commands import again, claims, images, motivating, one_dimensional, session


def register(app: typer.Typer) -> None:
    """Add ``reproduce`` and its subcommands to the command line."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    for command in (one_dimensional, motivating, images, session, again, claims):
        command.register(group)
    app.add_typer(
        group,
        name="reproduce",
        help="Repeat the paper's experiments with its settings, and compare its numbers with ours.",
        epilog=console.example("ltnode reproduce synthetic", "ltnode reproduce motivating"),
    )
