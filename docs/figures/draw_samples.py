"""Draw the sample images of the explorer page: ``python docs/figures/draw_samples.py [FOLDER]``.

FOLDER is ltnode/serve/samples by default. All images are drawn from curves and shapes; none is taken from a data set. Gray images
follow the layout of MNIST: white on black, fitted into 20 x 20 pixels, with the centre of mass in the middle of 28 x 28.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

FOLDER = Path(__file__).parents[2] / "ltnode" / "serve" / "samples"
LARGE = 512  # images are drawn at this size and then reduced, for anti-aliasing
Point = tuple[float, float]
Colour = tuple[int, int, int]

# Pen strokes: points "x,y" of a curve, x to the right and y down, in percent of a square. A repeated point is a corner.
STROKES: dict[str, tuple[str, ...]] = {
    "0": ("58,6 34,14 22,48 32,86 54,94 74,76 78,42 68,12 50,7",),
    "1": ("40,20 56,5 56,5 54,50 51,96",),
    "2": ("24,26 36,9 58,6 72,24 62,48 40,72 22,91 22,91 50,88 80,90",),
    "3": ("26,14 48,5 70,15 68,34 44,46 44,46 72,56 74,80 50,95 22,84",),
    "4": ("34,8 28,34 24,56 24,56 52,57 80,53", "70,5 66,40 62,96"),
    "5": ("36,8 33,26 30,43 30,43 54,38 74,56 70,82 46,95 22,86", "36,8 56,8 78,6"),
    "6": ("64,5 42,22 28,52 28,80 46,95 68,86 72,64 54,52 34,64 29,78",),
    "7": ("20,12 48,10 78,10 78,10 64,42 50,70 42,96",),
    "8": ("68,16 50,5 32,16 36,34 54,47 72,64 68,86 48,95 28,84 30,64 52,46 68,30 67,14",),
    "9": ("70,20 52,7 32,18 28,38 44,50 64,40 71,20 71,20 68,58 60,96",),
    "four-or-nine": ("42,11 32,24 27,46 27,46 48,50 69,45", "68,10 68,40 62,96", "42,11 46,8.5 50,9"),
    "letter": ("30,5 29,50 28,95", "74,8 52,34 31,54 31,54 54,72 78,95"),
}
NAMES = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")


def curve(stroke: str, per_segment: int = 48) -> np.ndarray:
    """Catmull-Rom curve (n, 2) through the points of a stroke."""
    points = [[float(part) / 100 for part in point.split(",")] for point in stroke.split()]
    knots = np.array([points[0], *points, points[-1]])
    s = np.linspace(0, 1, per_segment, endpoint=False)[:, None]
    parts = []
    for a, b, c, d in zip(knots, knots[1:], knots[2:], knots[3:], strict=False):
        # At a repeated point both tangents are short, so that the curve has a corner.
        m, n = (c - a) / 2, (d - b) / 2
        h = c - b
        parts.append(b + s * m + s**2 * (3 * h - 2 * m - n) + s**3 * (m + n - 2 * h))
    return np.concatenate([*parts, knots[-1:]])


def ink(strokes: Sequence[str], width: float = 0.105, slant: float = 0.0) -> Image.Image:
    """Draw strokes with a soft pen whose width depends on direction and position, white on black, LARGE pixels wide."""
    image = Image.new("L", (LARGE, LARGE))
    pen = ImageDraw.Draw(image)
    for stroke in strokes:
        path = curve(stroke)
        path = np.stack([path[:, 0] + slant * (0.5 - path[:, 1]), path[:, 1]], axis=1)
        direction = np.gradient(path, axis=0)
        angle = np.arctan2(direction[:, 1], direction[:, 0])
        end = np.minimum(np.arange(len(path)), np.arange(len(path))[::-1]) / len(path)
        radius = width / 2 * (1 + 0.16 * np.sin(angle - 0.6)) * (0.78 + 0.22 * np.clip(end / 0.12, 0, 1))
        for (x, y), r in zip(0.1 * LARGE + 0.8 * LARGE * path, LARGE * radius, strict=True):
            pen.ellipse((x - r, y - r, x + r, y + r), fill=255)
    return image.filter(ImageFilter.GaussianBlur(LARGE / 90))


def as_mnist(image: Image.Image) -> Image.Image:
    """Scale to fit into 20 x 20, then place the centre of mass in the middle of 28 x 28."""
    image = image.crop(image.getbbox())
    scale = 20 / max(image.size)
    small = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.Resampling.BOX)
    mass = np.asarray(small, dtype=float)
    y, x = np.indices(mass.shape)
    canvas = Image.new("L", (28, 28))
    left = round(13.5 - (x * mass).sum() / mass.sum())
    top = round(13.5 - (y * mass).sum() / mass.sum())
    canvas.paste(small, (min(max(left, 0), 28 - small.width), min(max(top, 0), 28 - small.height)))
    return canvas


def shirt() -> Image.Image:
    """A T-shirt with folds, as in a product photo."""
    image = Image.new("L", (LARGE, LARGE))
    pen = ImageDraw.Draw(image)
    outline = [
        (0.36, 0.07), (0.43, 0.13), (0.57, 0.13), (0.64, 0.07), (0.80, 0.14), (0.95, 0.36), (0.81, 0.45), (0.75, 0.36),
        (0.76, 0.95), (0.24, 0.95), (0.25, 0.36), (0.19, 0.45), (0.05, 0.36), (0.20, 0.14),
    ]  # fmt: skip
    pen.polygon([(LARGE * x, LARGE * y) for x, y in outline], fill=205)
    for x, shade in ((0.33, 180), (0.47, 222), (0.66, 176)):
        pen.line([(LARGE * x, LARGE * 0.3), (LARGE * (x - 0.02), LARGE * 0.95)], fill=shade, width=LARGE // 22)
    pen.line(
        [(LARGE * 0.36, LARGE * 0.08), (LARGE * 0.43, LARGE * 0.14), (LARGE * 0.57, LARGE * 0.14), (LARGE * 0.64, LARGE * 0.08)],
        fill=120,
        width=LARGE // 40,
    )
    return image.filter(ImageFilter.GaussianBlur(LARGE / 120)).resize((28, 28), Image.Resampling.BOX)


def scene(paint: Callable[[ImageDraw.ImageDraw], None], sky: tuple[Colour, Colour], seed: int) -> Image.Image:
    """Shapes on a vertical gradient with photographic grain, 32 x 32 in colour."""
    rows = np.linspace(0, 1, LARGE)[:, None, None]
    ground = np.broadcast_to((1 - rows) * np.array(sky[0]) + rows * np.array(sky[1]), (LARGE, LARGE, 3))
    image = Image.fromarray(ground.astype(np.uint8), "RGB")
    paint(ImageDraw.Draw(image))
    small = image.filter(ImageFilter.GaussianBlur(LARGE / 100)).resize((32, 32), Image.Resampling.BOX)
    grain = np.random.default_rng(seed).normal(0, 4, (32, 32, 1))
    return Image.fromarray(np.clip(np.asarray(small) + grain, 0, 255).astype(np.uint8), "RGB")


def shape(pen: ImageDraw.ImageDraw, points: Sequence[Point], fill: Colour) -> None:
    pen.polygon([(LARGE * x, LARGE * y) for x, y in points], fill=fill)


def oval(pen: ImageDraw.ImageDraw, x: float, y: float, rx: float, ry: float, fill: Colour) -> None:
    pen.ellipse((LARGE * (x - rx), LARGE * (y - ry), LARGE * (x + rx), LARGE * (y + ry)), fill=fill)


def airplane(pen: ImageDraw.ImageDraw) -> None:
    body, shade, dark = (238, 240, 244), (186, 194, 206), (70, 84, 110)
    shape(pen, [(0.46, 0.46), (0.60, 0.44), (0.36, 0.12), (0.28, 0.12)], shade)
    shape(pen, [(0.14, 0.47), (0.22, 0.46), (0.16, 0.24), (0.06, 0.24)], shade)
    shape(
        pen,
        [(0.08, 0.50), (0.20, 0.44), (0.80, 0.44), (0.92, 0.49), (0.95, 0.53), (0.88, 0.57), (0.30, 0.58), (0.14, 0.55)],
        body,
    )
    shape(pen, [(0.40, 0.54), (0.58, 0.54), (0.34, 0.88), (0.25, 0.88)], (214, 219, 227))
    shape(pen, [(0.12, 0.53), (0.24, 0.54), (0.12, 0.68), (0.05, 0.68)], (214, 219, 227))
    shape(pen, [(0.84, 0.46), (0.90, 0.49), (0.84, 0.50)], dark)
    shape(pen, [(0.28, 0.48), (0.78, 0.47), (0.78, 0.49), (0.28, 0.50)], dark)


def ship(pen: ImageDraw.ImageDraw) -> None:
    shape(pen, [(0, 0.66), (1, 0.66), (1, 1), (0, 1)], (36, 84, 120))
    shape(pen, [(0.06, 0.56), (0.94, 0.54), (0.84, 0.76), (0.14, 0.76)], (58, 62, 74))
    shape(pen, [(0.07, 0.565), (0.94, 0.545), (0.92, 0.60), (0.09, 0.61)], (226, 226, 222))
    shape(pen, [(0.10, 0.71), (0.86, 0.71), (0.84, 0.77), (0.14, 0.77)], (156, 50, 44))
    shape(pen, [(0.20, 0.42), (0.58, 0.42), (0.62, 0.56), (0.18, 0.56)], (236, 234, 228))
    shape(pen, [(0.26, 0.30), (0.44, 0.30), (0.46, 0.42), (0.24, 0.42)], (222, 222, 218))
    shape(pen, [(0.48, 0.22), (0.57, 0.22), (0.57, 0.42), (0.48, 0.42)], (190, 64, 52))
    shape(pen, [(0.74, 0.24), (0.755, 0.24), (0.77, 0.55), (0.74, 0.55)], (80, 84, 92))
    for y, left in ((0.80, 0.05), (0.88, 0.30), (0.84, 0.66), (0.94, 0.10)):
        shape(pen, [(left, y), (left + 0.28, y), (left + 0.26, y + 0.015), (left + 0.02, y + 0.015)], (92, 142, 174))


def car(pen: ImageDraw.ImageDraw) -> None:
    red, deep, glass, rubber = (196, 38, 44), (140, 22, 30), (120, 150, 172), (26, 27, 30)
    shape(pen, [(0, 0.70), (1, 0.70), (1, 1), (0, 1)], (112, 112, 114))
    shape(pen, [(0.08, 0.80), (0.94, 0.80), (0.90, 0.86), (0.12, 0.86)], (70, 70, 72))
    shape(pen, [(0.22, 0.46), (0.34, 0.27), (0.66, 0.27), (0.80, 0.46)], deep)
    shape(pen, [(0.28, 0.46), (0.37, 0.31), (0.49, 0.31), (0.49, 0.46)], glass)
    shape(pen, [(0.53, 0.31), (0.64, 0.31), (0.74, 0.46), (0.53, 0.46)], glass)
    shape(pen, [(0.06, 0.50), (0.14, 0.45), (0.82, 0.45), (0.94, 0.54), (0.95, 0.74), (0.05, 0.74)], red)
    shape(pen, [(0.05, 0.66), (0.95, 0.66), (0.95, 0.74), (0.05, 0.74)], deep)
    shape(pen, [(0.87, 0.52), (0.94, 0.56), (0.94, 0.60), (0.87, 0.59)], (250, 236, 190))
    for x in (0.26, 0.76):
        oval(pen, x, 0.74, 0.115, 0.115, rubber)
        oval(pen, x, 0.74, 0.055, 0.055, (176, 178, 182))


def bird(pen: ImageDraw.ImageDraw) -> None:
    shape(pen, [(0, 0.84), (0.5, 0.81), (1, 0.85), (1, 0.92), (0.5, 0.88), (0, 0.91)], (92, 70, 50))
    shape(pen, [(0.30, 0.60), (0.02, 0.80), (0.10, 0.86), (0.40, 0.72)], (74, 60, 52))
    oval(pen, 0.48, 0.56, 0.24, 0.20, (150, 104, 62))
    oval(pen, 0.54, 0.62, 0.19, 0.15, (216, 190, 150))
    oval(pen, 0.70, 0.34, 0.15, 0.14, (128, 84, 50))
    shape(pen, [(0.82, 0.31), (0.97, 0.37), (0.82, 0.41)], (226, 160, 50))
    oval(pen, 0.745, 0.31, 0.03, 0.03, (16, 14, 12))
    shape(pen, [(0.30, 0.48), (0.54, 0.46), (0.50, 0.62), (0.20, 0.72)], (90, 68, 52))
    for x in (0.48, 0.57):
        shape(pen, [(x, 0.74), (x + 0.02, 0.74), (x + 0.03, 0.86), (x + 0.01, 0.86)], (90, 66, 40))


def house_number(pen: ImageDraw.ImageDraw) -> None:
    pen.rectangle((0, 0, LARGE, LARGE), fill=(38, 70, 122))
    pen.rectangle((0, int(0.9 * LARGE), LARGE, LARGE), fill=(30, 56, 100))
    digit = Image.new("L", (LARGE, LARGE))
    digit.paste(ink(STROKES["5"], width=0.13))
    pen.bitmap((0, 0), ImageChops.multiply(digit, Image.new("L", digit.size, 245)), fill=(240, 232, 206))


def noise(mode: str) -> Image.Image:
    """Uniform noise in every pixel and channel; "L" is 28 x 28 in grey, "RGB" 32 x 32 in colour."""
    shape = (28, 28) if mode == "L" else (32, 32, 3)
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), mode)


def gradient(mode: str) -> Image.Image:
    """From black on the left to white, or to blue, on the right."""
    side = 28 if mode == "L" else 32
    ramp = np.broadcast_to(np.linspace(0, 255, side).astype(np.uint8), (side, side))
    if mode == "L":
        return Image.fromarray(np.ascontiguousarray(ramp), mode)
    return Image.fromarray(np.stack([255 - ramp, ramp.T, ramp], axis=2), mode)


def samples() -> list[tuple[dict[str, object], Image.Image]]:
    """All samples: entry of index.json and image."""
    found: list[tuple[dict[str, object], Image.Image]] = []

    def add(name: str, title: str, image: Image.Image, label: str | None = None, data: Sequence[str] = ()) -> None:
        shape = [1 if image.mode == "L" else 3, image.height, image.width]
        found.append(
            ({"id": name, "title": title, "file": f"{name}.png", "shape": shape, "label": label, "data": list(data)}, image)
        )

    for digit, title in enumerate(NAMES):
        add(f"digit-{digit}", title, as_mnist(ink(STROKES[str(digit)], slant=0.08)), str(digit), ["mnist"])
    add("four-or-nine", "Four or nine?", as_mnist(ink(STROKES["four-or-nine"])))
    add("letter-k", "The letter K", as_mnist(ink(STROKES["letter"])))
    add("shirt", "A T-shirt", shirt(), "T-shirt/top", ["fashion-mnist"])
    add("noise-grey", "Pure noise", noise("L"))
    add("black-grey", "All black", Image.new("L", (28, 28)))
    add("gradient-grey", "A gradient", gradient("L"))
    sky = ((92, 150, 214), (178, 212, 240))
    add("airplane", "Airplane", scene(airplane, sky, 1), "airplane", ["cifar10"])
    add("ship", "Ship", scene(ship, ((150, 190, 222), (214, 226, 232)), 2), "ship", ["cifar10"])
    add("car", "Car", scene(car, ((196, 204, 208), (150, 158, 150)), 3), "automobile", ["cifar10"])
    add("bird", "Bird", scene(bird, ((140, 176, 120), (104, 148, 92)), 4), "bird", ["cifar10"])
    add("house-number", "House number 5", scene(house_number, sky, 5), "5", ["svhn"])
    add("noise", "Pure noise", noise("RGB"))
    add("black", "All black", Image.new("RGB", (32, 32)))
    add("gradient", "A gradient", gradient("RGB"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    drawn = samples()
    for entry, image in drawn:
        image.save(folder / str(entry["file"]), optimize=True)
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry, _ in drawn)
    (folder / "index.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
