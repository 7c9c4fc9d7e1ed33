"""The numbers that the paper prints, to stand beside ours."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ltnode.errors import DataError

FILE = "published.toml"


def load_published(path: Path | None = None) -> dict[str, Any]:
    """The published values by experiment.

    Args:
        path: The TOML file; by default ``paper/published.toml`` of the current folder or of this source tree.

    Returns:
        Its tables; empty where there is no such file, as in an installed package without the source tree.

    Raises:
        DataError: A file that was named is missing, or the file is not TOML.
    """
    places = [path] if path is not None else [Path("paper") / FILE, Path(__file__).parents[2] / "paper" / FILE]
    for place in places:
        try:
            return tomllib.loads(place.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise DataError(f"cannot read the published values in {place}: {error}") from error
    if path is not None:
        raise DataError(f"{path} does not exist; give the TOML file of the published values, or leave the option out")
    return {}
