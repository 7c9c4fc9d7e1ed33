"""Checks of pictures and pages, for several tests."""

from __future__ import annotations

import io
import re
from pathlib import Path

from PIL import Image


def colours(picture: Path | bytes) -> int:
    """Number of distinct colours in a picture; a blank one has 1."""
    with Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture) as image:
        found = image.convert("RGB").getcolors(maxcolors=1 << 24)
    assert found is not None
    return len(found)


def check_self_contained(page: str) -> None:
    """Check that every address of a page is a data URI, so that it makes no requests."""
    addresses = re.findall(r'(?:src|srcset|href)="([^"]*)"', page)
    assert addresses
    assert all(address.startswith("data:") for address in addresses)
    assert not re.search(r"url\(|@import|<script", page)
