"""Figures that fit light and dark pages: one SVG file whose colours are CSS variables, of which a page chooses the values.

A file shows the colours of the reader's system by itself. The site, whose reader can switch colours, gets one file per theme.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from ltnode.report.style import DARK, LIGHT, Theme

_STYLE = re.compile(r"<style id=\"colours\">.*?</style>", flags=re.DOTALL)
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_COORDINATES = re.compile(r" (?:d|x|y|points)=\"[^\"]*\"")
_LONG = re.compile(r"(-?\d+\.\d\d)\d+")
_NOISE = re.compile(r"<!--.*?-->|<metadata>.*?</metadata>|<\?xml[^>]*>|<!DOCTYPE[^>]*>", flags=re.DOTALL)


def _roles(theme: Theme) -> dict[str, str]:
    """The colours of a theme by their role."""
    single = {name: getattr(theme, name) for name in ("background", "text", "faint", "shade", "point")}
    models = {f"model-{name}": colour for name, colour in theme.models.items()}
    return {**single, **{f"hue-{n}": colour for n, colour in enumerate(theme.hues)}, **models}


def _markers() -> dict[str, str]:
    """One colour per role that no other role has, close to the light one."""
    found: dict[str, str] = {}
    for role, colour in _roles(LIGHT).items():
        value = int(colour[1:], 16)
        while f"#{value:06x}" in found.values():
            value = value - 1 if value % 256 else value + 1
        found[role] = f"#{value:06x}"
    return found


MARKERS = _markers()
ADAPTIVE = dataclasses.replace(
    LIGHT,
    **{name: MARKERS[name] for name in ("background", "text", "faint", "shade", "point")},
    models={name: MARKERS[f"model-{name}"] for name in LIGHT.models},
    hues=tuple(MARKERS[f"hue-{n}"] for n in range(len(LIGHT.hues))),
)
"""The theme in which a figure is drawn that `adaptive` makes fit for both."""


def adaptive(svg: str) -> str:
    """Turn a drawing in the theme `ADAPTIVE` into one whose colours follow the reader's; shortens coordinates."""
    roles = {colour: role for role, colour in MARKERS.items()}
    used: set[str] = set()

    def variable(found: re.Match[str]) -> str:
        role = roles.get(found[0].lower())
        if role is None:
            return found[0]
        used.add(role)
        return f"var(--{role})"

    svg = _COORDINATES.sub(lambda part: _LONG.sub(r"\1", part[0]), _NOISE.sub("", svg))
    svg = re.sub(r"\n+", "\n", _COLOUR.sub(variable, svg)).strip()
    style = "".join(_style(_roles(theme), used, media) for theme, media in ((LIGHT, ""), (DARK, "dark")))
    return re.sub(r"(<svg [^>]*>)", rf'\1\n<style id="colours">{style}</style>', svg, count=1) + "\n"


def in_theme(svg: str, theme: Theme) -> str:
    """A drawing of `adaptive` in the colours of one theme."""
    used = set(re.findall(r"var\(--([\w-]+)\)", svg))
    return _STYLE.sub(f'<style id="colours">{_style(_roles(theme), used)}</style>', svg)


def _style(colours: Mapping[str, str], used: set[str], media: str = "") -> str:
    values = "".join(f"--{role}:{colours[role]};" for role in _ordered(colours, used))
    rule = f":root{{{values}}}"
    return f"@media(prefers-color-scheme:{media}){{{rule}}}" if media else rule


def _ordered(colours: Mapping[str, str], used: set[str]) -> Iterator[str]:
    return (role for role in colours if role in used)
