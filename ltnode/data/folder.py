"""Image classification sets from one folder of images per class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.data.augment import Augmentation
from ltnode.data.budget import LARGEST_FOLDER, Budget
from ltnode.data.dataset import Dataset
from ltnode.errors import DataError, InputError, missing_extra
from ltnode.imagefiles.decode import LOCAL_FORMATS, MAX_PIXELS
from ltnode.typing import Tensor

_Arrays = tuple[Tensor | None, Tensor | None]
_FORMATS = (*LOCAL_FORMATS, "PPM")


def from_folder(
    path: Path | str,
    size: int | tuple[int, int] | None = None,
    *,
    augment: Augmentation | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Create a classification set from images in one folder per class.

    The layout is ``path/CLASS/*``, where ``test_fraction`` of the images is held out for testing, or ``path/train/CLASS/*`` and
    ``path/test/CLASS/*``. Classes are numbered in alphabetical order. PNG, JPEG, BMP, GIF, WebP, TIFF and PPM files of at most 50
    megapixels are read; images become grey-scale (one channel) if all of them are, else RGB. Pixels are normalised by mean and
    std of the training images.

    Args:
        path: The folder.
        size: Height and width (or one number for both) to which images are scaled and centre-cropped; None requires that all
            images have the same size.
        augment: Random crops and flips.
        test_fraction: Share of held-out images if there is no test folder.
        seed: Seed of the choice of held-out images.

    Raises:
        DataError: There are no class folders, one is empty, a file is not an image, or sizes differ and ``size`` is None.
    """
    path = Path(path).expanduser()
    target_size = (size, size) if isinstance(size, int) else size
    if target_size is not None and (len(target_size) != 2 or min(target_size) < 1):
        raise InputError(f"size must be positive, one number or (height, width), not {size}")
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; pass a folder that contains one folder of images per class")
    names, train, test = _read_arrays(path, target_size)
    data = Dataset.from_arrays(
        *train,
        *test,
        name=path.resolve().name,
        n_classes=len(names),
        class_names=tuple(names),
        augment=augment,
        test_fraction=test_fraction,
        seed=seed,
    )
    return replace(data, source="folder")


def _read_arrays(path: Path, size: tuple[int, int] | None) -> tuple[list[str], _Arrays, _Arrays]:
    """Class names, training arrays and test arrays, which are None if there is no test folder."""
    divided = (path / "train").is_dir() and (path / "test").is_dir()
    names, files, labels = _listing(path / "train" if divided else path)
    n = len(files)
    if divided:
        test_names, test_files, test_labels = _listing(path / "test")
        if test_names != names:
            raise DataError(f"{path}: the classes of train ({', '.join(names)}) and test ({', '.join(test_names)}) differ")
        files, labels = files + test_files, labels + test_labels
    # Both splits are read together, because all images must have the same size and number of channels.
    x, y = torch.from_numpy(_read_images(files, size)), torch.tensor(labels, dtype=torch.int64)
    return names, (x[:n], y[:n]), (x[n:], y[n:]) if divided else (None, None)


def _visible(entries: Iterable[Path]) -> list[Path]:
    return sorted(entry for entry in entries if not entry.name.startswith("."))


def _listing(path: Path) -> tuple[list[str], list[Path], list[int]]:
    """Class names, image files and their labels, all in alphabetical order."""
    classes = [entry for entry in _visible(path.iterdir()) if entry.is_dir()]
    if not classes:
        raise DataError(f"{path} contains no folders; put the images of each class into a folder named after the class")
    files: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(classes):
        members = [entry for entry in _visible(folder.rglob("*")) if entry.is_file()]
        if not members:
            raise DataError(f"{folder} contains no images; add some, or remove the folder")
        files += members
        labels += [label] * len(members)
    return [folder.name for folder in classes], files, labels


def _read_images(files: list[Path], size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Read all images as uint8 (N, C, H, W)."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise missing_extra("Pillow", "images", "reading image files") from error
    images: list[NDArray[np.uint8]] = []
    budget = Budget(LARGEST_FOLDER)
    for file in files:
        try:
            # Other formats start other programs (EPS), or have decoders that nobody needs here.
            with Image.open(file, formats=_FORMATS) as opened:
                if opened.size[0] * opened.size[1] > MAX_PIXELS:
                    raise ValueError(f"it has {opened.size[0]} x {opened.size[1]} pixels; at most {MAX_PIXELS:,} are allowed")
                picture: Any = ImageOps.exif_transpose(opened)  # rotate as the camera was held
                picture = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
                if size is not None:
                    picture = ImageOps.fit(picture, (size[1], size[0]), Image.Resampling.BILINEAR)
                pixels = np.asarray(picture)
        except Exception as error:  # a decoder can raise any exception for a damaged file
            kinds = ", ".join(_FORMATS)
            raise DataError(f"{file} is not an image that can be read ({kinds}): {error}; repair or remove it") from error
        budget.take(pixels.nbytes, file)
        if images and pixels.shape[:2] != images[0].shape[:2]:
            first, this = images[0].shape[:2], pixels.shape[:2]
            raise DataError(
                f"{file} is {this[0]} x {this[1]}, but {files[0]} is {first[0]} x {first[1]}; pass size=(height, width)"
            )
        images.append(pixels)
    if any(pixels.ndim == 3 for pixels in images):
        return np.stack([pixels.transpose(2, 0, 1) if pixels.ndim == 3 else np.stack([pixels] * 3) for pixels in images])
    return np.stack(images)[:, None]
