"""Common user mistakes and the error that each must raise: its type, the given value, the requirement or the remedy.

The shape checks are disabled here, because they exist only in the test suite and would raise before ltnode does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ltnode
from ltnode import AmortizedGammaTime, FixedTime, GammaMixtureTime, GammaTime, InputError, LatentTimeODE, SolverError, UniformTime
from ltnode.errors import unknown_name
from ltnode.models import InputSpec, ObjectiveOptions, Parts, SolverOptions, build
from ltnode.objective import Gaussian

pytestmark = pytest.mark.no_typecheck

VECTORS = InputSpec((2,), "classification", 3)
X, LABELS, VALUES = torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]), torch.zeros(4)
NAN = torch.tensor([[0.0, 1.0], [math.nan, 0.0], [math.inf, 0.0], [0.0, 0.0]])

Call = Callable[[], Any]
Mistake = tuple[str, Call, type[Exception], tuple[str, ...]]


def classifier(**options: Any) -> Any:
    return build("lt-node", VECTORS, seed=0, **options)


def regressor(**options: Any) -> Any:
    return build("lt-node", InputSpec((2,), "regression"), seed=0, **options)


def alt() -> Any:
    return build("alt-node", VECTORS, seed=0)


class Explodes(nn.Module):
    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        return 10 * h.square() + 1


class Sums(nn.Module):
    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        return h.sum(dim=1)


class Still(nn.Module):
    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        return torch.zeros_like(h)


def own(field: nn.Module | None = None, head: nn.Module | None = None, **rest: Any) -> LatentTimeODE:
    arguments = {"end_time": GammaTime(), "task": "classification", **rest}
    return LatentTimeODE(nn.Linear(2, 4), field or Still(), head or nn.Linear(4, 3), **arguments)


BUILDING: list[Mistake] = [
    ("model name", lambda: build("lt-nod"), InputError, ("'lt-nod'", "Did you mean 'lt-node'?", "alt-node")),
    ("model of another type", lambda: build(3), InputError, ("unknown model 3", "lt-node")),
    ("data set name", lambda: build("node", "cifar-10"), InputError, ("'cifar-10'", "'cifar10'")),
    ("data of another type", lambda: build("node", 42), InputError, ("int", "Dataset")),
    ("preset", lambda: build("node", "mnist", "papper"), InputError, ("'papper'", "'paper'")),
    ("option of build", lambda: build("node", widht=3), InputError, ("'widht'", "'width'")),
    ("option of the objective", lambda: classifier(objective={"kl_wieght": 1.0}), InputError, ("'kl_wieght'", "'kl_weight'")),
    ("option of the solver", lambda: classifier(solver={"rtoll": 1.0}), InputError, ("'rtoll'", "'rtol'")),
    ("objective as a number", lambda: classifier(objective=0.1), InputError, ("0.1", "ObjectiveOptions", "weighting")),
    ("solver options as objective", lambda: classifier(objective=SolverOptions()), InputError, ("ObjectiveOptions",)),
    ("weighting", lambda: ObjectiveOptions(weighting="densty"), InputError, ("'densty'", "'density'")),
    ("negative KL weight", lambda: ObjectiveOptions(kl_weight=-1.0), InputError, ("-1", ">= 0", "elbo")),
    ("KL weight name", lambda: ObjectiveOptions(kl_weight="elob"), InputError, ("'elob'", "'elbo'")),
    ("KL weight NaN", lambda: ObjectiveOptions(kl_weight=math.nan), InputError, ("nan", ">= 0")),
    ("no training samples", lambda: ObjectiveOptions(samples=0), InputError, ("samples", "0", "at least 1")),
    ("scheme of times", lambda: ObjectiveOptions(scheme="gird"), InputError, ("'gird'", "'grid'")),
    ("solver method", lambda: SolverOptions(method="dopri8"), InputError, ("'dopri8'", "'dopri5'")),
    ("method without error estimate", lambda: SolverOptions(method="rk4"), InputError, ("adaptive", "'rk4'", "dopri5")),
    ("zero tolerance", lambda: SolverOptions(rtol=0.0), InputError, ("rtol must be", "positive", "1e-2", "not 0.0")),
    ("negative tolerance", lambda: SolverOptions(atol=-1e-3), InputError, ("atol must be", "positive", "not -0.001")),
    ("tolerance NaN", lambda: SolverOptions(rtol=math.nan), InputError, ("rtol must be", "finite", "not nan")),
    ("training solve", lambda: SolverOptions(training="keept"), InputError, ("'keept'", "'kept'")),
    ("no steps", lambda: SolverOptions(max_steps=0), InputError, ("max_steps", "0", "at least 1")),
    ("no width", lambda: classifier(width=0), InputError, ("width", "0", "at least 1")),
    ("negative augmentation", lambda: classifier(augment=-1), InputError, ("augment", "-1", ">= 0")),
    ("paper network for 2-D", lambda: build("lt-node", "concentric", "paper"), InputError, ("1-D", "preset='default'")),
    ("width of the paper network", lambda: build("lt-node", preset="paper", width=9), InputError, ("width", "preset='default'")),
    ("tiny images", lambda: build("node", InputSpec((1, 4, 4), "classification", 2)), InputError, ("4x4", "8x8")),
    ("shape of the inputs", lambda: InputSpec((3, 8), "regression"), InputError, ("(3, 8)", "(C, H, W)")),
    ("shape as a number", lambda: InputSpec(3, "regression"), InputError, ("not 3", "(D,)")),
    ("one class", lambda: InputSpec((3,), "classification", 1), InputError, ("n_classes must be >= 2", "not 1")),
    ("classes of a regression", lambda: InputSpec((3,), "regression", 5), InputError, ("n_classes", "None", "not 5")),
    ("task of the inputs", lambda: InputSpec((3,), "classify", 2), InputError, ("'classify'", "'classification'")),
    (
        "inference network missing",
        lambda: build("alt-node", VECTORS, parts=Parts(nn.Linear(2, 4), Still(), nn.Linear(4, 3))),
        InputError,
        ("encoder", "(B, 2)"),
    ),
]

PARTS: list[Mistake] = [
    ("end-time as a number", lambda: own(end_time=1.0), InputError, ("float", "ltnode.FixedTime(t)")),
    ("end-time zero in build", lambda: classifier(end_time=0.0), InputError, ("float", "ltnode.FixedTime(t)")),
    ("field as a function", lambda: own(field=lambda t, h: h), InputError, ("field", "nn.Module", "wrap a function")),
    ("task", lambda: own(task="classify"), InputError, ("'classify'", "'classification'")),
    ("likelihood as a name", lambda: own(likelihood="gaussian"), InputError, ("likelihood", "Likelihood", "str")),
    ("no noise", lambda: Gaussian(0.0), InputError, ("noise_std", "positive", "not 0.0")),
    ("negative prior", lambda: GammaTime(prior=(-1.0, 0.5)), InputError, ("prior", "-1", "from 1e-3")),
    ("prior as a number", lambda: GammaTime(prior=2.0), InputError, ("prior", "(alpha, beta)", "2.0")),
    ("window reversed", lambda: GammaTime(window=(3.0, 0.0)), InputError, ("window", "(3.0, 0.0)", "low < high")),
    ("alpha zero", lambda: GammaTime(alpha=0.0), InputError, ("alpha", "0.0", "[0.01, 100]")),
    ("negative time", lambda: FixedTime(-1.0), InputError, ("-1.0", "positive")),
    ("interval reversed", lambda: UniformTime(2.0, 1.0), InputError, ("UniformTime", "(2.0, 1.0)", "low < high")),
    ("no components", lambda: GammaMixtureTime(components=0), InputError, ("components", "0", "at least 1")),
    ("encoder as a function", lambda: AmortizedGammaTime(lambda x: x), InputError, ("encoder", "nn.Module", "function")),
    (
        "encoder with three outputs",
        lambda: own(end_time=AmortizedGammaTime(nn.Linear(2, 3))).predict(X),
        InputError,
        ("(B, 2)", "(4, 3)"),
    ),
    (
        "head with a spatial axis",
        lambda: own(head=nn.Unflatten(1, (2, 2))).predict(X),
        InputError,
        ("head", "(N, classes)", "2, 2"),
    ),
    (
        "two outputs of a regression",
        lambda: own(head=nn.Linear(4, 2), task="regression").loss(X, VALUES),
        InputError,
        ("head", "(N, 1)", "2)"),
    ),
    ("head of another width", lambda: own(head=nn.Linear(5, 3)).predict(X), InputError, ("head", "(40, 4)")),
    (
        "field that drops an axis",
        lambda: own(field=Sums()).loss(X, LABELS),
        InputError,
        ("field", "(4,)", "(4, 4)", "shape of y"),
    ),
    (
        "field that explodes in training",
        lambda: own(field=Explodes()).loss(X, LABELS),
        SolverError,
        ("stopped at t =", "the field"),
    ),
    ("field that explodes in prediction", lambda: own(field=Explodes()).predict(X), SolverError, ("stopped at t =", "the field")),
]

CALLS: list[Mistake] = [
    ("x as a list", lambda: classifier().predict([[0.0, 1.0]]), InputError, ("list", "floating-point tensor")),
    ("x as bytes", lambda: classifier().predict(torch.zeros(4, 2, dtype=torch.uint8)), InputError, ("torch.uint8", "normalise")),
    ("x without features", lambda: classifier().predict(torch.zeros(4)), InputError, ("(4,)", "(B, ...)")),
    ("empty batch", lambda: classifier().predict(torch.zeros(0, 2)), InputError, ("(0, 2)", "B >= 1")),
    ("NaN in x", lambda: classifier().predict(NAN), InputError, ("NaN or inf in 2 of 8", "impute")),
    ("NaN in x of training", lambda: classifier().loss(NAN, LABELS), InputError, ("NaN or inf in 2 of 8", "impute")),
    ("features of x", lambda: classifier().predict(torch.zeros(4, 3)), InputError, ("stem", "(4, 3)", "4x3 and 2x")),
    ("features of x, ALT", lambda: alt().loss(torch.zeros(4, 3), LABELS), InputError, ("stem", "(4, 3)")),
    (
        "channels of an image",
        lambda: build("node", "mnist", seed=0).predict(torch.zeros(2, 3, 28, 28)),
        InputError,
        ("stem", "(2, 3, 28, 28)", "channels"),
    ),
    (
        "dtype of x",
        lambda: classifier().predict(X.double()),
        InputError,
        ("torch.float64", "weights are torch.float32", "convert x or the model"),
    ),
    (
        "one point with BatchNorm",
        lambda: build("lt-node", preset="paper").loss(X[:1, :1], VALUES[:1]),
        InputError,
        ("stem", "(1, 1)"),
    ),
    ("lengths", lambda: classifier().loss(X, LABELS[:3]), InputError, ("x has 4 samples", "(3,)")),
    ("label too large", lambda: classifier().loss(X, LABELS + 1), InputError, ("0..2", "3 classes", "1..3")),
    ("negative label", lambda: classifier().loss(X, LABELS - 1), InputError, ("0..2", "-1..1")),
    ("float labels", lambda: classifier().loss(X, LABELS.float()), InputError, ("torch.float32", "integers", "y.long()")),
    ("bool labels", lambda: classifier().loss(X, LABELS > 1), InputError, ("torch.bool", "integers")),
    ("one-hot labels", lambda: classifier().loss(X, torch.eye(4).long()[:, :3]), InputError, ("(4, 3)", "(B,)", "argmax")),
    ("labels as a list", lambda: classifier().loss(X, [0, 1, 2, 0]), InputError, ("list", "torch.as_tensor")),
    ("integer targets", lambda: regressor().loss(X, LABELS), InputError, ("torch.int64", "floats", "y.float()")),
    ("two targets", lambda: regressor().loss(X, torch.zeros(4, 2)), InputError, ("(4, 2)", "(B, 1)")),
    ("NaN targets", lambda: regressor().loss(X, VALUES / 0), InputError, ("y holds NaN or inf in 4 of 4", "impute")),
    ("shape of times", lambda: classifier().loss(X, LABELS, times=torch.ones(3, 5)), InputError, ("(3, 5)", "(S, 4)")),
    ("time as a number", lambda: classifier().loss(X, LABELS, times=torch.tensor(1.0)), InputError, ("()", "(S,)")),
    ("no times", lambda: classifier().loss(X, LABELS, times=torch.zeros(0)), InputError, ("(0,)", "S >= 1")),
    (
        "times outside of the window",
        lambda: classifier().loss(X, LABELS, times=torch.tensor([3.5, 4.0])),
        InputError,
        ("window (0, 3)", "3.5 to 4"),
    ),
    (
        "negative times",
        lambda: build("uni-node", VECTORS).loss(X, LABELS, times=torch.tensor([-0.5, 1.0])),
        InputError,
        ("-0.5", "t0"),
    ),
    ("NaN times", lambda: classifier()(X, torch.tensor([math.nan])), InputError, ("NaN", "finite")),
    ("no data points", lambda: classifier().loss(X, LABELS, n_data=0), InputError, ("n_data", "0", "at least 1")),
    (
        "literal bound without N",
        lambda: classifier(objective={"kl_weight": "elbo"}).loss(X, LABELS),
        InputError,
        ("n_data", "1/N"),
    ),
    ("no samples", lambda: classifier().predict(X, samples=0), InputError, ("samples", "0", "at least 1")),
    ("negative samples", lambda: classifier().predict(X, samples=-3), InputError, ("samples", "-3", "at least 1")),
    ("half a sample", lambda: classifier().predict(X, samples=2.5), InputError, ("samples", "2.5", "integer")),
    ("draw", lambda: classifier().predict(X, draw="quantiles"), InputError, ("'quantiles'", "'quantile'")),
    ("steps", lambda: classifier().predict(X, steps="adaptiv"), InputError, ("'adaptiv'", "'adaptive'")),
    ("probabilities of a regression", lambda: regressor().predict(X).probs, InputError, ("regression", "no probs", "mean, std")),
    ("mean of a classification", lambda: classifier().predict(X).mean, InputError, ("classification", "probs")),
    ("attack on a regression", lambda: regressor().log_probs(X), InputError, ("regression", "log_probs")),
    ("posterior without its input", lambda: alt().describe(), InputError, ("depends on the input", "pass x")),
]

SOLVING: list[Mistake] = [
    (
        "tolerance of a solve",
        lambda: ltnode.odesolve(Still(), X, [1.0], rtol=-1.0),
        InputError,
        ("rtol must be positive", "not -1.0"),
    ),
    ("method of a solve", lambda: ltnode.odesolve(Still(), X, [1.0], method="dopri"), InputError, ("'dopri'", "'dopri5'")),
    ("adaptive RK4", lambda: ltnode.odesolve(Still(), X, [1.0], method="rk4"), InputError, ("'rk4'", "grid=", "'dopri5'")),
    ("time before the start", lambda: ltnode.odesolve(Still(), X, [-1.0]), InputError, ("t0", "-1")),
    (
        "times of another batch",
        lambda: ltnode.odesolve(Still(), X, torch.ones(2, 3)),
        InputError,
        ("(2, 3)", "batch of 3", "(4, 2)"),
    ),
    ("integer state", lambda: ltnode.odesolve(Still(), LABELS, [1.0]), InputError, ("torch.int64", "floating-point")),
    ("blow-up in a solve", lambda: ltnode.odesolve(Explodes(), X + 1, [1.0]), SolverError, ("stopped at t =", "the field")),
]

ALL = BUILDING + PARTS + CALLS + SOLVING


@pytest.mark.parametrize(("call", "error", "fragments"), [pytest.param(*m[1:], id=m[0]) for m in ALL])
def test_mistake_gets_its_error(call: Call, error: type[Exception], fragments: tuple[str, ...]) -> None:
    """The error has the right type, and its message contains the given value and the requirement or remedy."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    for fragment in fragments:
        assert fragment in message
    assert isinstance(caught.value, ltnode.LTNodeError)


def test_the_list_is_long_and_has_unique_names() -> None:
    """A repeated name would hide a case."""
    names = [m[0] for m in ALL]
    assert len(names) == len(set(names))
    assert len(names) >= 30


def test_a_rejected_call_leaves_the_model_unchanged() -> None:
    """After rejected calls the model is unchanged: weights, statistics, mode, and the next prediction."""
    model = classifier()
    before, expected = {k: v.clone() for k, v in model.state_dict().items()}, model.predict(X).outputs
    model.train()
    for call in (lambda: model.loss(X, LABELS + 1), lambda: model.loss(NAN, LABELS), lambda: model.predict(X, samples=0)):
        with pytest.raises(InputError):
            call()
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(model.predict(X).outputs, expected)


def test_memory_errors_keep_their_type() -> None:
    """An out-of-memory error of torch is not reported as invalid input."""

    class Full(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise torch.OutOfMemoryError("out of memory")

    model = LatentTimeODE(Full(), Still(), nn.Linear(4, 3), GammaTime())
    with pytest.raises(torch.OutOfMemoryError):
        model.predict(X)


def test_an_unknown_name_gets_its_alias_or_the_nearest_valid_name() -> None:
    """An alias takes precedence over the nearest spelling, and the case does not matter."""
    valid = ("lr", "accelerate", "epochs")
    message = unknown_name("option", "learning_rate", valid, aliases={"learning_rate": "lr"})
    assert message == "unknown option 'learning_rate'. Did you mean 'lr'? Valid: accelerate, epochs, lr."
    assert "Did you mean 'epochs'?" in unknown_name("option", "epoch", valid)
    assert "Did you mean 'epochs'?" in unknown_name("option", "EPOCHS", valid)
    assert "Did you mean" not in unknown_name("option", "zzz", valid)
