"""A trained model in use: it opens a run folder, predicts raw images and vectors, and flags predictions not to be trusted.

Read in this order: ``model`` (the trained model), ``rows`` (the prediction of one input), ``operating_point`` (when a prediction
abstains), ``calibration`` (how that point is chosen), ``calibration_record`` and ``renewal`` (the examples among which distances
are ranked), ``explanation`` (what makes an input unfamiliar), ``pixels`` (rules for pixel values), ``images`` (decoding of
untrusted files), ``inputs`` (batches from files and arrays), ``data_facts`` (what is known about a data set).
"""

from ltnode.trained.calibration import calibration_examples, choose_operating_point
from ltnode.trained.calibration_record import CalibrationRecord
from ltnode.trained.explanation import Explanation, explain
from ltnode.trained.images import DecodedImage, decode_image, to_png
from ltnode.trained.inputs import Batch, read_input
from ltnode.trained.model import TrainedModel
from ltnode.trained.operating_point import OperatingPoint
from ltnode.trained.renewal import new_examples, renew_calibration
from ltnode.trained.rows import PredictionRow

__all__ = [
    "Batch",
    "CalibrationRecord",
    "DecodedImage",
    "Explanation",
    "OperatingPoint",
    "PredictionRow",
    "TrainedModel",
    "calibration_examples",
    "choose_operating_point",
    "decode_image",
    "explain",
    "new_examples",
    "read_input",
    "renew_calibration",
    "to_png",
]
