"""The argument RUN of commands that use a trained model: a folder, or the name of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.errors import InputError
from ltnode.hub.index import NAME

RunFolder = Annotated[Path, typer.Argument(help="Run folder, or the name of a model (see: ltnode models).", metavar="RUN")]
"""A folder or a name, for `ltnode.hub.locate`."""


def own_folder(run: Path) -> Path:
    """The folder of a command that changes it: models by name are shared, and stay as they were published.

    Raises:
        InputError: There is no such folder, but there could be a model of this name.
    """
    if not run.exists() and NAME.fullmatch(str(run)):
        raise InputError(
            f"{run} is not a folder. This command changes the run; models by name stay as they were published. To change a copy "
            f"of one: ltnode models fetch {run} --out runs/{run}"
        )
    return run
