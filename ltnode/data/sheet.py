"""A contact sheet: some images of every class in one picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ltnode.data.catalogue import load
from ltnode.data.dataset import Dataset
from ltnode.errors import InputError, missing_extra

_GAP = 2  # pixels between images
_LABEL_WIDTH = 90  # pixels for the class name


def contact_sheet(
    data: str | Dataset, path: Path | str, *, root: Path | str | None = None, columns: int = 12, zoom: int = 2
) -> Path:
    """Write a PNG with one row per class: its name and the first ``columns`` training images; return the path of the file.

    Args:
        data: An image set or its name.
        path: Path of the PNG file.
        root: Data folder; see :func:`ltnode.data.cache.data_root`.
        columns: Number of images per class.
        zoom: Size of a pixel.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise missing_extra("Pillow", "images", "a contact sheet") from error
    data = load(data, root) if isinstance(data, str) else data
    if not data.is_image or data.train.x.dtype != torch.uint8 or data.n_classes is None:
        raise InputError(f"{data.name}: a contact sheet needs uint8 images with classes, not {data.train.x.dtype}")
    channels, height, width = data.input_shape
    if channels not in (1, 3):
        raise InputError(f"{data.name}: a contact sheet needs 1 or 3 channels, not {channels}")
    cell_height, cell_width = height * zoom + _GAP, width * zoom + _GAP
    sheet = Image.new("RGB", (_LABEL_WIDTH + columns * cell_width, data.n_classes * cell_height), "white")
    draw = ImageDraw.Draw(sheet)
    for label in range(data.n_classes):
        top = label * cell_height
        text = data.class_names[label] if data.class_names else str(label)
        draw.text((4, top + cell_height // 2 - 6), text, fill="black")
        for column, index in enumerate((data.train.y == label).nonzero()[:columns, 0].tolist()):
            pixels = data.train.x[index].permute(1, 2, 0).expand(-1, -1, 3).numpy()
            tile = Image.fromarray(np.ascontiguousarray(pixels)).resize((width * zoom, height * zoom), Image.Resampling.NEAREST)
            sheet.paste(tile, (_LABEL_WIDTH + column * cell_width, top))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path, format="PNG")
    return path
