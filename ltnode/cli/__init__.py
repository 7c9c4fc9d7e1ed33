"""The ``ltnode`` command: ``commands`` has one file per command, ``app`` assembles them, ``console`` writes their output."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``ltnode`` command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal does not have must not end a training
            stream.reconfigure(errors="replace")
    try:
        from ltnode.cli.app import make_app
    except ImportError as error:
        # That module imports only typer and rich, which `import ltnode` does not need.
        sys.exit(f"the ltnode command needs {error.name}, which is not installed: pip install typer rich")
    make_app()(prog_name="ltnode")
