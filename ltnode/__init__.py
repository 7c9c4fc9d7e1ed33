"""ltnode: neural ODEs that know what they do not know.

The end-time T of a neural ODE is a latent variable. A posterior over T, learnt by variational inference, gives predictions with
uncertainty from a single ODE solve.
"""

from ltnode import metrics, report
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
from ltnode.evaluation import ResultRow, evaluate
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
    "ResultRow",
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
    "evaluate",
    "fit",
    "gamma_kl",
    "load",
    "metrics",
    "odesolve",
    "report",
    "save",
    "train_preset",
]
