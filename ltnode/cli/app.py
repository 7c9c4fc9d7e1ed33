"""Assembles the command line from its commands, and turns errors and Ctrl-C into one line and an exit status."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ltnode._version import __version__
from ltnode.cli import commands, console
from ltnode.errors import LTNodeError

_PANELS = {
    "Start here": ("demo", "data"),
    "Train and evaluate": ("train", "sweep", "distill", "evaluate", "report", "operating-point", "calibrate"),
    "Use a trained model": ("predict", "serve", "export", "models"),
    "Paper and speed": ("reproduce", "bench"),
}
"""Panels of ``ltnode --help`` and their commands; each command has a module of its name in ``commands``."""
_FAILED = 2


class Commands(TyperGroup):
    """The group of all commands, which shows an error that ltnode raises on purpose as one line without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except LTNodeError as error:
            console.error(str(error))
            raise typer.Exit(_FAILED) from error
        except KeyboardInterrupt as error:
            console.error("stopped. Nothing is lost: run the same command again.")
            raise typer.Exit(console.INTERRUPTED) from error


def make_app() -> typer.Typer:
    """Build the command line."""
    app = typer.Typer(
        cls=Commands,
        help="Neural ODEs that know what they do not know.",
        epilog=console.example("ltnode demo --out demo", "ltnode train --model lt-node --data synthetic --out runs/x"),
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_show_locals=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    panel_of = {name: panel for panel, names in _PANELS.items() for name in names}
    for name in panel_of:
        _register(app, name)
    entries: list[Any] = [*app.registered_commands, *app.registered_groups]
    for entry in entries:
        entry.rich_help_panel = panel_of[entry.name]
    return app


def _register(app: typer.Typer, name: str) -> None:
    """Add the function of a module that is named like the module, or whatever its function ``register`` adds."""
    function = name.replace("-", "_")
    module = importlib.import_module(f"{commands.__name__}.{function}")
    if hasattr(module, "register"):
        module.register(app)
    else:
        app.command(name, epilog=console.example(*module.EXAMPLES))(getattr(module, function))


def _show_version(requested: bool) -> bool:
    if requested:
        console.say(f"ltnode {__version__}")
        raise typer.Exit
    return requested


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    console.show_log()
