"""The look of every figure: colours that colour-blind readers tell apart, for light and for dark pages."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ltnode.errors import missing_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 160


@dataclass(frozen=True)
class Theme:
    """Colours of one page mode; hues are those of Okabe and Ito, lightened where the page is dark.

    Attributes:
        dark: Whether it is for a dark page.
        background: Of page and figure.
        text: Of words and numbers.
        faint: Of axes, ticks and grids.
        shade: Behind regions worth marking.
        point: Of observations.
        models: One colour per model, used for nothing else; see `of_model`.
        hues: Further colours, in the order of use.
    """

    dark: bool
    background: str
    text: str
    faint: str
    shade: str
    point: str
    models: Mapping[str, str] = field(default_factory=dict)
    hues: tuple[str, ...] = ()

    def of_model(self, name: str) -> str:
        """The colour of a model; variants (``lt-node-...``) that have none of their own take that of their base."""
        for length in range(name.count("-") + 1):
            base = name.rsplit("-", length)[0]
            if base in self.models:
                return self.models[base]
        return self.hues[0]


LIGHT = Theme(
    dark=False,
    background="#ffffff",
    text="#1c1e21",
    faint="#9aa0a6",
    shade="#eef1f4",
    point="#3c4043",
    models={
        "node": "#5f6368",
        "uni-node": "#D55E00",
        "lt-node": "#0072B2",
        "alt-node": "#009E73",
        "lt-node-mixture": "#56B4E9",
        "sde-net": "#CC79A7",
        "node-gp": "#B58900",
        "steer": "#882255",
        "ensemble": "#332288",
        "mc-dropout": "#6B7A1F",
    },
    hues=("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"),
)
DARK = Theme(
    dark=True,
    background="#15181c",
    text="#e6e8ea",
    faint="#6b7178",
    shade="#20252b",
    point="#c3c8cd",
    models={
        "node": "#a5abb1",
        "uni-node": "#F0863A",
        "lt-node": "#56B4E9",
        "alt-node": "#2FC79B",
        "lt-node-mixture": "#8AD0F5",
        "sde-net": "#E3A1C6",
        "node-gp": "#E0B83C",
        "steer": "#D07AA0",
        "ensemble": "#A79BE8",
        "mc-dropout": "#B7C464",
    },
    hues=("#56B4E9", "#F0863A", "#2FC79B", "#E3A1C6", "#8AD0F5", "#E0B83C"),
)


@dataclass(frozen=True)
class SavedFigure:
    """A figure on disk, and what a page needs to show it.

    Attributes:
        png: The picture, light.
        svg: The drawing, light.
        light: Content of the light SVG.
        dark: Content of the dark one.
        alt: What it shows, in words.
        caption: The line under it.
    """

    png: Path
    svg: Path
    light: bytes
    dark: bytes
    alt: str
    caption: str


def save_figure(draw: Callable[[Theme], Figure], stem: Path, *, alt: str, caption: str = "") -> SavedFigure:
    """Draw a figure in both themes and write ``stem.png`` and ``stem.svg``.

    Args:
        draw: Makes the figure in a theme; called inside of `themed`, once for each.
        stem: Path without suffix; its folder is made.
        alt: What the figure shows, in words, for those who cannot see it.
        caption: The line that a page puts under it.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    with themed(LIGHT):
        figure = draw(LIGHT)
        light, picture = _render(figure, "svg"), _render(figure, "png")
    with themed(DARK):
        dark = _render(draw(DARK), "svg")
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    png.write_bytes(picture)
    svg.write_bytes(light)
    return SavedFigure(png, svg, light, dark, alt, caption)


@contextmanager
def themed(theme: Theme) -> Iterator[None]:
    """Settings of matplotlib for a theme, put back afterwards.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise missing_extra("matplotlib", "plot", "a figure") from error
    with matplotlib.rc_context(_settings(theme)):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches, apart from pyplot's global state, so that it works on any thread and without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def panel_title(axes: Axes, title: str, detail: str = "") -> None:
    """A bold title flush left, with a fainter detail behind it."""
    axes.set_title(title, loc="left", fontweight="bold")
    if detail:
        axes.set_title(detail, loc="right", fontsize=8.5)


def _render(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # No date in the file: the same figure has the same bytes.
    figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def _settings(theme: Theme) -> dict[Any, Any]:
    return {
        "figure.facecolor": theme.background,
        "figure.dpi": _DPI,
        "savefig.dpi": _DPI,
        "savefig.facecolor": theme.background,
        "svg.fonttype": "path",  # a page shows the same letters on every machine
        "svg.hashsalt": "ltnode",
        "font.family": "DejaVu Sans",
        "font.size": 9.5,
        "axes.facecolor": theme.background,
        "axes.edgecolor": theme.faint,
        "axes.labelcolor": theme.text,
        "axes.titlecolor": theme.text,
        "axes.titlesize": 10.5,
        "axes.titlepad": 7,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": theme.faint,
        "ytick.color": theme.faint,
        "xtick.labelcolor": theme.text,
        "ytick.labelcolor": theme.text,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
        "text.color": theme.text,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "lines.linewidth": 1.6,
        "lines.solid_capstyle": "round",
    }
