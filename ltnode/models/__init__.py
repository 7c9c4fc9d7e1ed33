"""Models: one network with a distribution over its end-time, its parts for vectors and images, and a table of the paper's."""

from ltnode.models.build import DATA, MODELS, PRESETS, InputSpec, Parts, build, build_from_spec, input_spec
from ltnode.models.contract import Model
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.options import ObjectiveOptions, SolverOptions
from ltnode.models.prediction import Prediction

__all__ = [
    "DATA",
    "MODELS",
    "PRESETS",
    "InputSpec",
    "LatentTimeODE",
    "Model",
    "ObjectiveOptions",
    "Parts",
    "Prediction",
    "SolverOptions",
    "build",
    "build_from_spec",
    "input_spec",
]
