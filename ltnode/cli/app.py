"""The command line: finds the commands, and turns errors and Ctrl-C into one line and an exit code."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ltnode._version import __version__
from ltnode.cli import commands, console
from ltnode.errors import LTNodeError

_ORDER = ("demo", "data", "train", "evaluate", "report", "operating_point", "predict", "serve", "export", "reproduce", "bench")
"""How --help lists the commands; others follow by name."""
ERROR, INTERRUPTED = 2, 130


class Commands(TyperGroup):
    """The group of all commands: what ltnode raises on purpose becomes one line, not a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except LTNodeError as error:
            console.error(str(error))
            raise typer.Exit(ERROR) from error
        except KeyboardInterrupt as error:
            console.error("stopped. Nothing is lost: run the same command again.")
            raise typer.Exit(INTERRUPTED) from error


def make_app() -> typer.Typer:
    """The command line with every command of the ``commands`` folder."""
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
    for name in _command_names():
        importlib.import_module(f"{commands.__name__}.{name}").register(app)
    return app


def _command_names() -> list[str]:
    names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    return sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def _show_version(wanted: bool) -> bool:
    if wanted:
        console.say(f"ltnode {__version__}")
        raise typer.Exit
    return wanted


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    console.show_log()
