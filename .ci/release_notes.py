"""Print what the changelog says of the version of a tag: ``python .ci/release_notes.py v0.2.0``.

Ends with an error if the tag is not that of the package's version, or if the changelog has no dated section of it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def release_notes(tag: str, version: str, changelog: str) -> str:
    """The section of the changelog for the version of the tag.

    Raises:
        ValueError: The tag names another version, or the changelog has no dated section with content.
    """
    if tag != f"v{version}":
        raise ValueError(f"the tag is {tag}, but ltnode/_version.py has {version}: the tag must be v{version}")
    section = re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, flags=re.MULTILINE | re.DOTALL
    )
    if section is None or not section[1].strip():
        raise ValueError(f"CHANGELOG.md has no section with a date for {version}: ## [{version}] - YYYY-MM-DD")
    return section[1].strip() + "\n"


def main() -> None:
    """Read the files of the repository."""
    (version,) = re.findall(r'^__version__ = "(.+)"$', (ROOT / "ltnode" / "_version.py").read_text(encoding="utf-8"), flags=re.M)
    try:
        notes = release_notes(sys.argv[1], version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    except ValueError as error:
        sys.exit(str(error))
    sys.stdout.write(notes)


if __name__ == "__main__":
    main()
