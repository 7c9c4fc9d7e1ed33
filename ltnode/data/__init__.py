"""Data sets: the image sets of the paper, user arrays and folders, generated problems, and on-device preprocessing."""

from ltnode.data.augment import Augmentation, CropOffsets, Normalisation, augmentation_offsets
from ltnode.data.cache import data_root
from ltnode.data.catalogue import load, names
from ltnode.data.dataset import Dataset, Split
from ltnode.data.download import fetch
from ltnode.data.folder import from_folder
from ltnode.data.images import SetInfo, describe, import_files, info
from ltnode.data.sheet import contact_sheet
from ltnode.data.specs import SPECS, ImageSpec, image_spec
from ltnode.data.synthetic import concentric_annuli, gap_data, gap_grid, reflection
from ltnode.data.table import Shares, from_table

__all__ = [
    "SPECS",
    "Augmentation",
    "CropOffsets",
    "Dataset",
    "ImageSpec",
    "Normalisation",
    "SetInfo",
    "Shares",
    "Split",
    "augmentation_offsets",
    "concentric_annuli",
    "contact_sheet",
    "data_root",
    "describe",
    "fetch",
    "from_folder",
    "from_table",
    "gap_data",
    "gap_grid",
    "image_spec",
    "import_files",
    "info",
    "load",
    "names",
    "reflection",
]
