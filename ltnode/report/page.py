"""A self-contained page: figures, tables and text in one HTML file, light and dark, without any requests."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from pathlib import Path

from ltnode.report.style import DARK, LIGHT, SavedFigure

_CODE = re.compile(r"`([^`]+)`")


class Page:
    """An HTML page that is written from top to bottom.

    All text is escaped; only words between backticks are formatted, as code.

    Args:
        title: Heading of the page.
        lead: One or two sentences below it.
    """

    def __init__(self, title: str, lead: str = "") -> None:
        self.title = title
        self._blocks = [f"<h1>{_text(title)}</h1>"]
        if lead:
            self._blocks.append(f'<p class="lead">{_text(lead)}</p>')

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._blocks.append(f"<h2>{_text(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """Add a paragraph."""
        self._blocks.append(f"<p>{_text(text)}</p>")

    def note(self, text: str, *, good: bool) -> None:
        """Add a highlighted line: the result of a check."""
        self._blocks.append(f'<p class="note {"good" if good else "bad"}">{_text(text)}</p>')

    def code(self, text: str) -> None:
        """Add a block of code."""
        self._blocks.append(f"<pre><code>{html.escape(text)}</code></pre>")

    def figure(self, figure: SavedFigure) -> None:
        """Add a figure with its caption, in the theme that the reader's system prefers."""
        caption = f"<figcaption>{_text(figure.caption)}</figcaption>" if figure.caption else ""
        self._blocks.append(
            f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{_data_uri(figure.dark)}">'
            f'<img src="{_data_uri(figure.light)}" alt="{html.escape(figure.alt)}"></picture>{caption}</figure>'
        )

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, words: Sequence[int] = (0,)) -> None:
        """Add a table of strings.

        Args:
            header: Names of the columns.
            rows: One cell per column.
            words: Indices of the columns that hold words and are aligned left; the others are aligned right.
        """

        def line(cells: Sequence[str], tag: str) -> str:
            return "".join(f"<{tag}{' class=w' if m in words else ''}>{_text(cell)}</{tag}>" for m, cell in enumerate(cells))

        body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
        self._blocks.append(
            f'<div class="scroll"><table><thead><tr>{line(header, "th")}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def write(self, path: Path) -> Path:
        """Write the file and create its folder; returns the path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        body = "\n".join(self._blocks)
        path.write_text(
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
            f"<title>{html.escape(self.title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
            f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n",
            encoding="utf-8",
        )
        return path


def _text(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", html.escape(text))


def _data_uri(svg: bytes) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


_STYLE = f"""
:root {{ --bg: {LIGHT.background}; --text: {LIGHT.text}; --soft: #5f6368; --line: #dfe2e6; --shade: {LIGHT.shade};
  --good: #00694d; --bad: #a33a00; --good-bg: #e4f5ef; --bad-bg: #fdeee4; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --bg: {DARK.background}; --text: {DARK.text}; --soft: #a5abb1; --line: #343a41; --shade: {DARK.shade};
    --good: #6fe0bf; --bad: #ffb98a; --good-bg: #12332a; --bad-bg: #3a2415; }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--bg); color: var(--text); font: 16px/1.6 system-ui, -apple-system, "Segoe UI", sans-serif; }}
main {{ max-width: 64rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }}
h1 {{ font-size: 1.9rem; line-height: 1.2; margin: 0 0 .6rem; letter-spacing: -.01em; }}
h2 {{ font-size: 1.2rem; margin: 2.4rem 0 .5rem; }}
p {{ max-width: 46rem; margin: .6rem 0; }}
.lead {{ font-size: 1.1rem; color: var(--soft); }}
figure {{ margin: 1.4rem 0; }}
img {{ display: block; width: 100%; height: auto; }}
figcaption {{ color: var(--soft); font-size: .88rem; max-width: 46rem; margin-top: .4rem; }}
.scroll {{ overflow-x: auto; margin: 1rem 0; }}
table {{ border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; min-width: 100%; }}
th, td {{ padding: .4rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }}
th {{ font-weight: 600; color: var(--soft); vertical-align: bottom; white-space: nowrap; }}
.w {{ text-align: left; }}
td:first-child {{ font-weight: 600; white-space: nowrap; }}
code {{ font: .9em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  background: var(--shade); border-radius: 4px; padding: .1em .3em; }}
pre {{ background: var(--shade); border-radius: 8px; padding: .9rem 1.1rem; overflow-x: auto; line-height: 1.45; }}
pre code {{ background: none; padding: 0; }}
.note {{ padding: .6rem .9rem; border-radius: 8px; }}
.good {{ color: var(--good); background: var(--good-bg); }}
.bad {{ color: var(--bad); background: var(--bad-bg); }}
"""
