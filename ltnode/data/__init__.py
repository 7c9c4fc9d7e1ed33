"""Data: the paper's image sets, your own arrays, generated problems, and the pipeline on the device."""

from ltnode.data.augment import Augmentation, CropOffsets, Normalisation, augmentation_offsets
from ltnode.data.dataset import Dataset, Split
from ltnode.data.synthetic import concentric_annuli, gap_data, gap_grid, reflection

__all__ = [
    "Augmentation",
    "CropOffsets",
    "Dataset",
    "Normalisation",
    "Split",
    "augmentation_offsets",
    "concentric_annuli",
    "gap_data",
    "gap_grid",
    "reflection",
]
