"""Sentences of Markdown texts, to keep them short."""

from __future__ import annotations

import re


def sentences(markdown: str) -> list[list[str]]:
    """The words of every sentence of the prose: without blocks of code, tables, headings, pictures and remarks.

    A colon does not end a sentence; an item of a list without a full stop is one.
    """
    text = re.sub(r"```.*?```|<!--.*?-->|<picture>.*?</picture>|!\[.*?\]\(.*?\)", "", markdown, flags=re.DOTALL)
    text = re.sub(r"^(#|\||<).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = re.split(r"(?<=[.?!])[*)]*(?:\s+|$)|\n\s*\n|\n(?=- )", text.replace("P. K.", "P.K."))
    return [words for part in parts if (words := re.findall(r"[^\s*`]*\w[^\s*`]*", part))]
