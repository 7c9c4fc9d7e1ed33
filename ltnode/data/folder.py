"""Image classification sets from one folder of images per class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ltnode.data.augment import Augmentation, Normalisation
from ltnode.data.dataset import Dataset, Split, checksums
from ltnode.data.folder_layout import FolderLayout, read_layout
from ltnode.data.image_files import ImageFiles, check_files, decoded, files_md5
from ltnode.data.origin import Origin
from ltnode.data.parts import Parts, positions_md5, split_parts
from ltnode.data.streaming import StreamedTensor
from ltnode.errors import InputError, unknown_name
from ltnode.typing import Tensor

LARGEST_RESIDENT = 2 << 30
"""Bytes of decoded images up to which a set is kept in memory; larger ones are read while they are used."""
_NORMALISED = 500
"""Number of images on which the normalisation of a set that is read while training is fitted."""
_CALIBRATION = 0.05
"""Share of the training images that are held out for calibration where the validation part is given."""


def from_folder(
    path: Path | str,
    size: int | tuple[int, int] | None = None,
    *,
    augment: Augmentation | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    stream: bool | None = None,
) -> Dataset:
    """Create a classification set from images in one folder per class.

    The layout is ``path/CLASS/*``, or ``path/train/CLASS/*`` with ``path/val/CLASS/*`` (also called ``valid`` or ``validation``),
    ``path/test/CLASS/*``, or both beside it. A given validation part is the one that training selects on, and a given test part
    is the test split; without a test part, ``test_fraction`` of the training images is held out. Classes are numbered in
    alphabetical order. PNG, JPEG, BMP, GIF, WebP, TIFF and PPM files of at most 50 megapixels are read as in predictions: turned
    upright, over white, grey-scale (one channel) if all of them are, else RGB. Pixels are normalised by mean and std of the
    training images.

    The headers of all files are checked first, and every problem is named before anything is trained.

    Args:
        path: The folder.
        size: Height and width (or one number for both) to which images are scaled and centre-cropped; None requires that all
            images have the same size.
        augment: Random crops and flips.
        test_fraction: Share of held-out images if there is no test folder.
        seed: Seed of the choice of held-out images.
        stream: Decode images each time they are used, instead of once into memory. By default sets of more than 2 GiB of pixels
            are. Their normalisation is fitted on 500 training images, and their checksum is that of names and sizes of the files.

    Raises:
        DataError: The layout is another one, there is a single class, an empty one, or one that only some parts have, files are
            damaged or not images, or sizes differ and ``size`` is None; one line per problem.
    """
    path = Path(path).expanduser()
    target_size = (size, size) if isinstance(size, int) else size
    if target_size is not None and (len(target_size) != 2 or min(target_size) < 1):
        raise InputError(f"size must be positive, one number or (height, width), not {size}")
    layout = read_layout(path)
    files = tuple(layout.files)
    source = ImageFiles(files, check_files(path, files, target_size, layout.problems))
    origin = Origin("folder", path.as_posix(), test_fraction=test_fraction, seed=seed, size=target_size)
    data = _dataset(layout, _images(source, stream), origin)
    identity = {"files": files_md5(path, files)}
    if isinstance(data.test.x, StreamedTensor):
        identity["test_indices"] = positions_md5(data.test.x.positions)
    return replace(data, augment=augment, checksums={**data.checksums, **identity})


def labelled_images(path: str | Path, shape: tuple[int, int, int], class_names: Sequence[str]) -> Split:
    """Read the images of a folder for a model that is already trained: all of them, or its test part if it is divided.

    Args:
        path: The folder, as in `from_folder`; it may lack some of the classes.
        shape: (C, H, W) to which images are cropped, scaled and converted.
        class_names: Classes of the model, in the order of its labels.

    Raises:
        DataError: There is no such folder, or files are damaged or not images; one line per problem.
        InputError: A class is not one of the model's.
    """
    path = Path(path).expanduser()
    layout = read_layout(path, fewest_classes=1)
    for name in layout.class_names:
        if name not in class_names:
            raise InputError(f"{path / name}: {unknown_name('class', name, class_names)}")
    part = layout.parts.get("test") or layout.parts["train"]
    check_files(path, part.files, (shape[1], shape[2]), layout.problems)
    places = torch.tensor([class_names.index(name) for name in layout.class_names])
    return Split(_images(ImageFiles(part.files, shape)), places[torch.tensor(part.labels)])


def _images(source: ImageFiles, stream: bool | None = None) -> Tensor:
    """The images in memory, or read while they are used if they are too many or ``stream`` says so."""
    n_bytes = len(source) * torch.Size(source.shape).numel()
    streamed = n_bytes > LARGEST_RESIDENT if stream is None else stream
    return StreamedTensor(source) if streamed else decoded(source)


def _dataset(layout: FolderLayout, x: Tensor, origin: Origin) -> Dataset:
    """Divide the images, which are in the order of the parts, into training and test split."""
    y = torch.tensor([label for part in layout.parts.values() for label in part.labels], dtype=torch.int64)
    n_train, n_val = (len(layout.parts[part].files) if part in layout.parts else 0 for part in ("train", "val"))
    fitting, validation, test = torch.arange(len(y)).split([n_train, n_val, len(y) - n_train - n_val])
    if not len(test):
        drawn = split_parts(n_train, origin.test_fraction, 0.0, origin.seed)
        fitting, test = drawn.fit, drawn.validation
    train = torch.cat([fitting, validation])
    parts = None
    if n_val:
        origin = replace(origin, calibration_fraction=_CALIBRATION)
        drawn = split_parts(len(fitting), 0.0, _CALIBRATION, origin.seed)
        parts = Parts(drawn.fit, torch.arange(len(fitting), len(train)), drawn.calibration)
    splits = Split(x[train], y[train]), Split(x[test], y[test])
    return Dataset(
        name=Path(origin.path).resolve().name,
        task="classification",
        train=splits[0],
        test=splits[1],
        n_classes=len(layout.class_names),
        class_names=layout.class_names,
        normalise=_normalisation(splits[0].x[: len(fitting)]),
        checksums=checksums(*splits),
        source="folder",
        parts=parts,
        origin=origin,
    )


def _normalisation(x: Tensor) -> Normalisation:
    if isinstance(x, StreamedTensor) and len(x) > _NORMALISED:
        x = x[torch.linspace(0, len(x) - 1, _NORMALISED).long()]
    return Normalisation.fitted(x)
