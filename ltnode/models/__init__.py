"""Models, as the readable reference: nothing here knows about kernels or other acceleration.

Read in this order: ``contract`` (what every model offers), ``latent_time`` (the network behind NODE, Uni-NODE, LT-NODE and
ALT-NODE) with ``vectors`` and ``images`` (its parts) and ``step`` (one training step), the other models (``sde_net``,
``node_gp``, ``ensemble``, ``mc_dropout``, ``steer``), and ``build`` (models by name).
"""

from ltnode.models.build import build, build_from_spec
from ltnode.models.contract import Model
from ltnode.models.ensemble import Ensemble
from ltnode.models.input_spec import InputSpec, input_spec
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.networks import Parts
from ltnode.models.options import ObjectiveOptions, SolverOptions
from ltnode.models.prediction import Prediction
from ltnode.models.presets import PRESETS
from ltnode.models.registry import MODELS

__all__ = [
    "MODELS",
    "PRESETS",
    "Ensemble",
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
