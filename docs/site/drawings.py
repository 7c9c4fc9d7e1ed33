"""Figures that fit light and dark pages: one SVG file whose colours are CSS variables, of which a page chooses the values.

A file shows the colours of the reader's system by itself. The site, whose reader can switch colours, gets one file per theme.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from ltnode.report.style import DARK, LIGHT, Theme

_STYLE = re.compile(r"<style id=\"colours\">.*?</style>", flags=re.DOTALL)
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_COORDINATES = re.compile(r" (?:d|x|y|points)=\"[^\"]*\"")
_LONG = re.compile(r"-?\d+\.\d{2,}")
_STYLED = re.compile(r" style=\"([^\"]*)\"")
_POINT = re.compile(r"<use [^>]*/>\n")
_SINGLE_GROUPS = re.compile(r"(<g clip-path=\"[^\"]*\">\n)<use [^>]*/>\n</g>\n(?:\1<use [^>]*/>\n</g>\n)+")
_REFERENCE = re.compile(r"(?:href=\"|url\()#([^\")]+)[\")]")
_NAME = re.compile(r" id=\"([^\"]*)\"")
_PICTURE = re.compile(r"(data:image/png;base64,\s*)([A-Za-z0-9+/=\s]+)\"")
_SMALL = 10.0
_REPEATED = 3
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

    svg, classes = _shortened(_COLOUR.sub(variable, svg))
    style = "".join(_style(_roles(theme), used, media) for theme, media in ((LIGHT, ""), (DARK, "dark")))
    head = f'<style id="colours">{style}</style>\n<style>{classes}</style>'
    return re.sub(r"(<svg [^>]*>)", rf"\1\n{head}", svg, count=1) + "\n"


def _shortened(svg: str) -> tuple[str, str]:
    """Round coordinates, join groups of one point each, and give styles that many elements share to classes.

    Returns:
        The drawing, and the rules of the classes.
    """
    svg = _COORDINATES.sub(lambda part: _LONG.sub(_rounded, part[0]), _NOISE.sub("", svg))
    svg = re.sub(r"\n\s*", "\n", svg).strip()
    svg = _PICTURE.sub(lambda found: f'{found[1]}{_fewer_colours(found[2])}"', _short_names(_joined(svg)))
    counts = Counter(_STYLED.findall(svg))
    names = {style: f"s{n}" for n, style in enumerate(style for style, count in counts.items() if count > _REPEATED)}
    svg = _STYLED.sub(lambda found: f' class="{names[found[1]]}"' if found[1] in names else found[0], svg)
    return svg, "".join(f".{name}{{{style}}}" for style, name in names.items())


def _short_names(svg: str) -> str:
    """Shorten the names of elements that others refer to, and drop the other names."""
    used = dict.fromkeys(_REFERENCE.findall(svg))
    names = {name: f"n{n:x}" for n, name in enumerate(used)}
    svg = _REFERENCE.sub(lambda found: found[0].replace(f"#{found[1]}", f"#{names[found[1]]}"), svg)
    return _NAME.sub(lambda found: f' id="{names[found[1]]}"' if found[1] in names else "", svg)


def _fewer_colours(encoded: str) -> str:
    """A bitmap with a palette of at most 256 colours, which is all that a colour map has."""
    from PIL import Image

    picture = Image.open(io.BytesIO(base64.b64decode(encoded)))
    written = io.BytesIO()
    picture.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(written, "png", optimize=True)
    return min(encoded, base64.b64encode(written.getvalue()).decode(), key=len)


def _rounded(number: re.Match[str]) -> str:
    """Two digits after the point for the small numbers of markers, one for places on the page."""
    value = float(number[0])
    return f"{value:.{2 if abs(value) < _SMALL else 1}f}"


def _joined(svg: str) -> str:
    """Scatter plots have a group around every point; one around all of them is enough."""
    return _SINGLE_GROUPS.sub(lambda found: f"{found[1]}{''.join(_POINT.findall(found[0]))}</g>\n", svg)


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
