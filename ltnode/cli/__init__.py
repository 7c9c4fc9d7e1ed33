"""The ``ltnode`` command: one file per command in ``commands``; ``app`` puts them together, ``console`` writes."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``ltnode`` command."""
    try:
        from ltnode.cli.app import make_app
    except ImportError as error:
        # Only typer and rich are imported there; `import ltnode` does without them.
        sys.exit(f"the ltnode command needs {error.name}, which is not installed: pip install typer rich")
    make_app()(prog_name="ltnode")
