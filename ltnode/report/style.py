"""The appearance of all figures: colours that colour-blind readers can distinguish, for light and for dark pages."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ltnode.errors import missing_extra
from ltnode.report.naming import MODELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 160


@dataclass(frozen=True)
class Theme:
    """Colours for light or for dark pages; the hues are those of Okabe and Ito, lightened for dark pages.

    Attributes:
        dark: Whether it is for a dark page.
        background: Background of pages and figures.
        text: Colour of text.
        faint: Colour of axes, ticks and grids.
        shade: Background of marked regions.
        point: Colour of observations.
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
        """Colour of a model; a variant (``lt-node-...``) without a colour has that of its base model."""
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
    models={name: look.light for name, look in MODELS.items()},
    hues=("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"),
)
DARK = Theme(
    dark=True,
    background="#15181c",
    text="#e6e8ea",
    faint="#6b7178",
    shade="#20252b",
    point="#c3c8cd",
    models={name: look.dark for name, look in MODELS.items()},
    hues=("#56B4E9", "#F0863A", "#2FC79B", "#E3A1C6", "#8AD0F5", "#E0B83C"),
)


@dataclass(frozen=True)
class SavedFigure:
    """A figure on disk, and what a page needs to show it.

    Attributes:
        png: Bitmap file in light colours.
        svg: Vector file in light colours.
        light: Content of the SVG file.
        dark: Content of the same drawing in dark colours.
        alt: Description for readers who cannot see it.
        caption: Text below it.
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
        draw: Function that draws the figure in a theme; it is called within `themed`, once per theme.
        stem: Path without suffix; its folder is created.
        alt: Description for readers who cannot see the figure.
        caption: Text that a page puts below it.
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
    """Apply the matplotlib settings of a theme, and restore the previous ones afterwards.

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
    """Create an empty figure (in inches) without pyplot's global state, so that it works on any thread and without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def outer_labelled_panels(
    count: int, columns: int, size: tuple[float, float], x_label: str, y_label: str
) -> tuple[Figure, list[Axes]]:
    """Create a figure (size in inches) of panels with common axes, which are labelled only at the left and at the bottom."""
    rows = -(-count // columns)
    figure = new_figure(*size)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    for column in range(min(columns, count)):
        lowest = grid[(count - 1 - column) // columns, column]
        lowest.set_xlabel(x_label)
        lowest.tick_params(labelbottom=True)
    for row in range(rows):
        grid[row, 0].set_ylabel(y_label)
    return figure, panels[:count]


def panel_title(axes: Axes, title: str, detail: str = "") -> None:
    """Set a bold title on the left, and a smaller detail on the right."""
    axes.set_title(title, loc="left", fontweight="bold")
    if detail:
        axes.set_title(detail, loc="right", fontsize=8.5)


def _render(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # Without a date in the file, the same figure has the same bytes.
    figure.savefig(buffer, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def _settings(theme: Theme) -> dict[Any, Any]:
    return {
        "figure.facecolor": theme.background,
        "figure.dpi": _DPI,
        "savefig.dpi": _DPI,
        "savefig.facecolor": theme.background,
        "svg.fonttype": "path",  # so that text looks the same on every machine
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
