"""Train on and predict a folder of generated photos that is read while it is used: time and peak memory.

``python benchmarks/photo_folder.py --json benchmarks/results/photo_folder.json`` writes 20,000 JPEG files of 224 pixels into a
temporary folder (about 400 MB), trains LT-NODE for one epoch with the commands of a user, and predicts the test images. Each
command is a process of its own, whose peak memory the operating system measures. ``--images 500`` is a quick try.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from own_process import cost_of_command
from PIL import Image

from ltnode.training.provenance import source_state

CLASSES = ("bars", "blobs", "rings", "waves")


def photo(kind: int, size: int, rng: np.random.Generator) -> Image.Image:
    """A coloured pattern with random phase, scale and noise."""
    down, across = np.mgrid[:size, :size] / size - rng.uniform(0.3, 0.7, 2)[:, None, None]
    radius, scale = np.hypot(down, across), rng.uniform(15, 40)
    pattern = (np.sign(np.sin(scale * across)), np.cos(scale * down) * np.cos(scale * across), np.sin(scale * radius))
    value = (*pattern, np.sin(scale * (down + across**2)))[kind]
    pixels = 128 + 60 * value[..., None] * rng.uniform(0.3, 1, 3) + rng.normal(0, 12, (size, size, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def write_photos(folder: Path, images: int, size: int) -> None:
    """Write the images, a fifth of them into test/ and the others into train/."""
    rng = np.random.default_rng(0)
    for number in range(images):
        kind = number % len(CLASSES)
        part = "test" if (number // len(CLASSES)) % 5 == 0 else "train"
        place = folder / part / CLASSES[kind]
        place.mkdir(parents=True, exist_ok=True)
        photo(kind, size, rng).save(place / f"{number:05d}.jpg", quality=85)


def main() -> None:
    """Generate, train, predict, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ltnode-photos-") as name:
        folder = Path(name)
        began = time.perf_counter()
        write_photos(folder / "photos", options.images, options.size)
        record: dict[str, Any] = {
            "images": options.images,
            "size": options.size,
            "pixels_mib": round(3 * options.images * options.size**2 / 2**20),
            "generate": {"seconds": round(time.perf_counter() - began, 1)},
        }
        run, photos = str(folder / "run"), str(folder / "photos")
        record["train one epoch"] = cost_of_command(
            "train", "--data", photos, "--out", run, "--set", "epochs=1", "--set", "milestones=[]", "--set", "batch_size=32"
        )
        record["predict the test images"] = cost_of_command(
            "predict", run, str(folder / "photos" / "test"), "--out", str(folder / "predictions.csv")
        )
    record |= {"threads": os.environ.get("OMP_NUM_THREADS"), "machine": platform.machine(), **source_state()}
    text = json.dumps(record, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
