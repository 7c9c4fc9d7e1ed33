"""Scripts in cells (``# %%``, the percent format of jupytext) as pages of the site, and as notebooks.

``docs/site/render.py`` runs a script and records what every cell printed and drew; a page shows the record next to the code.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from pages import SCRIPTS

ROOT = Path(__file__).parents[2]
RENDERED = ROOT / "docs" / "rendered"
HIDDEN = "check"
"""Tag of cells that check what the text says; they are run, but not shown on the page."""
_LINK = re.compile(r"(\]\()(?!\w+:|#)([^()\s]+)(\))")


@dataclass(frozen=True)
class Cell:
    """A cell of a script.

    Attributes:
        source: Markdown or Python.
        is_code: Whether it is Python.
        alt: Description of its figure for readers who cannot see it.
        hidden: Whether pages leave it out.
    """

    source: str
    is_code: bool
    alt: str = ""
    hidden: bool = False

    @property
    def digest(self) -> str:
        """Short checksum of what a code cell does; its format and its comments do not matter."""
        return hashlib.sha256(repr(_without_format(ast.parse(self.source))).encode()).hexdigest()[:12]


def _without_format(node: Any) -> Any:
    """A syntax tree as nested tuples, in which what is empty is left out: other versions of Python have other empty fields."""
    if isinstance(node, list):
        return tuple(_without_format(entry) for entry in node)
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, _without_format(value)) for name, value in ast.iter_fields(node) if value not in (None, []))
    return (type(node).__name__, *fields)


@dataclass(frozen=True)
class Output:
    """What a code cell printed and drew.

    Attributes:
        digest: Checksum of the cell that was run.
        text: Standard output, and the value of the last expression.
        figures: Names of the figures, which are files next to the record.
    """

    digest: str
    text: str = ""
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """A run of a script: the outputs of its code cells, how long it took (by the clock and on the processor), and on what."""

    seconds: float
    cpu_seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[Output, ...] = ()

    @classmethod
    def read(cls, script: Path) -> Record:
        """Read the record of a script."""
        values = json.loads(record_path(script).read_text(encoding="utf-8"))
        outputs = tuple(Output(o["digest"], o["text"], tuple(o["figures"])) for o in values["outputs"])
        return cls(values["seconds"], values["cpu_seconds"], values["environment"], outputs)

    def to_json(self) -> str:
        """The content of the file."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def scripts() -> list[Path]:
    """All scripts that are pages."""
    return [path for folder in SCRIPTS for path in sorted((ROOT / folder).glob("*.py"))]


def place(script: Path) -> str:
    """Path of the page of a script in the site, without suffix."""
    return f"{SCRIPTS[script.parent.relative_to(ROOT).as_posix()]}/{script.stem}"


def record_path(script: Path) -> Path:
    """The file in which the run of a script is recorded."""
    return RENDERED / f"{place(script)}.json"


def read_cells(script: Path) -> list[Cell]:
    """The cells of a script."""
    return [
        Cell(cell.source, cell.cell_type == "code", cell.metadata.get("alt", ""), HIDDEN in cell.metadata.get("tags", ()))
        for cell in jupytext.read(script, fmt="py:percent").cells
    ]


def stale_cells(script: Path, record: Record) -> list[int]:
    """Positions of code cells whose recorded output is that of another code, or missing."""
    codes = [cell.digest for cell in read_cells(script) if cell.is_code]
    recorded = [output.digest for output in record.outputs]
    differing = [n for n, (code, known) in enumerate(zip(codes, recorded, strict=False)) if code != known]
    return differing + list(range(min(len(codes), len(recorded)), max(len(codes), len(recorded))))


def page(script: Path, repository: str) -> str:
    """The Markdown of the page of a script, with its recorded outputs.

    Args:
        script: The script.
        repository: Address of the repository.

    Raises:
        ValueError: The record belongs to other code.
    """
    record = Record.read(script)
    if stale := stale_cells(script, record):
        raise ValueError(f"the record of {script.name} is not that of its code cells {stale}: run make tutorials")
    return "\n\n".join(_parts(script, record, repository)) + "\n"


def _parts(script: Path, record: Record, repository: str) -> Iterator[str]:
    outputs = iter(record.outputs)
    for number, cell in enumerate(read_cells(script)):
        output = next(outputs) if cell.is_code else None
        if cell.hidden:
            continue
        if output is None:
            yield cell.source if number else _with_downloads(cell.source, script, record, repository)
            continue
        up = "../" * len(script.parent.relative_to(ROOT).parts)
        figures = [f"![{cell.alt}]({up}docs/rendered/{place(script)}-{figure}.svg)" for figure in output.figures]
        code = [f"```python\n{cell.source}\n```"]
        if output.text:
            code.append(f'<div class="output" markdown>\n\n```text\n{output.text.rstrip()}\n```\n\n</div>')
        # Who comes from a thumbnail wants to see the picture first.
        yield from (*figures, *code) if place(script).startswith("gallery/") else (*code, *figures)


def _with_downloads(first: str, script: Path, record: Record, repository: str) -> str:
    """The first Markdown cell, with a line on how to get and run the script below its heading."""
    heading, _, rest = first.partition("\n")
    source = f"{repository}/blob/main/{script.relative_to(ROOT).as_posix()}"
    links = f"[Notebook]({script.stem}.ipynb){{ download }} · [script]({source})"
    seconds = max(5, 5 * round(record.cpu_seconds / 5))
    return f"{heading}\n\n{links} · runs in about {seconds} seconds on one CPU core\n{{ .downloads }}\n\n{rest.strip()}"


def notebook(script: Path, repository: str) -> str:
    """The script as a notebook without outputs, in which links into the repository are absolute."""
    made = jupytext.read(script, fmt="py:percent")
    for number, cell in enumerate(made.cells):
        cell["id"] = f"cell-{number}"  # the same file in every build
        if cell.cell_type == "markdown":
            cell.source = _LINK.sub(lambda m: f"{m[1]}{_absolute(m[2], script, repository)}{m[3]}", cell.source)
    made.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made.nbformat, made.nbformat_minor = 4, 5
    nbformat.validate(made)
    return nbformat.writes(made)


def _absolute(link: str, script: Path, repository: str) -> str:
    path, hash_sign, anchor = link.partition("#")
    target = (script.parent / path).resolve().relative_to(ROOT)
    return f"{repository}/blob/main/{target.as_posix()}{hash_sign}{anchor}"
