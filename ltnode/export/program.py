"""The module that is exported: it maps raw inputs to predictions and their uncertainty by plain tensor operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from ltnode.data import Normalisation
from ltnode.endtime import AmortizedGammaTime, FixedTime
from ltnode.endtime.distributions import GammaDistribution
from ltnode.errors import InputError
from ltnode.export.adaptive import Limits, adaptive_states
from ltnode.export.table_encoding import TableEncoding
from ltnode.models import LatentTimeODE, Model, Prediction
from ltnode.models.ensemble import Ensemble, combined
from ltnode.models.familiar_model import FamiliarModel, Members, answer
from ltnode.ode.prediction_grid import extend_edges
from ltnode.ode.replay import replay
from ltnode.ode.tableau import get_tableau
from ltnode.typing import Float, Num, Tensor

InputType = Literal["float32", "uint8", "float64"]
Grid = Literal["stored", "adaptive"] | int

_FINITE = 1e30
"""Error ratios above this value, and NaN, are reported as infinite."""


@dataclass(frozen=True)
class Plan:
    """How one network is solved.

    Attributes:
        samples: Number of end-times.
        times: End-times (S,), or None if every input has its own.
        edges: Edges of the steps from 0 on, or None for adaptive steps.
    """

    samples: int
    times: Tensor | None
    edges: tuple[float, ...] | None


def exportable_networks(model: Model) -> list[LatentTimeODE]:
    """The networks behind the members of a model.

    Raises:
        InputError: Models of this kind cannot be exported; the message contains the reason.
    """
    if isinstance(model, Ensemble):
        networks = [network for network in model.networks if isinstance(network, LatentTimeODE)]
    elif isinstance(model, LatentTimeODE):
        networks = [model]
    else:
        raise InputError(f"a {type(model).__name__} cannot be exported: {_why_not(model)}")
    for network in networks:
        dtypes = {p.dtype for p in network.parameters()}
        if dtypes - {torch.float32}:
            raise InputError(f"weights must be float32 to be exported, not {sorted(map(str, dtypes))}: use model.float()")
    return networks


def _why_not(model: Model) -> str:
    reasons = {
        "SDENet": "its members are random trajectories, and a file must give reproducible answers",
        "NodeGP": "its predictions draw functions from a Gaussian process of another library",
        "DropoutODE": "its members are random masks, and a file must give reproducible answers",
    }
    kinds = "models with an end-time (node, uni-node, lt-node, lt-node-mixture, alt-node, steer) and ensembles of them can be"
    return f"{reasons.get(type(model).__name__, 'exporting this class is not implemented')}; {kinds}"


def make_plan(network: LatentTimeODE, samples: int, grid: Grid, x: Float[Tensor, "B *shape"]) -> Plan:
    """Choose end-times at the posterior's quantiles, and steps that reach them.

    Args:
        network: The network.
        samples: Number of end-times.
        grid: ``"stored"``, ``"adaptive"``, or a number of equal steps.
        x: Inputs whose end-times the steps must reach, if end-times depend on the input and have no upper limit.
    """
    with torch.no_grad():
        times = network.prediction_times(x, samples)
    shared = not network.end_time.amortized
    reach = float(times.max())
    if network.has_familiarity:
        reach = max(reach, float(network.fixed_times(times.device)[-1]))
    if not shared:
        reach = max(reach, network.end_time.window[1]) if network.end_time.horizon is None else network.end_time.window[1]
    if grid == "adaptive":
        edges = None
    elif grid == "stored":
        edges = tuple(extend_edges(network.grid.double().tolist(), reach))
    else:
        edges = tuple(reach * m / grid for m in range(grid + 1))
    return Plan(samples, times if shared else None, edges)


class Branch(nn.Module):
    """One network with its end-times: the members of its prediction, and the embedded error relative to the tolerance.

    Args:
        network: The network.
        plan: End-times and steps.
    """

    times: Tensor | None

    def __init__(self, network: LatentTimeODE, plan: Plan) -> None:
        super().__init__()
        self.network, self.plan = network, plan
        self.tableau = get_tableau(network.solver.method)
        self.register_buffer("times", plan.times)

    def forward(self, x: Tensor) -> tuple[Members, Float[Tensor, " B"]]:
        """The members, and the error ratio (B,)."""
        h = self.network.initial_state(x)
        end_times = self._quantiles(x) if self.times is None else self.times
        times = self.network.solved_times(end_times)
        if self.plan.edges is None:
            o = self.network.solver
            per_input = times if times.ndim == 2 else times[:, None].expand(-1, h.shape[0])
            states, ratio = adaptive_states(self.network.field, self.tableau, h, per_input, Limits(o.rtol, o.atol, o.max_steps))
        else:
            states, ratio = self._on_edges(h, times, self.plan.edges)
        return self.network.members_at(states, end_times, None), ratio

    def _quantiles(self, x: Tensor) -> Tensor:
        q = self.network.end_time(x)
        if isinstance(self.network.end_time, AmortizedGammaTime) and not self.network.end_time.truncate:
            # The same distribution, normalised by quadrature, since ONNX has no log-gamma function.
            assert isinstance(q, GammaDistribution)
            q = GammaDistribution(q.alpha, q.beta, (0.0, math.inf))
        levels = (torch.arange(self.plan.samples, dtype=torch.float64) + 0.5) / self.plan.samples
        return q.quantile(levels)

    def _on_edges(self, h: Tensor, times: Tensor, edges: Sequence[float]) -> tuple[Tensor, Tensor]:
        o = self.network.solver
        states, norms = replay(self.network.field, self.tableau, h, list(edges), times, o.rtol, o.atol, per_sample=True)
        if times.ndim == 2:
            # Steps that begin after the last end-time of a sample do not count; an end-time beyond the edges is not reached.
            last = times.amax(dim=0).to(torch.float64)
            left = torch.tensor(edges[:-1], dtype=torch.float64)
            norms = torch.where(left[:, None] < last, norms, torch.zeros_like(norms))
            norms = torch.where(last > edges[-1], torch.full_like(norms, math.inf), norms)
        norms = torch.where(norms < _FINITE, norms, torch.full_like(norms, math.inf))
        return states, norms.amax(dim=0)


class Preparation(nn.Module):
    """Conversion of raw inputs to network inputs, in float32.

    Args:
        normalise: ``(x - mean) / std`` per channel or feature; None leaves the values unchanged.
        input_type: ``"uint8"`` inputs are divided by 255 first.
        axes: Number of axes of an input batch.
        encoding: Encoding of table rows, which are ``"float64"``; None for other inputs.
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self, normalise: Normalisation | None, input_type: InputType, axes: int, encoding: TableEncoding | None = None
    ) -> None:
        super().__init__()
        self.input_type, self.encoding = input_type, encoding
        columns = (1, -1, *[1] * (axes - 2))
        self.register_buffer("mean", None if normalise is None else torch.tensor(normalise.mean).reshape(columns))
        self.register_buffer("std", None if normalise is None else torch.tensor(normalise.std).reshape(columns))

    def forward(self, raw: Tensor) -> Float[Tensor, "B *shape"]:
        """Network inputs of raw inputs."""
        if self.encoding is not None:
            raw = self.encoding(raw).float()
        x = raw.to(torch.float32) / 255 if self.input_type == "uint8" else raw
        return x if self.mean is None or self.std is None else (x - self.mean) / self.std


class DeployedModel(nn.Module):
    """Predictions of raw inputs; the keys of the returned dictionary are the outputs of the exported file.

    Classification: probs (B, C), entropy, aleatoric, epistemic (B,) in nats, member_probs (S, B, C). Regression: mean, std,
    noise_std (B,), member_means (S, B). Both: times (S,) or (S, B), error_ratio (B,); with a fitted familiarity distance (B,),
    and with calibration examples familiarity (B,) in float64.

    Args:
        model: The model; an ensemble has one branch per network.
        samples: Number of end-times per network.
        grid: ``"stored"``, ``"adaptive"``, or a number of equal steps.
        raw: Raw inputs whose end-times the steps must reach.
        normalise: Normalisation inside the file; None if it takes network inputs.
        input_type: Type of the raw inputs.
        encoding: Encoding of table rows inside the file; None for other inputs.
    """

    noise: Tensor | None

    def __init__(
        self,
        model: Model,
        samples: int,
        grid: Grid,
        raw: Num[Tensor, "B *shape"],
        normalise: Normalisation | None,
        input_type: InputType,
        encoding: TableEncoding | None = None,
    ) -> None:
        super().__init__()
        self.task = model.task
        self.prepare = Preparation(normalise, input_type, raw.ndim, encoding)
        x = self.prepare(raw)
        networks = exportable_networks(model)
        fixed = all(isinstance(network.end_time, FixedTime) for network in networks)
        samples = 1 if fixed else samples  # all members of a fixed end-time are equal
        self.branches = nn.ModuleList(Branch(network, make_plan(network, samples, grid, x)) for network in networks)
        members = sum(plan.samples for _, plan in self.plans())
        assert isinstance(model, FamiliarModel)
        self.widening, self.ranks = model.widening, model.ranks
        noise = model.predict(x[:1], members).noise
        # Noise that varies with the input is computed in the file; other noise is a constant of it.
        self.register_buffer("noise", None if noise is None or noise.ndim == 2 else noise)
        self.eval().requires_grad_(False)

    def plans(self) -> list[tuple[LatentTimeODE, Plan]]:
        """The networks and their plans."""
        return [(branch.network, branch.plan) for branch in self.branches if isinstance(branch, Branch)]

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Predictions for a batch of raw inputs."""
        x = self.prepare(x)
        parts, ratios = zip(*(branch(x) for branch in self.branches), strict=True)
        prediction = self.answer(parts)
        ratio = torch.stack(ratios).amax(dim=0)
        return {**named_outputs(prediction), "times": prediction.times, "error_ratio": ratio}

    def answer(self, parts: Sequence[Members]) -> Prediction:
        """The prediction of the members of all networks, as `FamiliarModel.answer` makes it."""
        samples = sum(plan.samples for _, plan in self.plans())
        together = combined(parts, samples, len(parts))
        if self.noise is not None:
            together = replace(together, noise=self.noise)
        return answer(together, self.task, self.widening, self.ranks)


def named_outputs(prediction: Prediction) -> dict[str, Tensor]:
    """The quantities of a prediction that an exported file returns."""
    names: tuple[str, ...]
    if prediction.task == "classification":
        names = ("probs", "entropy", "aleatoric", "epistemic", "member_probs")
    else:
        names = ("mean", "std", "noise_std", "member_means")
    outputs = {name: getattr(prediction, name) for name in names}
    if "noise_std" in outputs:
        outputs["noise_std"] = outputs["noise_std"].expand(prediction.member_means.shape[1:])
    known = {"distance": prediction.distance, "familiarity": prediction.familiarity}
    return {**outputs, **{name: value for name, value in known.items() if value is not None}}
