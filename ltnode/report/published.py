"""Published values with which a report compares its own, from a TOML file such as ``paper/published.toml`` of the repository."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ltnode.errors import DataError


@dataclass(frozen=True)
class Published:
    """Published values.

    Attributes:
        tables: Content of the file. A report looks up ``generalisation.<data>.<model>`` (``parameters`` in millions, ``error``),
            ``ood.<data>.<other data>.<model>`` (``auroc``, ``aupr_in``, ``aupr_out`` in percent),
            ``entropy.<data>.<other data>.<model>`` and ``synthetic.entropy.<model>`` (in nats). Values are numbers, or lists of
            mean and standard deviation.
    """

    tables: Mapping[str, Any] = field(default_factory=dict)

    def value(self, *keys: str) -> Any:
        """Look up a value or a table by its keys; returns None if it does not exist."""
        found: Any = self.tables
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


def read_values(path: str | Path) -> dict[str, Any]:
    """Read published values from a TOML file.

    Raises:
        DataError: The file does not exist or is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; pass the TOML file of the published values, or leave it out") from error
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"cannot read the published values in {path}: {error}") from error
