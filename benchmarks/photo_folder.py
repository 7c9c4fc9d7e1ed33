"""Train on and predict a folder of generated photos that is read while it is used: time and peak memory.

``python benchmarks/photo_folder.py --json benchmarks/results/photo_folder.json`` writes 20,000 JPEG files of 224 pixels into a
temporary folder (about 400 MB; 2,000 different images and copies of them), trains LT-NODE for one epoch with the commands of a
user, and predicts the test images, and all images block by block. Each command is a process of its own, whose peak memory the
operating system measures. ``--images 500`` is a quick try.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from own_process import cost_of_command
from PIL import Image

from ltnode.training.provenance import source_state

CLASSES = ("bars", "blobs", "rings", "waves")
_ONE_EPOCH = ("--set", "epochs=1", "--set", "milestones=[]", "--set", "batch_size=32")
DIFFERENT = 2000
"""Images that are drawn, which takes longer than to read them; a multiple of 20, so that copies keep class and part."""


def photo(kind: int, size: int, rng: np.random.Generator) -> Image.Image:
    """A coloured pattern with random phase, scale and noise."""
    down, across = np.mgrid[:size, :size] / size - rng.uniform(0.3, 0.7, 2)[:, None, None]
    radius, scale = np.hypot(down, across), rng.uniform(15, 40)
    pattern = (np.sign(np.sin(scale * across)), np.cos(scale * down) * np.cos(scale * across), np.sin(scale * radius))
    value = (*pattern, np.sin(scale * (down + across**2)))[kind]
    pixels = 128 + 60 * value[..., None] * rng.uniform(0.3, 1, 3) + rng.normal(0, 12, (size, size, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def write_photos(folder: Path, images: int, size: int) -> None:
    """Write the images, a fifth of them into test/ and the others into train/; the later ones are copies of the first."""
    rng = np.random.default_rng(0)
    written: list[Path] = []
    for number in range(images):
        kind = number % len(CLASSES)
        part = "test" if (number // len(CLASSES)) % 5 == 0 else "train"
        place = folder / part / CLASSES[kind]
        place.mkdir(parents=True, exist_ok=True)
        file = place / f"{number:05d}.jpg"
        if number < DIFFERENT:
            photo(kind, size, rng).save(file, quality=85)
            written.append(file)
        else:
            shutil.copyfile(written[number % DIFFERENT], file)


def main() -> None:
    """Generate, train, predict, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ltnode-photos-") as temporary:
        folder = Path(temporary)
        began = time.perf_counter()
        write_photos(folder / "photos", options.images, options.size)
        record: dict[str, Any] = {
            "images": options.images,
            "different": min(options.images, DIFFERENT),
            "size": options.size,
            "pixels_mib": round(3 * options.images * options.size**2 / 2**20),
            "generate": {"seconds": round(time.perf_counter() - began, 1)},
        }
        run, photos = str(folder / "run"), str(folder / "photos")
        commands = {
            "train one epoch": ("train", "--data", photos, "--out", run, *_ONE_EPOCH),
            "predict the test images": ("predict", run, f"{photos}/test", "--out", str(folder / "predictions.csv")),
            "predict all images in blocks": ("predict", run, "--input", photos, "--output", str(folder / "predictions")),
        }
        record |= {"threads": os.environ.get("OMP_NUM_THREADS"), "machine": platform.machine(), **source_state()}
        for name, words in commands.items():
            record[name] = cost_of_command(*words)
            print(f"{name}: {record[name]}", flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
