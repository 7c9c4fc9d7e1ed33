"""Hand-written remarks on the results: why a claim was not reproduced, and a note on the zoo."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ltnode.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Remarks:
    """The content of ``paper/remarks.toml``.

    Attributes:
        by_claim: A sentence for the key of a claim, from the table ``[remarks]``.
        zoo: Text below the table of the zoo.
    """

    by_claim: Mapping[str, str] = field(default_factory=dict)
    zoo: str = ""

    @classmethod
    def read(cls, path: Path) -> Remarks:
        """Read the file; without a file there are no remarks.

        Raises:
            ConfigError: The file is not TOML, or a remark is not a string.
        """
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls()
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the remarks in {path}: {error}") from error
        remarks = content.get("remarks", {})
        for key, sentence in remarks.items():
            if not isinstance(sentence, str):
                raise ConfigError(f"{path}: the remark on {key} must be a string, not {sentence!r}")
        return cls(remarks, str(content.get("zoo", "")))

    def check(self, keys: Iterable[str]) -> None:
        """Raise ConfigError unless every remark belongs to one of the claims with these keys."""
        known = set(keys)
        for key in self.by_claim:
            if key not in known:
                raise ConfigError(f"remarks.toml: {unknown_name('claim', key, known)}")
