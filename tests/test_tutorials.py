"""The tutorials and the gallery: every script runs, is a notebook, and made what its page shows.

`docs/rendered` holds what the cells printed and drew in a recorded run; the slow tests run the scripts again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import jupytext
import nbformat
import pytest
from jupytext.cli import jupytext as jupytext_command
from prose import sentences
from repository import ROOT, load_script, repository_file

from ltnode.report.style import DARK, LIGHT, new_figure, themed

RENDERED = ROOT / "docs" / "rendered"
TUTORIALS = sorted((ROOT / "tutorials").glob("*.py"))
GALLERY = sorted((ROOT / "examples" / "gallery").glob("*.py"))
SCRIPTS = [*TUTORIALS, *GALLERY]
LIMIT_S = 60
"""Seconds of one processor core that a script may take."""
LARGEST = 1_500_000
"""Bytes of all records and figures together."""

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)


@pytest.fixture(scope="module", autouse=True)
def site_modules() -> None:
    repository_file("docs/site/notebooks.py")
    sys.path.insert(0, str(ROOT / "docs" / "site"))


@pytest.fixture(scope="module")
def notebooks() -> ModuleType:
    return load_script("docs/site/notebooks.py")


@pytest.fixture(scope="module")
def drawings() -> ModuleType:
    return load_script("docs/site/drawings.py")


def record_of(script: Path, folder: Path = RENDERED) -> dict:
    kind = "tutorials" if script in TUTORIALS else "gallery"
    return json.loads((folder / kind / f"{script.stem}.json").read_text(encoding="utf-8"))


def figures_of(script: Path) -> list[Path]:
    kind = "tutorials" if script in TUTORIALS else "gallery"
    names = [name for output in record_of(script)["outputs"] for name in output["figures"]]
    return [RENDERED / kind / f"{script.stem}-{name}.svg" for name in names]


def test_there_are_five_tutorials_and_ten_pictures():
    assert len(TUTORIALS) >= 5 and len(GALLERY) >= 10


# -- what the pages show -----------------------------------------------------------------------------------------------


@every_script
def test_the_page_shows_the_outputs_of_its_code(notebooks: ModuleType, script: Path):
    """The record belongs to every code cell as it stands; a changed cell needs `make tutorials`."""
    record = notebooks.Record.read(script)
    assert notebooks.stale_cells(script, record) == []
    page = notebooks.page(script, "https://host.example/owner/name")
    shown = [cell for cell in notebooks.read_cells(script) if cell.is_code and not cell.hidden]
    assert page.count("```python") == len(shown)
    assert page.count("rendered/") == len(figures_of(script)) >= 1


def test_a_page_of_changed_code_is_refused(notebooks: ModuleType):
    script = SCRIPTS[0]
    record = notebooks.Record.read(script)
    outdated = notebooks.Record(1.0, 1.0, {}, (notebooks.Output("other"), *record.outputs[1:]))
    assert notebooks.stale_cells(script, outdated) == [0]
    assert notebooks.stale_cells(script, notebooks.Record(1.0, 1.0, {}, record.outputs[:-1])) == [len(record.outputs) - 1]


def test_every_figure_belongs_to_a_script_and_they_are_small():
    files = set(RENDERED.rglob("*.svg"))
    assert files == {figure for script in SCRIPTS for figure in figures_of(script)}
    assert {path.stem for path in RENDERED.rglob("*.json")} == {script.stem for script in SCRIPTS}
    assert sum(path.stat().st_size for path in RENDERED.rglob("*.*")) < LARGEST


@every_script
def test_figures_are_drawings_in_both_themes(drawings: ModuleType, script: Path):
    """Each one parses, names colours by their role, and shows the background of the theme that is asked for."""
    for figure in figures_of(script):
        svg = figure.read_text(encoding="utf-8")
        for theme in (LIGHT, DARK):
            text = drawings.in_theme(svg, theme)
            ElementTree.fromstring(text)
            assert f"--background:{theme.background};" in text
            other = DARK if theme is LIGHT else LIGHT
            assert f"--background:{other.background};" not in text


def test_a_drawing_keeps_its_colours_marks_and_places(drawings: ModuleType, tmp_path: Path):
    """Shortening changes no coordinate by more than 0.05 points, and no mark is lost."""
    with themed(drawings.ADAPTIVE):
        figure = new_figure(3.0, 2.0)
        axes = figure.subplots()
        axes.scatter(range(40), range(40), color=drawings.ADAPTIVE.hues[0])
        figure.savefig(tmp_path / "drawing.svg", metadata={"Date": None})
    before = (tmp_path / "drawing.svg").read_text(encoding="utf-8")
    after = drawings.adaptive(before)
    assert len(after) < 0.7 * len(before)
    places = [[float(x) for x in re.findall(r"<use [^>]*x=\"([\d.]+)\"", text)] for text in (before, after)]
    assert len(places[0]) == len(places[1]) >= 40
    assert max(abs(a - b) for a, b in zip(*places, strict=True)) <= 0.051
    assert drawings.ADAPTIVE.hues[0].lower() not in after and "var(--hue-0)" in after
    assert f"--hue-0:{DARK.hues[0]}" in drawings.in_theme(after, DARK)


def test_every_script_has_a_thumbnail():
    for scripts, page in ((TUTORIALS, "tutorials"), (GALLERY, "gallery")):
        text = repository_file(f"docs/{page}/index.md").read_text(encoding="utf-8")
        for script in scripts:
            picture = re.search(rf"\[!\[[^\]]+\]\(\.\./rendered/({page}/{script.stem}-\d\.svg)\)\]", text)
            assert picture, f"{script.stem} has no thumbnail in docs/{page}/index.md"
            assert (RENDERED / picture[1]) in figures_of(script)
            assert text.count(f"{script.relative_to(ROOT).as_posix()})") == 2


@every_script
def test_recorded_times_are_short(script: Path):
    assert record_of(script)["cpu_seconds"] <= LIMIT_S


# -- text --------------------------------------------------------------------------------------------------------------


def prose_of(script: Path) -> str:
    return "\n\n".join(cell.source for cell in jupytext.read(script, fmt="py:percent").cells if cell.cell_type == "markdown")


def test_sentences_are_short():
    """At most 20 words on average, in every script."""
    for script in SCRIPTS:
        lengths = [len(words) for words in sentences(prose_of(script))]
        assert sum(lengths) / len(lengths) <= 20, script.name


@every_script
def test_the_text_has_no_results_that_a_cell_did_not_compute(script: Path):
    """Numbers with decimals outside of code marks would be results that were typed."""
    prose = re.sub(r"```.*?```|`[^`]*`|\([^)]*\)", "", prose_of(script), flags=re.DOTALL)
    assert re.findall(r"\d+\.\d+", prose) == []


# -- notebooks ---------------------------------------------------------------------------------------------------------


@every_script
def test_a_script_is_a_valid_notebook(notebooks: ModuleType, script: Path, tmp_path: Path):
    """Converted by the command of jupytext, and back to the same code; the notebook of the site has absolute links."""
    made = tmp_path / f"{script.stem}.ipynb"
    assert jupytext_command(["--to", "ipynb", "--output", str(made), str(script), "--quiet"]) == 0
    converted = nbformat.read(made, as_version=4)
    nbformat.validate(converted)
    codes = [cell.source for cell in notebooks.read_cells(script) if cell.is_code]
    assert [cell.source for cell in converted.cells if cell.cell_type == "code"] == codes
    served = nbformat.reads(notebooks.notebook(script, "https://host.example/owner/name"), as_version=4)
    assert [cell.source for cell in served.cells if cell.cell_type == "code"] == codes
    links = re.findall(r"\]\(([^)]+)\)", "".join(cell.source for cell in served.cells if cell.cell_type == "markdown"))
    for link in links:
        assert link.startswith("https://"), link
        assert (ROOT / link.removeprefix("https://host.example/owner/name/blob/main/").partition("#")[0]).exists(), link


# -- running them ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
@every_script
def test_a_script_runs_and_makes_the_figures_of_its_page(script: Path, tmp_path: Path):
    """In an empty folder; hidden cells check what the text says. Figures and numbers of lines are those of the record.

    Numbers are not compared, because they differ between processors. The time limit counts processor time, because the machine
    may be busy with other tests.
    """
    command = [sys.executable, str(ROOT / "docs/site/render.py"), "--out", str(tmp_path), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "MPLBACKEND": "Agg"})
    assert done.returncode == 0, done.stderr[-3000:]
    now, recorded = record_of(script, tmp_path), record_of(script)
    assert now["cpu_seconds"] <= LIMIT_S
    for new, known in zip(now["outputs"], recorded["outputs"], strict=True):
        assert new["figures"] == known["figures"]
        assert len(new["text"].splitlines()) == len(known["text"].splitlines())
    made = sorted(path.name for path in tmp_path.rglob("*.svg"))
    assert made == sorted(path.name for path in figures_of(script))
    assert all(path.stat().st_size > 2000 for path in tmp_path.rglob("*.svg"))
