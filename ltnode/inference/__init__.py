"""A trained model in use: a folder becomes something that predicts raw images and vectors, and says when to distrust it.

Read in this order: ``trained`` (the model), ``rows`` (what it says about one input), ``operating_point`` (when to distrust it),
``calibration`` (how that point is chosen), ``images`` (bytes of unknown origin become pixels), ``inputs`` (files become batches).
"""

from ltnode.inference.calibration import calibration_examples, choose_operating_point
from ltnode.inference.images import DecodedImage, decode_image, to_png
from ltnode.inference.inputs import Batch, read_input
from ltnode.inference.operating_point import OperatingPoint
from ltnode.inference.rows import PredictionRow
from ltnode.inference.trained import TrainedModel

__all__ = [
    "Batch",
    "DecodedImage",
    "OperatingPoint",
    "PredictionRow",
    "TrainedModel",
    "calibration_examples",
    "choose_operating_point",
    "decode_image",
    "read_input",
    "to_png",
]
