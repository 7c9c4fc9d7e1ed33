"""ltnode: neural ODEs that know what they do not know.

The end-time T of a neural ODE is a latent variable. A posterior over T, learnt by variational inference, gives predictions with
uncertainty from a single ODE solve.
"""

from ltnode import metrics
from ltnode._version import __version__
from ltnode.endtime import (
    AmortizedGammaTime,
    EndTime,
    FixedTime,
    GammaMixtureTime,
    GammaTime,
    UniformTime,
    gamma_kl,
)
from ltnode.errors import CheckpointError, ConfigError, DataError, InputError, LTNodeError, MissingExtraError
from ltnode.models import InputSpec, LatentTimeODE, Model, ObjectiveOptions, Prediction, SolverOptions, build
from ltnode.ode import KeptGrid, Solution, SolverError, Status, odesolve
from ltnode.training import Run, TrainConfig, TrainingError, fit, load, save, train_preset

__all__ = [
    "AmortizedGammaTime",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EndTime",
    "FixedTime",
    "GammaMixtureTime",
    "GammaTime",
    "InputError",
    "InputSpec",
    "KeptGrid",
    "LTNodeError",
    "LatentTimeODE",
    "MissingExtraError",
    "Model",
    "ObjectiveOptions",
    "Prediction",
    "Run",
    "Solution",
    "SolverError",
    "SolverOptions",
    "Status",
    "TrainConfig",
    "TrainingError",
    "UniformTime",
    "__version__",
    "build",
    "fit",
    "gamma_kl",
    "load",
    "metrics",
    "odesolve",
    "save",
    "train_preset",
]
