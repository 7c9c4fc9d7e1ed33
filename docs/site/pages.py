"""Text of the repository as text of the site: links, pictures for both themes, and pages that live outside of ``docs``."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "promises.md",
    "benchmarks/README.md": "benchmarks.md",
    "paper/README.md": "paper.md",
    "paper/tables.md": "paper-tables.md",
    "zoo/README.md": "zoo.md",
}
"""Files of the repository that are pages of the site, and their names there."""

SCRIPTS = {"tutorials": "tutorials", "examples/gallery": "gallery"}
"""Folders of scripts whose cells become pages of the site, and the folders of these pages."""
PAGES |= {
    f"{folder}/{script.name}": f"{pages}/{script.stem}.md"
    for folder, pages in SCRIPTS.items()
    for script in sorted((Path(__file__).parents[2] / folder).glob("*.py"))
}

IMAGES = (".svg", ".png")
"""Images outside of ``docs`` that pages show are copied, to their path in the repository below ``repository``."""

_FENCE = re.compile(r"^( {0,3})(`{3,}|~{3,}).*?^\1\2`*[ ]*$", flags=re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(\]\()([^()\s]+)(\))")
_DRAWING = re.compile(r"!\[([^\]]*)\]\(([^()\s]*rendered/[^()\s]+)\.svg\)")
_REMARK = re.compile(r"^<!-- .*? -->\n", flags=re.MULTILINE)
_NUMBER_AND_SPREAD = re.compile(r"(\d) ± (?=\d)")
"""They stay on one line, also in a narrow table."""
_PICTURE = re.compile(
    r"<picture><source media=\"\(prefers-color-scheme: dark\)\" srcset=\"([^\"]+)\">\s*"
    r"<img src=\"([^\"]+)\" alt=\"([^\"]*)\"></picture>"
)


def images_outside(text: str, source: str, root: Path) -> set[str]:
    """Paths in the repository of the images outside of ``docs`` that a file of the repository shows."""
    paths = (posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2])) for link in _LINK.finditer(text))
    return {path for path in paths if path.endswith(IMAGES) and not path.startswith("docs/") and (root / path).exists()}


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Apply ``change`` to the text between fenced blocks, and leave the blocks as they are."""
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def site_markdown(text: str, source: str, root: Path, repository: str) -> str:
    """The Markdown of a file of the repository, as the site needs it.

    Links to files that are not pages of the site lead to the repository; a link to nothing is left for the build to report.
    A ``<picture>`` becomes two images, of which the colours of the page choose one; so does a rendered figure.
    Remarks for tests and renderers go.

    Args:
        text: Content of the file.
        source: Its path in the repository.
        root: Folder of the repository.
        repository: Address of the repository.
    """

    def link(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return found.group()
        return before + _address(path, source, root, repository) + hash_sign + anchor + after

    def change(part: str) -> str:
        part = _PICTURE.sub(lambda m: f"![{m[3]}]({m[2]}#only-light)\n![{m[3]}]({m[1]}#only-dark)", part)
        part = _DRAWING.sub(r"![\1](\2.svg#only-light)![\1](\2-dark.svg#only-dark)", part)
        part = _NUMBER_AND_SPREAD.sub("\\1\u00a0±\u00a0", part)
        return _LINK.sub(link, _REMARK.sub("", part))

    return outside_fences(text, change)


def _address(path: str, source: str, root: Path, repository: str) -> str:
    """Where a relative path in the file ``source`` leads, seen from the page of that file."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if target in PAGES:
        page = PAGES[target]
    elif target.startswith("docs/") and not (root / target).is_dir() and not target.endswith(".py"):
        page = target.removeprefix("docs/")
    elif target.endswith(IMAGES) and (root / target).exists():
        page = f"repository/{target}"
    elif (root / target).exists():
        return f"{repository}/{'tree' if (root / target).is_dir() else 'blob'}/main/{target}"
    else:
        return path
    own = PAGES.get(source, source.removeprefix("docs/"))
    return posixpath.relpath(page, posixpath.dirname(own) or ".")
