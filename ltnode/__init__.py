"""ltnode: neural ODEs that know what they do not know.

The end-time T of a neural ODE is a latent variable. A posterior over T, learnt by variational inference, gives predictions with
uncertainty from a single ODE solve.
"""

from typing import TYPE_CHECKING, Any

from ltnode import accelerate as accelerate  # installs the fast execution of the models
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
from ltnode.export import export_model
from ltnode.fit import fit, fit_seeds
from ltnode.models import InputSpec, LatentTimeODE, Model, ObjectiveOptions, Prediction, SolverOptions, build
from ltnode.ode import Solution, SolverError, Status, TrainingGrid, odesolve
from ltnode.training import Run, TrainConfig, TrainingError, load, save, train_preset

if TYPE_CHECKING:
    from ltnode.estimators import LTNodeClassifier, LTNodeRegressor

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
    "LTNodeClassifier",
    "LTNodeError",
    "LTNodeRegressor",
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
    "TrainingGrid",
    "UniformTime",
    "__version__",
    "build",
    "evaluate",
    "export_model",
    "fit",
    "fit_seeds",
    "gamma_kl",
    "load",
    "metrics",
    "odesolve",
    "report",
    "save",
    "train_preset",
]

_NEEDS_SKLEARN = ("LTNodeClassifier", "LTNodeRegressor")


def __getattr__(name: str) -> Any:
    """The scikit-learn estimators, imported when they are first asked for: scikit-learn is an extra, and slow to import."""
    if name not in _NEEDS_SKLEARN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ltnode import estimators

    return getattr(estimators, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
