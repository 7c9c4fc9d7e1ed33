"""The documentation site: what its build does to pages, and what its check finds. `make docs` builds and checks the real one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from repository import ROOT, load_script, repository_file

REPOSITORY = "https://host.example/owner/name"


@pytest.fixture(scope="module")
def pages():
    return load_script("docs/site/pages.py")


@pytest.fixture(scope="module")
def check():
    return load_script("docs/site/check.py")


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("docs/a.md", "solver.md#methods", "solver.md#methods"),
        ("docs/a.md", "#here", "#here"),
        ("docs/a.md", "https://elsewhere.example/x", "https://elsewhere.example/x"),
        ("docs/a.md", "../CHANGELOG.md", "changelog.md"),
        ("docs/reference/a.md", "../../SECURITY.md#x", "../promises.md#x"),
        ("docs/a.md", "../Makefile", f"{REPOSITORY}/blob/main/Makefile"),
        ("docs/a.md", "../examples", f"{REPOSITORY}/tree/main/examples"),
        ("paper/README.md", "tables.md", "paper-tables.md"),
        ("paper/README.md", "../docs/solver.md", "solver.md"),
        ("benchmarks/README.md", "results/solver_scaling.svg", "repository/benchmarks/results/solver_scaling.svg"),
        ("docs/a.md", "../missing.txt", "../missing.txt"),
        ("docs/gallery/index.md", "../../examples/gallery/gap_members.py", "gap_members.md"),
        ("tutorials/table.py", "../docs/own-tables.md", "../own-tables.md"),
        ("tutorials/table.py", "uncertainty.py", "uncertainty.md"),
        ("examples/gallery/gap_members.py", "../../tutorials/table.py", "../tutorials/table.md"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(pages, source: str, link: str, expected: str):
    """A link to nothing stays, so that the strict build reports it."""
    assert pages.site_markdown(f"see [it]({link}).", source, ROOT, REPOSITORY) == f"see [it]({expected})."


def test_blocks_of_code_are_left_alone_and_remarks_go(pages):
    text = "<!-- not run: x -->\n```bash\n[a](../Makefile)\n<!-- kept -->\n```\n[a](../Makefile)\n"
    block, after = "```bash\n[a](../Makefile)\n<!-- kept -->\n```\n", f"[a]({REPOSITORY}/blob/main/Makefile)\n"
    assert pages.site_markdown(text, "docs/a.md", ROOT, REPOSITORY) == block + after


def test_a_number_and_its_spread_stay_on_one_line(pages):
    text = "| 0.11 ± 0.02 | ± |\n```\n1 ± 2\n```\n"
    assert pages.site_markdown(text, "docs/a.md", ROOT, REPOSITORY) == "| 0.11\u00a0±\u00a00.02 | ± |\n```\n1 ± 2\n```\n"


def test_a_picture_has_an_image_for_each_theme(pages):
    text = '<picture><source media="(prefers-color-scheme: dark)" srcset="x-dark.svg">\n<img src="x.svg" alt="An x."></picture>'
    assert (
        pages.site_markdown(text, "docs/a.md", ROOT, REPOSITORY) == "![An x.](x.svg#only-light)\n![An x.](x-dark.svg#only-dark)"
    )


def test_a_rendered_figure_has_an_image_for_each_theme_also_within_a_link(pages):
    text = "[![An x.](../rendered/gallery/x-1.svg)](../../examples/gallery/gap_members.py)"
    light, dark = (f"![An x.](../rendered/gallery/x-1{suffix})" for suffix in (".svg#only-light", "-dark.svg#only-dark"))
    assert pages.site_markdown(text, "docs/gallery/index.md", ROOT, REPOSITORY) == f"[{light}{dark}](gap_members.md)"


def test_every_page_is_named_in_the_navigation(pages):
    """MkDocs reports pages that are missing; this finds them without building."""
    named = set(re.findall(r"([\w/-]+\.md)$", repository_file("mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert written | set(pages.PAGES.values()) <= named


GOOD = '<h1 id="a">A</h1><p>Words <code>- code</code>.</p><a href="b.html#x">b</a><a href="#a">a</a><img src="i.svg" alt="An i.">'


def site(folder: Path, **files: str) -> Path:
    for name, text in {"index": GOOD, "b": '<a id="x"></a><a href="index.html">back</a>', **files}.items():
        (folder / f"{name}.html").write_text(text)
    (folder / "i.svg").write_text("<svg/>")
    return folder


def test_a_sound_site_has_no_problems(check, tmp_path: Path):
    assert check.problems(site(tmp_path), REPOSITORY) == []


@pytest.mark.parametrize(
    ("addition", "problem"),
    [
        ('<a href="c.html">c</a>', "c.html leads nowhere"),
        ('<a href="b.html#y">b</a>', "b.html#y has no such anchor"),
        ('<a href="#y">b</a>', "#y has no such anchor"),
        ('<p id="a">', "the anchor a is there twice"),
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//cdn.example/x.css">', "loads //cdn.example/x.css"),
        ('<img src="i.svg">', "an image without a description"),
        ('<img src="j.svg" alt="A j.">', "j.svg leads nowhere"),
        ("<p>The list:\n- one\n- two</p>", "left as text: 'The list:"),
        ("<p>Numbers:\n| a | b |\n|---|---|</p>", "left as text: 'Numbers:"),
        (f'<a href="{REPOSITORY}/blob/main/no.py">no</a>', "blob/main/no.py is no file of the repository"),
    ],
)
def test_problems_are_found(check, tmp_path: Path, addition: str, problem: str):
    (found,) = check.problems(site(tmp_path, index=GOOD + addition), REPOSITORY)
    assert found.startswith("index.html: ") and problem in found


def test_unreachable_pages_and_fonts_from_elsewhere_are_found(check, tmp_path: Path):
    (site(tmp_path, alone="<p>Words.</p>") / "s.css").write_text("@font-face { src: url('https://fonts.example/f.woff2') }")
    found = check.problems(tmp_path, REPOSITORY)
    assert found == ["s.css: loads https://fonts.example/f.woff2", "alone.html: no link leads here"]
