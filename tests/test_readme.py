"""README and documentation are run: their Python blocks and ``ltnode`` commands, section by section, in an empty folder.

The blocks of one section (from one heading of level 1 or 2 to the next) share a namespace and a folder, in the order
written, so that a block may use what an earlier one made. A comment on the lines before a block says otherwise:
``<!-- slow: reason -->`` leaves it to ``make test-slow``, ``<!-- not run: reason -->`` leaves it out.
Of a shell block the lines that call ``ltnode`` are run; ``make`` must name a target that exists; the rest
(installing, cloning) is prose.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
SHELLS = {"bash", "console", "sh", "shell"}
FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,}) *([\w+-]*)")
HEADING = re.compile(r"^#{1,2} +(.*?) *#*$")
COMMENT = re.compile(r"^<!-- *(not run|slow): *(.*?) *-->$")
COMMAND_LIMIT_S = 600


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the file on which the text begins."""

    language: str
    text: str
    line: int
    slow: bool = False
    not_run: str = ""

    @property
    def commands(self) -> list[str]:
        """The command lines of a shell block, continuations joined; in a console block those behind a ``$``."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        prompted = [line.strip().removeprefix("$ ") for line in lines if line.lstrip().startswith("$ ")]
        if prompted or self.language == "console":
            return prompted
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


@dataclass
class Section:
    title: str
    blocks: list[Block] = field(default_factory=list)
    page: str = ""

    @property
    def has_slow_blocks(self) -> bool:
        return any(block.slow for block in self.blocks)


def sections(markdown: str, page: str = "") -> list[Section]:
    """Sections of a Markdown text with their fenced blocks; headings and comments inside a block are its text."""
    found = [Section("top", page=page)]
    lines = markdown.splitlines()
    remark = None
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if opened := FENCE.match(line):
            fence, language = opened.groups()
            start = number
            while number < len(lines) and not re.fullmatch(rf" {{0,3}}{fence[0]}{{{len(fence)},}} *", lines[number]):
                number += 1
            kind, reason = remark.groups() if remark else ("", "")
            text = "\n".join(lines[start:number])
            found[-1].blocks.append(Block(language.lower(), text, start + 1, kind == "slow", reason if kind == "not run" else ""))
            number += 1
            remark = None
        elif heading := HEADING.match(line):
            found.append(Section(heading.group(1), page=page))
        elif line.strip():
            remark = COMMENT.match(line.strip())
    return found


def run_command(command: str, folder: Path) -> None:
    """Run one line in a shell that finds this environment's ``ltnode``; a failure shows what it wrote."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "MPLBACKEND": "Agg"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"`{command}` ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}", pytrace=False)


def run_section(section: Section, folder: Path, *, source: str, slow: bool = False) -> list[str]:
    """Run the blocks of a section in order and return what was run; slow blocks only if asked for."""
    names: dict[str, Any] = {"__name__": "readme"}
    ran = []
    for block in section.blocks:
        if block.not_run or (block.slow and not slow):
            continue
        if block.language == "python":
            # Blank lines before the text make a traceback point into the Markdown file.
            exec(compile("\n" * (block.line - 1) + block.text, source, "exec", dont_inherit=True), names)
            ran.append(f"python:{block.line}")
        elif block.language in SHELLS:
            for command in block.commands:
                if command.split()[0] == "ltnode":
                    run_command(command, folder)
                    ran.append(command)
    return ran


def unknown_targets(blocks: Iterable[Block], makefile: str) -> list[str]:
    """Targets that ``make`` commands of shell blocks name and the Makefile does not have."""
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, flags=re.MULTILINE))
    asked = [
        word
        for block in blocks
        if block.language in SHELLS
        for command in block.commands
        for call in re.findall(r"\bmake\b([^&|;#]*)", command)
        for word in call.split()
        if "=" not in word and not word.startswith("-")
    ]
    return [word for word in asked if word not in targets]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECTIONS = [
    one
    for page in PAGES
    for one in sections(page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix().removeprefix("docs/"))
    if one.blocks
]


def name_of(section: Section) -> str:
    return f"{section.page}: {section.title}"


@pytest.mark.timeout(COMMAND_LIMIT_S)
@pytest.mark.parametrize("section", SECTIONS, ids=name_of)
def test_section_runs(section: Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    if not run_section(section, tmp_path, source=section.page):
        left_out = [block.not_run or "slow" for block in section.blocks if block.not_run or block.slow]
        pytest.skip(f"nothing to run here{': ' if left_out else ''}{', '.join(left_out)}")


@pytest.mark.slow
@pytest.mark.timeout(2 * COMMAND_LIMIT_S)
@pytest.mark.parametrize("section", [one for one in SECTIONS if one.has_slow_blocks], ids=name_of)
def test_section_runs_with_its_slow_blocks(section: Section, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    assert run_section(section, tmp_path, source=section.page, slow=True)


def test_make_targets_that_are_named_exist():
    blocks = [block for section in SECTIONS for block in section.blocks]
    assert unknown_targets(blocks, (ROOT / "Makefile").read_text(encoding="utf-8")) == []


SAMPLE = """# Sample
Words.
```python
kept = [1]
```

<!-- slow: trains for minutes -->
```python
kept.append(2)
```

<!-- not run: needs a GPU -->

```python
raise SystemExit("must not run")
```
```python
from pathlib import Path
Path("kept.txt").write_text(str(kept))
```
## Commands
```bash
# a comment
git clone somewhere && cd somewhere
make install && make -s demo JOBS=1  # two targets
ltnode predict --in a \\
    --out b > said.txt
```
```console
$ ltnode fit
this line is output
$ make tset
```
````markdown
## not a heading
```python
raise SystemExit("text of the outer block")
```
````
## Broken
```python
x = 1

raise ValueError("wrong")
```
"""


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Section]:
    """The sections of SAMPLE, in an empty folder, with an ``ltnode`` that notes its arguments and fails on ``fit``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "ltnode"
    script.write_text(
        f'#!/bin/sh\necho "$@"\necho "$@" >> {tmp_path}/calls\nif [ "$1" = fit ]; then echo no data >&2; exit 3; fi\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.chdir(tmp_path)
    return {section.title: section for section in sections(SAMPLE)}


def test_sections_are_split_at_headings_outside_of_blocks(sample: dict[str, Section]):
    assert list(sample) == ["top", "Sample", "Commands", "Broken"]
    assert [block.language for block in sample["Commands"].blocks] == ["bash", "console", "markdown"]
    assert [block.not_run for block in sample["Sample"].blocks] == ["", "", "needs a GPU", ""]


@pytest.mark.parametrize(("slow", "kept"), [(False, "[1]"), (True, "[1, 2]")])
def test_blocks_of_a_section_share_names_and_folder(sample: dict[str, Section], tmp_path: Path, slow: bool, kept: str):
    """The slow block runs only when asked for, the one marked not to run never."""
    ran = run_section(sample["Sample"], tmp_path, source="SAMPLE.md", slow=slow)
    assert len(ran) == 2 + slow
    assert (tmp_path / "kept.txt").read_text() == kept


def test_a_raising_block_fails_and_points_into_the_file(sample: dict[str, Section], tmp_path: Path):
    with pytest.raises(ValueError, match="wrong") as caught:
        run_section(sample["Broken"], tmp_path, source="SAMPLE.md")
    assert str(caught.traceback[-1].path).endswith("SAMPLE.md")
    assert SAMPLE.splitlines()[caught.traceback[-1].lineno].startswith("raise ValueError")


def test_commands_are_run_and_a_failing_one_shows_what_it_said(sample: dict[str, Section], tmp_path: Path):
    """Continuation and redirection work, output lines and other programs are not run, the exit status counts."""
    with pytest.raises(pytest.fail.Exception, match=r"`ltnode fit` ended with 3:(.|\n)*no data"):
        run_section(sample["Commands"], tmp_path, source="SAMPLE.md")
    assert (tmp_path / "calls").read_text().splitlines() == ["predict --in a --out b", "fit"]
    assert (tmp_path / "said.txt").read_text() == "predict --in a --out b\n"


def test_a_misspelt_make_target_is_found(sample: dict[str, Section]):
    assert unknown_targets(sample["Commands"].blocks, "install: x ## y\ndemo test:\ndemo:\n.PHONY: tset\n") == ["tset"]
