"""The README is short, its sentences are short, and it reads well wherever it is shown: on a package index, too."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prose import sentences
from repository import ROOT, repository_file

README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", README)
TARGETS = [markdown or html for markdown, html in LINKS]


def test_sentences_are_told_apart():
    text = "# No\n\nOne *two* three. Four\nfive (six)! See [the page](x.md), too:\n\n| no | no |\n\n- **Seven.** Eight\n- nine\n"
    assert [len(words) for words in sentences(text)] == [3, 3, 4, 1, 1, 1]


def test_it_is_short():
    """At most 200 lines, and at most 20 words in a sentence on average."""
    assert len(README.splitlines()) <= 200
    lengths = [len(words) for words in sentences(README)]
    assert len(lengths) >= 30
    assert sum(lengths) / len(lengths) <= 20


PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_of_the_pages_are_short(page: Path):
    """At most 20 words on average, as in the README."""
    if not page.exists():
        pytest.skip(f"{page.name} is in the repository only")
    lengths = [len(words) for words in sentences(page.read_text(encoding="utf-8"))]
    assert sum(lengths) <= 20 * len(lengths)


def test_links_and_images_are_absolute_and_lead_into_this_repository():
    """A package index shows the README without the repository around it."""
    repository = address()
    outside = {"https://arxiv.org/abs/2112.12728"}
    assert len(TARGETS) >= 20
    for target in set(TARGETS) - outside:
        place = re.fullmatch(rf"{re.escape(repository)}/(blob|raw)/main/([^#]+)(#.+)?", target)
        assert place, f"{target} does not begin with {repository}"
        assert repository_file(place[2])
        if place[3]:
            text = (ROOT / place[2]).read_text(encoding="utf-8")
            titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}
            assert place[3].removeprefix("#") in slugs


def test_the_address_of_the_repository_is_the_same_everywhere():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
    for name, url in urls.items():
        if urlsplit(url).netloc == urlsplit(address()).netloc:
            assert url.startswith(address()), f"{name} in pyproject.toml is {url}"


def address() -> str:
    """The address of the repository, as the site has it."""
    found = re.search(r"^  repository: (\S+)$", repository_file("mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.parametrize("word", ["Anumasa", "Srijith", "Latent Time Neural Ordinary Differential Equations", "AAAI 2022"])
def test_the_paper_is_named(word: str):
    assert word in README
