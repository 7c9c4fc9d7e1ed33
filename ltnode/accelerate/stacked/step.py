"""Losses and gradients of stacked networks on one batch, with the error check of the training grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ltnode.accelerate.stacked.likelihood import StackedGaussians, StackedLabels, StackedLikelihood
from ltnode.accelerate.stacked.parameters import FIRST, SECOND, THIRD, Array, Blocks, StackedParameters
from ltnode.accelerate.stacked.posterior import StackedGammas
from ltnode.accelerate.stacked.time_weights import GridConstants
from ltnode.accelerate.stacked.trajectory import Trajectory
from ltnode.endtime import FixedTime, GammaTime, UniformTime
from ltnode.endtime.posteriors import PARAMETER_RANGE
from ltnode.models import LatentTimeODE
from ltnode.models.vectors import TimeMLP
from ltnode.objective import Categorical, Gaussian, resolve_kl_weight
from ltnode.ode import SolverError, Stats, Status
from ltnode.ode.search import Search, Tolerance
from ltnode.ode.tableau import get_tableau
from ltnode.typing import Float, Tensor

_AHEAD = 32
"""Number of steps whose end-times are drawn at once."""
_MAX_ATTEMPTS = 3
_Losses = NDArray[np.float64]


class StackedStep:
    """Losses and gradients of networks that are trained on the same batches, at the same end-times; `EagerStep` is the reference.

    Args:
        networks: Networks for which `unsupported_reason_stacked` is None.
        seed: Seed of the end-times.
        n_data: Number of training examples.
        weight_decay: L2 penalty of all parameters but those of the posterior.

    Attributes:
        parameters: The stacked parameters with their gradients.
    """

    def __init__(self, networks: Sequence[LatentTimeODE], seed: int, n_data: int, weight_decay: float = 0.0) -> None:
        first = self._network = networks[0]
        self.parameters = StackedParameters(networks)
        values, gradients = self.parameters.values, self.parameters.gradients
        weights, to = (Blocks(**{name: named[name] for name in Blocks.__dataclass_fields__}) for named in (values, gradients))
        self._trajectory = Trajectory(weights, to, first.solver.rtol, first.solver.atol)
        self._likelihood: StackedLikelihood = StackedLabels()
        if isinstance(first.likelihood, Gaussian):
            noise = values["likelihood.log_std"], gradients["likelihood.log_std"]
            self._likelihood = StackedGaussians(first.likelihood, *noise)
        self._posterior: StackedGammas | None = None
        self._kl_weight = 0.0
        if isinstance(first.end_time, GammaTime):
            self._shape_and_rate = [(values[name], gradients[name]) for name in ("end_time.alpha", "end_time.beta")]
            ends = [network.end_time for network in networks]
            self._posterior = StackedGammas(ends, *(value for value, _ in self._shape_and_rate))  # type: ignore[arg-type]
            self._kl_weight = resolve_kl_weight(first.objective.kl_weight, n_data, per_input=False)
        self._decayed = [name for name in values if not name.startswith("end_time.")] if weight_decay else []
        self._weight_decay, self._seed = weight_decay, seed
        self._grid, self._tableau = first.training_grid, get_tableau(first.solver.method)
        self._constants: GridConstants | None = None
        self._block = -1

    def losses(self, x: Array, y: NDArray[Any], step: int, weights: Array | None = None) -> _Losses:
        """Compute the loss of every network (K,), and its gradient in the stacked parameters.

        Args:
            x: Inputs (B, D + 1) with a last column of ones; see `with_ones`.
            y: Labels (B,), or targets (B,) or (B, targets).
            step: Number of updates before this one, which determines the end-times.
            weights: How many examples each row counts for, (B,) for all networks or (K, B); None counts each once.

        Raises:
            SolverError: The ODE could not be solved.
        """
        self._draw(step)
        outputs = self._solve(x, step)
        log_likelihood = self._likelihood.log_prob(outputs, y)
        if weights is not None:
            weights = np.atleast_2d(weights)[:, None]
            log_likelihood = log_likelihood * weights
        losses, of_time = self._weigh_times(log_likelihood.mean(axis=2, dtype=np.float64), step)
        share = (of_time / len(x)).astype(np.float32)[:, :, None]
        self._trajectory.backward(self._likelihood.gradients(share if weights is None else share * weights))
        for name in self._decayed:
            self.parameters.gradients[name] += self._weight_decay * self.parameters.values[name]
        return losses

    def constrain(self) -> None:
        """Clamp the posteriors to their range; call it after every update."""
        if self._posterior is not None:
            for value, _ in self._shape_and_rate:
                np.clip(value, *PARAMETER_RANGE, out=value)

    def _weigh_times(self, expected: _Losses, step: int) -> tuple[_Losses, _Losses]:
        """Losses from the log-likelihoods (K, S), and the weights of the end-times; sets the gradients of the posteriors."""
        if self._posterior is None:
            return -expected.mean(axis=1), np.full_like(expected, 1 / expected.shape[1])
        log_q, kl = self._posterior.values(self._times[step % _AHEAD])
        q = np.exp(log_q - log_q.max(axis=1, keepdims=True))
        weights = q / q.sum(axis=1, keepdims=True)
        mean = (weights * expected).sum(axis=1)
        of_posterior = self._posterior.gradients(weights * (mean[:, None] - expected), self._kl_weight)
        for (_, gradient), value in zip(self._shape_and_rate, of_posterior, strict=True):
            gradient[...] = value
        return self._kl_weight * kl - mean, weights

    # -- the solve -------------------------------------------------------------------------------------------------------

    def _draw(self, step: int) -> None:
        """Draw the end-times of the steps from here on, unless they are drawn already."""
        block = step // _AHEAD
        if block != self._block:
            steps = range(block * _AHEAD, (block + 1) * _AHEAD)
            times = self._network.training_times(1, self._seed, steps, device=torch.device("cpu"))
            # A fixed end-time has one row for all steps.
            self._times = times.expand(_AHEAD, -1).double().numpy()
            self._block = block
            self._weigh()

    def _weigh(self) -> None:
        """Compute the weights of the solver's stages at the end-times that are drawn."""
        if self._constants is not None:
            self._stage_weights = self._constants.weights(self._times)

    def _solve(self, x: Array, step: int) -> Array:
        """Outputs (K, S, C, B) at the end-times of a step, on a grid whose errors are checked."""
        grid = self._grid
        grid.n_solves += 1
        if self._constants is None:
            self._search(x, fewer=grid.edges is not None)
        for _ in range(_MAX_ATTEMPTS):
            assert self._constants is not None
            outputs, norms = self._trajectory.forward(x, self._constants, self._stage_weights[step % _AHEAD])
            if all(norm < 1.0 for norm in norms):  # false for NaN
                if grid.wants_fewer(torch.tensor(norms), self._tableau.error_order):
                    self._search(x, fewer=True)
                return outputs
            grid.n_failed_checks += 1
            self._search(x)
        status = Status.STEP_UNDERFLOW if all(math.isfinite(norm) for norm in norms) else Status.NON_FINITE
        raise SolverError(status, 0.0, self._network.end_time.window[1], Stats(0, 0, 0))

    @torch.no_grad()
    def _search(self, x: Array, fewer: bool = False) -> None:
        """Search a grid on the states of all networks."""
        o, end = self._network.solver, float(self._network.end_time.window[1])
        search = self._grid.try_fewer if fewer else self._grid.refresh
        start = torch.from_numpy(self._trajectory.initial_state(x))
        found: Search = search(
            self._trajectory.field, self._tableau, start, 0.0, end, Tolerance(o.rtol, o.atol, o.max_steps, o.clip_last)
        )
        if found.status is not Status.OK:
            raise SolverError(found.status, 0.0, end, Stats(0, found.n_rejected, found.n_evaluations))
        assert self._grid.edges is not None
        self._constants = GridConstants(self._tableau, self._grid.edges)
        self._weigh()


def with_ones(x: Float[Tensor, "N D"]) -> Array:
    """Return inputs as a stacked step takes them: in float32, with a last column of ones."""
    return np.concatenate([x.numpy(), np.ones((len(x), 1))], axis=1, dtype=np.float32, casting="same_kind")


def unsupported_reason_stacked(networks: Sequence[LatentTimeODE]) -> str | None:
    """Explain why steps of these networks cannot be computed together."""
    for network in networks:
        reason = _unsupported_reason_network(network)
        if reason is not None:
            return reason
    if len({tuple((name, p.shape) for name, p in network.named_parameters()) for network in networks}) > 1:
        return "the networks differ in their architecture"
    if len({(network.solver, network.objective, network.end_time.window) for network in networks}) > 1:
        return "the networks differ in their options"
    return None


def _unsupported_reason_network(network: LatentTimeODE) -> str | None:
    if type(network) is not LatentTimeODE or network.augment or next(network.parameters()).device.type != "cpu":
        return "the network is not a LatentTimeODE on a CPU without augmented states"
    modules = dict(network.named_modules())
    smooth = [modules.get(f"field.layers.{m}") for m in (1, 3)]
    if type(network.field) is not TimeMLP or "field.layers.5" in modules or any(type(layer) is not nn.Tanh for layer in smooth):
        return "the field is not a TimeMLP with two hidden layers of tanh"
    linear = [modules[name] for name in ("stem", FIRST, SECOND, THIRD, "head")]
    if any(type(layer) is not nn.Linear or layer.bias is None for layer in linear):
        return "stem, head and the layers of the field are not linear with a bias"
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in network.modules()):
        return "the network has a hook"
    if type(network.end_time) not in (GammaTime, UniformTime, FixedTime) or not network.end_time.truncate:
        return "the end-time is neither a truncated Gamma nor uniform or fixed"
    if type(network.likelihood) not in (Categorical, Gaussian):
        return "the likelihood is neither that of labels nor Gaussian"
    if network.end_time.learnable and network.objective.weighting != "normalised":
        return "the weights of the end-times are not normalised"
    solver, tableau = network.solver, get_tableau(network.solver.method)
    if solver.training != "kept" or solver.recompute or not (tableau.fsal and tableau.adaptive):
        return "the training does not replay a grid of steps whose last stage is the first of the next"
    return None
