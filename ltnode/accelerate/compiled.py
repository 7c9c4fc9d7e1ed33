"""The forward pass of a captured step with compiled layers: torch.compile writes kernels for a user's own field, stem and head.

The pass is cut into three functions: what precedes the steps, one step, and what follows them. A step is compiled once and serves
grids of every length. Runge-Kutta sums, error norms, norms, activations and casts become parts of few kernels; sums and states
are float32 whatever the precision of the layers. The reference is `ltnode.ode.replay`, in `SolvePass`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import FunctionType
from typing import Any, TypeVar, cast

import torch
from torch import nn

from ltnode.accelerate.drawn_times import DrawnTimes
from ltnode.accelerate.fused import stage_weights
from ltnode.accelerate.joined_products import joined_products_pass
from ltnode.accelerate.solve_pass import SolvePass
from ltnode.device import autocast
from ltnode.models.end_time_model import EndTimeModel
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.step import StepSettings
from ltnode.ode.step import error_norm, evaluate, take_step
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Tensor

_LARGEST_UNROLLED = 600
"""Largest number of products of a weight and a stage that are written out in a kernel; more are a matrix product."""
_PASS = "post_grad_custom_pre_pass"
_number = itertools.count()
Function = TypeVar("Function", bound=Callable[..., Any])


def unsupported_reason_compile(network: LatentTimeODE, tableau: ButcherTableau) -> str | None:
    """Explain why the layers of a network cannot be compiled for captured steps."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if not tableau.fsal or not tableau.adaptive:
        return f"method {tableau.name!r} does not end its steps with the field at the new state, or has no error estimate"
    for name, module in network.named_modules():
        if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
            return f"{name or 'the network'} ({type(module).__name__}) has a hook"
    return None


class CompiledSolvePass(SolvePass):
    """`SolvePass` with compiled layers, for the networks that `unsupported_reason_compile` supports."""

    kind = "compiled layers"

    def __init__(self, model: EndTimeModel, times: DrawnTimes, settings: StepSettings) -> None:
        super().__init__(model, times, settings)
        network, tableau, o = self.network, self.tableau, self.network.solver

        def before(x: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
            h = _channels_last(network.initial_state(x).float())
            return h, evaluate(network.field, start, h)

        def step(left: Tensor, length: Tensor, y: Tensor, k: Tensor) -> tuple[Tensor, tuple[Tensor, ...], Tensor]:
            taken = take_step(network.field, tableau, left, length, y, k)
            return taken.y, taken.stages[1:], error_norm(tableau, length, y, taken, o.rtol, o.atol, per_sample=False)

        self._before, self._step = _compiled(before), _compiled(step)
        self._after: dict[int, Callable[..., Tensor]] = {}

    def rehearse(self, inputs: Any, edges: Tensor) -> Tensor | None:
        """Return None: the layers were captured before they were compiled."""
        return None

    def _weights(self, edges: Tensor, times: Tensor) -> Tensor | None:
        stages = (len(edges) - 1) * (self.tableau.stages - 1) + 1
        return stage_weights(self.tableau, edges, times)[..., :stages]

    def _outputs(self, x: Tensor, times: Tensor, edges: Tensor, weights: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        edges32 = edges.float()
        lengths = edges32.diff()
        with autocast(self.settings.precision, x.device):
            h, k = self._before(x, edges32[0])
            y, stages, norms = h, [k], []
            for m in range(len(lengths)):
                y, later, norm = self._step(edges32[m], lengths[m], y, stages[-1])
                stages.extend(later)
                norms.append(norm)
            return self._head_at(len(stages))(h, stages, weights()), torch.stack(norms)

    def _head_at(self, stages: int) -> Callable[..., Tensor]:
        """Interpolation and head for a number of stages."""
        network = self.network

        def after(h: Tensor, stages: Sequence[Tensor], weights: Tensor) -> Tensor:
            return network.outputs_at(mixed_states(h, stages, weights)).float()

        if stages not in self._after:
            self._after[stages] = _compiled(after)
        return self._after[stages]


def mixed_states(h: Tensor, stages: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Compute ``h + sum_j weights[s, (b,) j] stages[j]`` for all s in float32, in a form that compiles to one kernel."""
    samples, batch = len(weights), weights.shape[1] if weights.ndim == 3 else 1
    if samples * len(stages) <= _LARGEST_UNROLLED:
        shaped = weights.reshape(samples, batch, *[1] * (h.ndim - 1), len(stages))
        states = []
        for s in range(samples):
            state = h
            for j, stage in enumerate(stages):
                state = state + shaped[s, ..., j] * stage
            states.append(state)
        return torch.stack(states)
    with torch.autocast(h.device.type, enabled=False):
        stacked = torch.stack(tuple(stages))
        if weights.ndim == 2:
            return h + (weights @ stacked.reshape(len(stages), -1)).reshape(samples, *h.shape)
        flat = torch.bmm(weights.transpose(0, 1), stacked.transpose(0, 1).flatten(2))  # (B, S, features)
        return h + flat.transpose(0, 1).reshape(samples, *h.shape)


def _channels_last(h: Tensor) -> Tensor:
    """Images in the memory layout of tensor-core convolutions; other states as they are."""
    return h.contiguous(memory_format=torch.channels_last) if h.ndim == 4 else h


def _compiled(function: Function) -> Function:
    """Compile a function for one set of shapes.

    torch keeps what it has compiled with the code of a function, and only a few versions of it. Every pass therefore gets code of
    its own.
    """
    plain = cast(FunctionType, function)
    code = plain.__code__.replace(co_name=f"{plain.__code__.co_name}_{next(_number)}")
    own = FunctionType(code, plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__)
    return cast(Function, torch.compile(own, dynamic=False, fullgraph=True, options={_PASS: joined_products_pass()}))


def has_dropout(part: nn.Module) -> bool:
    """Whether a part of a model draws random numbers by dropout when it is trained."""
    return any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in part.modules())
