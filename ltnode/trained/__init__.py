"""A trained model in use: it opens a run folder, predicts raw images and vectors, and flags predictions not to be trusted.

Read in this order: ``model`` (the trained model), ``rows`` (the prediction of one input), ``operating_point`` (when a prediction
is flagged), ``calibration`` (how that point is chosen), ``pixels`` (rules for pixel values), ``images`` (decoding of untrusted
files), ``inputs`` (batches from files and arrays).
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
