"""Your own images: a folder per class."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.data.augment import Augmentation, Normalisation
from ltnode.data.dataset import Dataset, Split, checksums, hold_out
from ltnode.errors import DataError, InputError, missing_extra


def from_folder(
    path: Path | str,
    size: int | tuple[int, int] | None = None,
    *,
    augment: Augmentation | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """A classification set from images in one folder per class.

    Either ``path/CLASS/*`` (then ``test_fraction`` of the images, drawn with ``seed``, is held out for testing), or
    ``path/train/CLASS/*`` and ``path/test/CLASS/*``. Classes are numbered in alphabetical order. Any format that Pillow
    reads will do; images become grey-scale (one channel) if all of them are, else RGB. Pixels are normalised by the mean
    and std of the training images.

    Args:
        path: the folder.
        size: height and width (one number for both) to which images are scaled and centrally cropped; None requires
            that all have the same size already.
        augment: optional crops and flips.
        test_fraction: share that is held out when there is no test folder.
        seed: decides which images are held out.

    Raises:
        DataError: no class folders, an empty one, a file that is no image, different sizes without ``size``.
    """
    path = Path(path).expanduser()
    wanted = (size, size) if isinstance(size, int) else size
    if wanted is not None and (len(wanted) != 2 or min(wanted) < 1):
        raise InputError(f"size must be positive, one number or (height, width), got {size}")
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; give one that holds a folder of images per class")
    divided = (path / "train").is_dir() and (path / "test").is_dir()
    names, files, labels = _listing(path / "train" if divided else path)
    test_files: list[Path] = []
    test_labels: list[int] = []
    if divided:
        test_names, test_files, test_labels = _listing(path / "test")
        if test_names != names:
            raise DataError(f"{path}: the classes of train ({', '.join(names)}) and test ({', '.join(test_names)}) differ")
    pixels = torch.from_numpy(_read_images(files + test_files, wanted))
    targets = torch.tensor(labels + test_labels, dtype=torch.int64)
    everything = Split(pixels, targets)
    if divided:
        order = torch.arange(len(targets))
        train, test = everything.select(order[: len(files)]), everything.select(order[len(files) :])
    else:
        train, test = hold_out(everything, test_fraction, seed)
    return Dataset(
        name=path.resolve().name,
        task="classification",
        train=train,
        test=test,
        n_classes=len(names),
        class_names=tuple(names),
        normalise=Normalisation.fitted(train.x),
        augment=augment,
        checksums=checksums(train, test),
        source="folder",
    )


def _visible(entries: Iterable[Path]) -> list[Path]:
    return sorted(entry for entry in entries if not entry.name.startswith("."))


def _listing(path: Path) -> tuple[list[str], list[Path], list[int]]:
    """Class names, image files and their labels, all in alphabetical order."""
    classes = [entry for entry in _visible(path.iterdir()) if entry.is_dir()]
    if not classes:
        raise DataError(f"{path} holds no folders; put the images of each class into a folder named after the class")
    files: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(classes):
        members = [entry for entry in _visible(folder.rglob("*")) if entry.is_file()]
        if not members:
            raise DataError(f"{folder} holds no images; fill it, or remove the folder")
        files += members
        labels += [label] * len(members)
    return [folder.name for folder in classes], files, labels


def _read_images(files: list[Path], size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """All images as uint8 (N, C, H, W)."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise missing_extra("Pillow", "images", "reading image files") from error
    images: list[NDArray[np.uint8]] = []
    for file in files:
        try:
            with Image.open(file) as opened:
                picture: Any = ImageOps.exif_transpose(opened)  # as a camera was held
                picture = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
                if size is not None:
                    picture = ImageOps.fit(picture, (size[1], size[0]), Image.Resampling.BILINEAR)
                pixels = np.asarray(picture)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{file} is not an image that Pillow can read ({error}); repair or remove it") from error
        if images and pixels.shape[:2] != images[0].shape[:2]:
            first, this = images[0].shape[:2], pixels.shape[:2]
            raise DataError(f"{file} is {this[0]} x {this[1]}, but {files[0]} is {first[0]} x {first[1]}; give a size")
        images.append(pixels)
    if any(pixels.ndim == 3 for pixels in images):
        return np.stack([_in_colour(pixels).transpose(2, 0, 1) for pixels in images])
    return np.stack(images)[:, None]


def _in_colour(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2)
