"""Writes a report: everything goes on one page, and figures and tables also into separate files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ltnode.report.page import Page
from ltnode.report.style import LIGHT, Theme, save_figure, themed
from ltnode.report.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ReportWriter:
    """A report, written from top to bottom to a page and to a folder."""

    def __init__(self, page: Page, out: Path) -> None:
        self.page, self.out = page, out
        self._heading = ""

    def heading(self, text: str) -> None:
        """Begin a section. Its heading appears together with its first content, so that no section is empty."""
        self._heading = text

    def figure(self, *name: str | None, draw: Callable[[Theme], Figure], alt: str, caption: str) -> None:
        """Add a figure, and write it as PDF, SVG and PNG.

        Args:
            name: Words of the file name; empty ones are left out.
            draw: Function that draws it in a theme.
            alt: Description for readers who cannot see it.
            caption: Text below it.
        """
        self._begin()
        # Only characters that every file system accepts.
        stem = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(word for word in name if word)).strip("-")
        drawn: dict[bool, Figure] = {}

        def draw_once(theme: Theme) -> Figure:
            drawn[theme.dark] = draw(theme)
            return drawn[theme.dark]

        self.page.figure(save_figure(draw_once, self.out / "figures" / stem, alt=alt, caption=caption))
        with themed(LIGHT):
            # The light drawing already has its layout; computing it again would take half of the time.
            drawn[False].set_layout_engine("none")
            # Without a date in the file, the same figure has the same bytes.
            drawn[False].savefig(self.out / "figures" / f"{stem}.pdf", metadata={"CreationDate": None})

    def table(self, table: Table) -> None:
        """Add a table unless it is empty, and write it as Markdown, LaTeX and HTML if it has a name."""
        if not table.rows:
            return
        self._begin()
        if table.title:
            self.page.paragraph(f"{table.title}.")
        self.page.table(table.header, [[_unbroken(cell) for cell in row] for row in table.rows], words=table.words)
        if table.note:
            self.page.paragraph(table.note)
        if table.name:
            folder = self.out / "tables"
            folder.mkdir(parents=True, exist_ok=True)
            for suffix, text in (("md", table.markdown()), ("tex", table.latex()), ("html", table.html())):
                (folder / f"{table.name}.{suffix}").write_text(text, encoding="utf-8")

    def _begin(self) -> None:
        if self._heading:
            self.page.heading(self._heading)
            self._heading = ""


def _unbroken(cell: str) -> str:
    """Prevent line breaks within numbers with their deviation, and within names of models."""
    return cell.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}").replace("-NODE", "\N{NON-BREAKING HYPHEN}NODE")
