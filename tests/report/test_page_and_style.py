"""Pages and the appearance of figures: escaped, self-contained and deterministic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pictures import check_self_contained

from ltnode.report.page import Page
from ltnode.report.style import DARK, LIGHT, new_figure, save_figure


def line_figure() -> Callable[..., Any]:
    def draw(theme: Any) -> Any:
        figure = new_figure(2.0, 1.0)
        figure.subplots().plot([0, 1], color=theme.of_model("lt-node-prior-1"))
        return figure

    return draw


def test_a_figure_is_the_same_every_time_and_has_two_themes(tmp_path: Path) -> None:
    """The same drawing gives the same bytes; dark and light drawings differ; matplotlib's settings are restored."""
    import matplotlib

    before = matplotlib.rcParams["figure.facecolor"]
    a = save_figure(line_figure(), tmp_path / "a.b", alt="a line")
    b = save_figure(line_figure(), tmp_path / "b", alt="a line")
    assert a.light == b.light == (tmp_path / "a.b.svg").read_bytes()
    assert a.png.read_bytes() == b.png.read_bytes()
    assert DARK.background.encode() in a.dark
    assert DARK.background.encode() not in a.light
    assert matplotlib.rcParams["figure.facecolor"] == before
    assert LIGHT.of_model("lt-node-prior-1") == LIGHT.models["lt-node"]
    assert LIGHT.of_model("lt-node-mixture") == LIGHT.models["lt-node-mixture"]
    assert LIGHT.of_model("unheard-of") == LIGHT.hues[0]


def test_a_page_escapes_what_it_shows(tmp_path: Path) -> None:
    """Markup in texts is shown, not interpreted; words between backticks are code."""
    page = Page("a < b", "lead & more")
    page.heading("<script>")
    page.paragraph('say `x < y` and "quotes"')
    page.code("<b>")
    page.note("bad", good=False)
    page.table(("name", "value"), [("<i>", "1")])
    page.figure(save_figure(line_figure(), tmp_path / "f", alt='a "line"', caption="cap"))
    text = page.write(tmp_path / "sub" / "page.html").read_text()
    check_self_contained(text.replace("&lt;script&gt;", ""))
    assert "<h1>a &lt; b</h1>" in text
    assert "<code>x &lt; y</code>" in text
    assert "<pre><code>&lt;b&gt;</code></pre>" in text
    assert "<i>" not in text
    assert "<td>1</td>" in text
    assert 'alt="a &quot;line&quot;"' in text
