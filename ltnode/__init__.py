"""ltnode: neural ODEs that know what they do not know.

The end-time T of a neural ODE is a latent variable. A posterior over T, learnt by variational inference, gives predictions with
uncertainty from a single ODE solve. `docs/reference` shows every public name with an example.
"""

import difflib
import warnings
from typing import TYPE_CHECKING, Any

from ltnode import data, metrics, report
from ltnode._version import __version__
from ltnode.endtime import (
    AmortizedGammaTime,
    EndTime,
    FixedTime,
    GammaMixtureTime,
    GammaTime,
    UniformTime,
)
from ltnode.endtime import gamma_kl as _gamma_kl
from ltnode.errors import CheckpointError, ConfigError, DataError, InputError, LTNodeError, MissingExtraError
from ltnode.evaluation import ResultRow as _ResultRow
from ltnode.evaluation import evaluate
from ltnode.export import export_model
from ltnode.fitting import distill, fit, fit_members, fit_seeds
from ltnode.hub import from_pretrained
from ltnode.models import Ensemble, InputSpec, LatentTimeODE, Model, ObjectiveOptions, Prediction, SolverOptions, build
from ltnode.objective import Likelihood
from ltnode.ode import Solution as _Solution
from ltnode.ode import SolverError, Status, TrainingGrid, odesolve
from ltnode.saving import load, save
from ltnode.trained import TrainedModel
from ltnode.training import Run, TrainConfig, TrainingError, train_preset
from ltnode.training.own_loop import accelerate

if TYPE_CHECKING:
    from ltnode.estimators import LTNodeClassifier, LTNodeRegressor

__all__ = [
    "AmortizedGammaTime",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EndTime",
    "Ensemble",
    "FixedTime",
    "GammaMixtureTime",
    "GammaTime",
    "InputError",
    "InputSpec",
    "LTNodeClassifier",
    "LTNodeError",
    "LTNodeRegressor",
    "LatentTimeODE",
    "Likelihood",
    "MissingExtraError",
    "Model",
    "ObjectiveOptions",
    "Prediction",
    "Run",
    "SolverError",
    "SolverOptions",
    "Status",
    "TrainConfig",
    "TrainedModel",
    "TrainingError",
    "TrainingGrid",
    "UniformTime",
    "__version__",
    "accelerate",
    "build",
    "data",
    "distill",
    "evaluate",
    "export_model",
    "fit",
    "fit_members",
    "fit_seeds",
    "from_pretrained",
    "load",
    "metrics",
    "odesolve",
    "report",
    "save",
    "train_preset",
]

_NEEDS_SKLEARN = ("LTNodeClassifier", "LTNodeRegressor")
_RENAMED: dict[str, tuple[str, Any]] = {
    "KeptGrid": ("ltnode.TrainingGrid", TrainingGrid),
    "gamma_kl": ("ltnode.endtime.gamma_kl", _gamma_kl),
    "Solution": ("ltnode.ode.Solution", _Solution),
    "ResultRow": ("ltnode.evaluation.ResultRow", _ResultRow),
}


def __getattr__(name: str) -> Any:
    """Import the scikit-learn estimators on first use, and serve names that have moved with a warning."""
    if name in _NEEDS_SKLEARN:
        from ltnode import estimators

        return getattr(estimators, name)
    if name in _RENAMED:
        place, value = _RENAMED[name]
        warnings.warn(f"ltnode.{name} is deprecated; use {place}", DeprecationWarning, stacklevel=2)
        return value
    near = difflib.get_close_matches(name, __all__, n=1)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}" + (f". Did you mean {near[0]!r}?" if near else ""))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
