"""The files of the explorer page: part of the package, without inline or external scripts, with readable colours."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import pytest
import torch
from PIL import Image
from repository import ROOT, load_script

from ltnode.report.style import DARK, LIGHT

SERVE = files("ltnode.serve")
INDEX = json.loads((SERVE / "samples" / "index.json").read_text())
GRAY = [entry for entry in INDEX if entry["shape"] == [1, 28, 28]]
MODULES = sorted(path.name.removesuffix(".js") for path in (SERVE / "page").iterdir() if path.name.endswith(".js"))


def pixels(entry: dict[str, str]) -> np.ndarray:
    with (SERVE / "samples" / entry["file"]).open("rb") as file:
        return np.asarray(Image.open(file))


class Tags(HTMLParser):
    """All start tags with their attributes, and the text inside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in {"script", "style"} and data.strip():
            self.inline.append(data)


@pytest.fixture(scope="module")
def page() -> Tags:
    return Tags((SERVE / "page" / "index.html").read_text(encoding="utf-8"))


def test_the_files_are_found_through_the_package() -> None:
    """importlib.resources finds them, as in an installed wheel, and each file is small."""
    for name in ("index.html", "explorer.css", "icon.svg", *(f"{module}.js" for module in MODULES)):
        assert 0 < len((SERVE / "page" / name).read_bytes()) < 60_000, name


def test_scripts_styles_and_handlers_are_never_inline(page: Tags) -> None:
    """The content security policy `default-src 'self'` would block them without a message to the user."""
    assert page.inline == []
    for tag, attributes in page.tags:
        assert "style" not in attributes, tag
        assert not any(name.startswith("on") for name in attributes), tag


def test_every_address_is_relative_and_leads_to_a_file(page: Tags) -> None:
    """Relative addresses also work behind a path prefix; the modules import only each other."""
    found = [attributes[key] for _, attributes in page.tags for key in ("src", "href") if attributes.get(key)]
    for address in found:
        assert address is not None
        if address.startswith("static/"):
            assert (SERVE / "page" / address.removeprefix("static/")).is_file(), address
        else:
            assert address in {"#result", "openapi.json"}
    for module in MODULES:
        source = (SERVE / "page" / f"{module}.js").read_text(encoding="utf-8")
        for imported in re.findall(r'(?:from|import\() ?"([^"]+)"', source):
            assert imported.removeprefix("./").removesuffix(".js") in MODULES, imported
        assert "http:" not in source.replace("http://www.w3.org/2000/svg", "") and "https:" not in source


def test_every_control_has_a_name_and_every_reference_a_target(page: Tags) -> None:
    """Labels, aria-labelledby and aria-describedby name unique ids; a screen reader cannot announce a field without a label."""
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = {attributes.get("for") for tag, attributes in page.tags if tag == "label"}
    for tag, attributes in page.tags:
        for key in ("for", "aria-labelledby", "aria-describedby"):
            assert attributes.get(key) is None or attributes[key] in ids
        if tag in {"input", "select", "textarea", "canvas"} and attributes.get("type") != "radio":
            assert "aria-label" in attributes or attributes.get("id") in labelled, attributes


def test_scripts_use_only_ids_that_the_page_has(page: Tags) -> None:
    """byId("...") with a missing id would stop the script."""
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    sources = [(SERVE / "page" / f"{module}.js").read_text(encoding="utf-8") for module in MODULES]
    used = {name for source in sources for name in re.findall(r'(?:byId|getElementById|say)\("([\w-]+)"', source)}
    assert len(used) > 30
    assert used <= ids


def _luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, WCAG 2.1."""
    channels = [int(colour[m : m + 2], 16) / 255 for m in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a: str, b: str) -> float:
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_curves_stand_out_in_both_themes(theme: str) -> None:
    """Contrasts satisfy WCAG AA (4.5 for text, 3 for lines). Colour-blind readers can distinguish the hues of the reports."""
    css = (SERVE / "page" / "explorer.css").read_text(encoding="utf-8")
    block = re.search(rf'\[data-theme="{theme}"\] {{(.*?)}}', css, re.S)
    assert block
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block[1]))
    for text, ground in (
        ("text", "page"),
        ("text", "card"),
        ("soft", "page"),
        ("soft", "card"),
        ("good", "good-bg"),
        ("bad", "bad-bg"),
    ):
        assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for line in ("s0", "s1", "s2", "s3", "latent", "plain", "focus"):
        assert _contrast(colours[line], colours["card"]) >= 3.0, line
    hues = [hue.lower() for hue in (LIGHT if theme == "light" else DARK).hues]
    assert [colours[f"s{m}"] for m in range(4)] == hues[:4]


def test_samples_are_what_the_index_says() -> None:
    """Ids are unique, shapes match the files, and there are samples with and without a correct answer."""
    assert len({entry["id"] for entry in INDEX}) == len(INDEX)
    for entry in INDEX:
        image = pixels(entry)
        assert ([1, *image.shape] if image.ndim == 2 else [3, *image.shape[:2]]) == entry["shape"]
        assert (entry["label"] is None) == (entry["data"] == [])
    for shape in ([1, 28, 28], [3, 32, 32]):
        assert {entry["label"] is None for entry in INDEX if entry["shape"] == shape} == {True, False}


@pytest.mark.parametrize("entry", [e for e in GRAY if e["id"] != "shirt" and "grey" not in e["id"]], ids=lambda e: e["id"])
def test_strokes_are_laid_out_as_in_mnist(entry: dict[str, str]) -> None:
    """The longer side fills a box of 20 x 20, and the centre of mass is within half a pixel (shifts are by whole pixels)."""
    image = pixels(entry).astype(float)
    rows, columns = np.nonzero(image.max(1))[0], np.nonzero(image.max(0))[0]
    assert max(np.ptp(rows), np.ptp(columns)) + 1 in {19, 20}
    centre = [(np.arange(28) * image.sum(axis)).sum() / image.sum() for axis in (0, 1)]
    assert np.abs(np.array(centre) - 13.5).max() <= 0.5 + 1e-9


def test_the_script_draws_the_samples_that_are_shipped() -> None:
    """The images agree up to the antialiasing of other Pillow versions: the mean difference is below 2 of 255."""
    drawn = load_script("docs/figures/draw_samples.py").samples()
    assert [entry for entry, _ in drawn] == INDEX
    for entry, image in drawn:
        assert np.abs(np.asarray(image).astype(float) - pixels(entry)).mean() < 2, entry["id"]


def test_a_trained_model_reads_the_digits() -> None:
    """The LT-NODE of the zoo classifies all ten digits correctly, and is uncertain only about the drawing between 4 and 9.

    The probability is above 0.9 for the digits (the lowest is 0.94 for the 1) and below 0.9 for that drawing (0.58).
    """
    folder = ROOT / "zoo" / "lt-node-mnist-paper"
    if not folder.is_dir():
        pytest.skip("the zoo is in the repository only")
    from ltnode.trained import TrainedModel

    entries = [entry for entry in GRAY if entry["label"] and entry["data"] == ["mnist"]]
    assert len(entries) == 10
    between = next(entry for entry in GRAY if entry["id"] == "four-or-nine")
    raw = torch.from_numpy(np.stack([pixels(entry) for entry in [*entries, between]]))[:, None]
    *rows, last = TrainedModel.open(folder).rows(raw)
    assert [row.name for row in rows] == [entry["label"] for entry in entries]
    assert min(row.probability or 0 for row in rows) > 0.9
    assert last.name in {"4", "9"} and (last.probability or 1) < 0.9
