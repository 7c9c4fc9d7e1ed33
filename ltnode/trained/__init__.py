"""A trained model in use: a folder becomes something that predicts raw images and vectors, and says when to distrust it.

Read in this order: ``trained`` (the model), ``rows`` (what it says about one input), ``operating_point`` (when to distrust it),
``calibration`` (how that point is chosen), ``images`` (bytes of unknown origin become pixels), ``inputs`` (files become batches).
"""

from ltnode.trained.calibration import calibration_examples, choose_operating_point
from ltnode.trained.images import DecodedImage, decode_image, to_png
from ltnode.trained.inputs import Batch, read_input
from ltnode.trained.model import TrainedModel
from ltnode.trained.operating_point import OperatingPoint
from ltnode.trained.rows import PredictionRow

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
