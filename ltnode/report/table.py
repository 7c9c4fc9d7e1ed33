"""Tables of strings, which can be written as Markdown, LaTeX and HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

MISSING = "–"
_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "±": r"$\pm$", "→": r"$\to$",
     "–": "--", "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)  # fmt: skip


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] | None = None) -> str:
    """Format a table in Markdown; bars are escaped, and line breaks become spaces.

    Args:
        header: Names of the columns.
        rows: One cell per column.
        words: Indices of the columns that are aligned left; the others are aligned right. By default all are aligned left.
    """
    rule = ["---" if words is None or column in words else "---:" for column in range(len(header))]
    lines = [[" ".join(cell.replace("|", r"\|").split()) for cell in line] for line in (header, *rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (lines[0], rule, *lines[1:]))


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        name: Name of its files, without suffix; empty if it is shown only on the page.
        title: What it shows.
        header: Names of the columns.
        rows: One cell per column.
        words: Indices of the columns that hold words and are aligned left; the others hold numbers.
        note: Explanation below the table.
    """

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0, 1)
    note: str = ""

    def markdown(self) -> str:
        """Format the table for a README, with its title and its note."""
        note = f"\n{self.note}\n" if self.note else ""
        return f"**{self.title}**\n\n{markdown_table(self.header, self.rows, self.words)}{note}"

    def latex(self) -> str:
        """Format the table for a paper; it needs the package booktabs."""
        columns = "".join("l" if column in self.words else "r" for column in range(len(self.header)))
        header, *body = (" & ".join(cell.translate(_LATEX) for cell in line) + r" \\" for line in (self.header, *self.rows))
        caption = f"{self.title}. {self.note}".strip().translate(_LATEX)
        lines = "\n".join(f"    {line}" for line in body)
        return (
            "\\begin{table}\n  \\centering\n"
            f"  \\caption{{{caption}}}\n  \\label{{tab:{self.name}}}\n"
            f"  \\begin{{tabular}}{{{columns}}}\n    \\toprule\n    {header}\n    \\midrule\n"
            f"{lines}\n    \\bottomrule\n  \\end{{tabular}}\n\\end{{table}}\n"
        )

    def html(self) -> str:
        """Format the table as a bare HTML element."""

        def line(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "\n".join(line(row, "td") for row in self.rows)
        return (
            f"<table>\n<caption>{html.escape(self.title)}</caption>\n<thead>{line(self.header, 'th')}</thead>\n"
            f"<tbody>\n{body}\n</tbody>\n</table>\n"
        )
