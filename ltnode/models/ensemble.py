"""A deep ensemble: the same neural ODE trained from several initialisations.

Lakshminarayanan, Pritzel and Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles", NIPS 2017.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from ltnode.checks import checked_count
from ltnode.errors import InputError
from ltnode.models import execution
from ltnode.models.contract import Draw, Inputs, Steps, check_draw, check_steps, evaluating
from ltnode.models.familiar_model import FamiliarModel, Members
from ltnode.models.familiarity import Ranks
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.path_process import Fallback
from ltnode.models.prediction import Prediction
from ltnode.models.shared_grid import fit_shared_grid, same_states
from ltnode.models.widening import Widening
from ltnode.ode import Stats
from ltnode.typing import Float, Tensor


class Ensemble(FamiliarModel):
    """M neural ODEs with independent parameters, used as one model.

    The S members of a prediction are shared out over the networks: member s belongs to network ``s mod M``, and every network
    answers at the quantiles of its own end-time, as many as it has members. S = M or a multiple of it weights the networks
    equally; S < M takes the answers of the first S. The distance is the mean of those of all networks, whatever S is.
    Temperature, widening and ranks belong to the ensemble; those of its networks are not used.

    The loss is the **sum** over the networks, so that every network has the same gradient, and with any optimiser the same
    training, as if it were trained alone on the same batches. The noise variance of a regression is the mean over the members.

    Attributes:
        networks: The networks. `finish_training` gives them one prediction grid, so that they can be solved together.
    """

    def __init__(self, networks: Sequence[LatentTimeODE]) -> None:
        if len({network.task for network in networks}) != 1:
            raise InputError(f"networks must be one or more networks for the same task, not for {[n.task for n in networks]}")
        if not all(isinstance(network, LatentTimeODE) for network in networks):
            kinds = sorted({type(network).__name__ for network in networks})
            raise InputError(
                f"an ensemble consists of models with an end-time such as node and lt-node, not of {', '.join(kinds)}"
            )
        super().__init__(networks[0].task)
        self.networks = nn.ModuleList(networks)
        self.spec = _common_spec(networks)

    def _nodes(self, n: int | None = None) -> list[LatentTimeODE]:
        return [cast(LatentTimeODE, network) for network in self.networks[:n]]

    # -- training ------------------------------------------------------------------------------------------------------------

    @property
    def n_targets(self) -> int:
        """Number of real values that a regression predicts."""
        return self._nodes(1)[0].n_targets

    @property
    def soft_targets(self) -> bool:
        """Whether all networks take class probabilities in place of labels."""
        return all(network.soft_targets for network in self._nodes())

    def loss(self, x: Tensor, y: Tensor, n_data: int | None = None, times: Tensor | None = None, phase: str = "main") -> Tensor:
        """Compute the sum of the networks' losses; the arguments are those of `LatentTimeODE.loss`."""
        return self.weighted_loss(x, y, None, n_data, times, phase)

    def weighted_loss(
        self,
        x: Tensor,
        y: Tensor,
        weights: Float[Tensor, " B"] | None,
        n_data: int | None = None,
        times: Tensor | None = None,
        phase: str = "main",
    ) -> Tensor:
        """Compute `loss` with weights of the examples; see `Model.weighted_loss`."""
        losses = [network.weighted_loss(x, y, weights, n_data, times, phase) for network in self._nodes()]
        loss = torch.stack(losses).sum()
        parts = [network.loss_parts for network in self._nodes() if network.loss_parts is not None]
        expected = torch.stack([part.expected_log_likelihood for part in parts]).sum()
        self.loss_parts = replace(parts[0], loss=loss.detach(), expected_log_likelihood=expected)
        self.solve_stats = _total([network.solve_stats for network in self._nodes()])
        return loss

    def parameter_roles(self, phase: str = "main") -> dict[str, list[nn.Parameter]]:
        """Return the parameters of all networks by role."""
        roles: dict[str, list[nn.Parameter]] = {}
        for network in self._nodes():
            for role, parameters in network.parameter_roles(phase).items():
                roles.setdefault(role, []).extend(parameters)
        return roles

    def training_times(self, batch: int, seed: int, step: int, indices: Tensor | None = None) -> Tensor | None:
        """Return the end-times of a training step, which are the same for all networks; None if their windows differ."""
        first, *others = self._nodes()
        if any((type(one.end_time), one.end_time.window) != (type(first.end_time), first.end_time.window) for one in others):
            return None
        return first.training_times(batch, seed, step, indices)

    def after_step(self) -> None:
        """Clamp the parameters of every posterior to their range."""
        for network in self._nodes():
            network.after_step()

    def finish_training(self, x: Tensor, y: Tensor) -> None:
        """Fit the residual noise of every network and, where their states have the same shape, one prediction grid for all."""
        for network in self._nodes():
            network.finish_training(x, y)
        if same_states(self._nodes()):
            with evaluating(self):
                fit_shared_grid(self._nodes(), x)

    @torch.no_grad()
    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        """Return the descriptions of the networks, averaged."""
        rows = [network.describe(x) for network in self._nodes()]
        return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0] if all(name in row for row in rows)}

    def solver_state(self) -> dict[str, Any]:
        """Return the training grids of the networks."""
        return {"members": [network.solver_state() for network in self._nodes()]}

    def load_solver_state(self, state: dict[str, Any]) -> None:
        """Restore the training grids of the networks."""
        for network, network_state in zip(self._nodes(), state["members"], strict=True):
            network.load_solver_state(network_state)

    # -- familiarity ---------------------------------------------------------------------------------------------------------

    @property
    def has_familiarity(self) -> bool:
        """Whether predictions have a distance: all networks have one."""
        return all(network.has_familiarity for network in self._nodes())

    def forget_familiarity(self) -> None:
        """Discard densities, ranks and widening, for example because the weights are trained further."""
        for network in self._nodes():
            network.forget_familiarity()
        like = next(self.parameters())
        self.ranks, self.widening = Ranks().to(like), Widening().to(like)

    @property
    def input_mean(self) -> Tensor:
        """Mean of the inputs on which the familiarity was fitted."""
        return torch.stack([network.input_mean for network in self._nodes()]).mean(dim=0)

    def fit_familiarity(self, x: Inputs, y: Tensor | None = None) -> None:
        """Fit the densities of all networks; see `FamiliarModel.fit_familiarity`."""
        x = self.as_inputs(x)
        for network in self._nodes():
            network.fit_familiarity(x, y)
        self.ranks, self.widening = Ranks().to(x), Widening().to(x)

    def base_rates(self, y: Tensor, n_outputs: int) -> Float[Tensor, "n *targets"]:
        """Return class frequencies, or moments of the targets, of the training; see `FamiliarModel.base_rates`."""
        return torch.stack([network.base_rates(y, n_outputs) for network in self._nodes()]).mean(dim=0)

    def path_profile(self, x: Inputs) -> tuple[Float[Tensor, " K"], Float[Tensor, "K B"]]:
        """Return the fixed times of the path and the mean over the networks of their distances; see `PathModel.path_profile`.

        Raises:
            InputError: The familiarity is not fitted, or the windows of the networks differ.
        """
        self._require_familiarity()
        windows = {tuple(network.end_time.window) for network in self._nodes()}
        if len(windows) > 1:
            raise InputError(f"a distance over t needs networks with the same window, not with {sorted(windows)}")
        times, profiles = zip(*(network.path_profile(x) for network in self._nodes()), strict=True)
        return times[0], torch.stack(profiles).mean(dim=0)

    # -- prediction ----------------------------------------------------------------------------------------------------------

    def predict(
        self, x: Inputs, samples: int = 10, draw: Draw = "quantile", seed: int = 0, steps: Steps = "stored"
    ) -> Prediction:
        """Compute the predictive distribution over networks and end-times; see `LatentTimeODE.predict` and this class."""
        check_steps(steps)
        return super().predict(x, samples, draw, seed, steps)

    def members(self, x: Tensor, samples: int, draw: Draw = "quantile", seed: int = 0, steps: Steps = "stored") -> Members:
        """Compute the members of a prediction in the current mode of the model."""
        samples = checked_count("samples", samples)
        check_draw(draw)
        # The distance must not depend on the number of members, so it needs all networks.
        networks = self._nodes(None if self.has_familiarity else samples)
        shares = self._shares(samples, seed)
        times = [network.prediction_times(x, n, draw, own) for network, (n, own) in zip(networks, shares, strict=False)]
        states, stats = self._solve(networks, x, times, steps)
        parts = [network.members_at(h, own, None) for network, h, own in zip(networks, states, times, strict=True)]
        return replace(combined(parts, samples, len(self.networks)), stats=stats)

    def _solve(
        self, networks: Sequence[LatentTimeODE], x: Tensor, times: Sequence[Tensor], steps: Steps
    ) -> tuple[list[Tensor], Stats]:
        """Solve for the states that every network needs: one after the other, unless the execution solves for all at once."""
        solved = [network.solved_times(own) for network, own in zip(networks, times, strict=True)]
        at_once = execution.current().solve_networks(networks, x, solved) if steps == "stored" else None
        if at_once is not None:
            return at_once
        pairs = zip(networks, solved, strict=True)
        solutions = [network.solve(network.initial_state(x), own, steps) for network, own in pairs]
        return [solution.states for solution in solutions], _total([solution.stats for solution in solutions])

    def log_probs(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Tensor:
        """Return the log of the averaged class probabilities with a graph to x."""
        samples, count = checked_count("samples", samples), len(self.networks)
        shares = self._shares(samples, seed)
        answers = [
            network(x, network.prediction_times(x, n, draw, own))
            for network, (n, own) in zip(self._nodes(samples), shares, strict=False)
        ]
        outputs = torch.stack([answers[s % count][s // count] for s in range(samples)])
        return Prediction(self.task, outputs, outputs.new_ones(samples)).log_probs

    def _shares(self, samples: int, seed: int) -> list[tuple[int, int]]:
        """Number of end-times (at least 1) and seed of every network; no two seeds of an ensemble share draws."""
        count = len(self.networks)
        return [(max(1, len(range(m, samples, count))), seed * count + m) for m in range(count)]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Earlier versions called the networks members.
        old = f"{prefix}members."
        for name in [name for name in state_dict if name.startswith(old)]:
            state_dict[f"{prefix}networks.{name.removeprefix(old)}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)


def combined(parts: Sequence[Members], samples: int, count: int) -> Members:
    """Let networks take turns as the members of one prediction.

    Args:
        parts: Members of the networks; of all of them if there is to be a distance.
        samples: Number of members of the prediction.
        count: Number of networks.
    """
    turns = [divmod(s, count) for s in range(samples)]
    outputs = torch.stack([parts[m].outputs[position] for position, m in turns])
    times = torch.stack(torch.broadcast_tensors(*(parts[m].times[position] for position, m in turns)))
    noise = _combined_noise(parts, turns)
    distances = [part.distance for part in parts if part.distance is not None]
    distance = torch.stack(distances).mean(dim=0) if len(distances) == count else None
    fallbacks = [part.fallback for part in parts if part.fallback is not None]
    return Members(outputs, times, None, noise, distance, _mixture(fallbacks) if len(fallbacks) == count else None)


def _combined_noise(parts: Sequence[Members], turns: Sequence[tuple[int, int]]) -> Tensor | None:
    """Return the noise of all members where it varies with the input, else that of their mean variance; None for labels."""
    noises = [(parts[m].noise, position) for position, m in turns]
    own = [noise[position] if noise.ndim == 3 else noise for noise, position in noises if noise is not None]
    if not own:
        return None
    if any(noise.ndim == 2 for noise in own):
        return torch.stack(torch.broadcast_tensors(*own))
    return torch.stack([noise.square() for noise in own]).mean(dim=0).sqrt()


def _mixture(fallbacks: Sequence[Fallback]) -> Fallback:
    """Return mean and variance of the mixture of what the networks answer where their members know nothing."""
    means, variances, weights = (torch.stack(values) for values in zip(*fallbacks, strict=True))
    return Fallback(means.mean(dim=0), variances.mean(dim=0) + means.var(dim=0, correction=0), weights.mean(dim=0))


def _common_spec(networks: Sequence[LatentTimeODE]) -> Mapping[str, Any] | None:
    """Describe an ensemble of networks that were built alike; None for others, which `ltnode.build` cannot rebuild."""
    spec = networks[0].spec
    if spec is None:
        return None
    if len({json.dumps(network.spec, sort_keys=True, default=repr) for network in networks}) > 1:
        return None
    return {**spec, "model": "ensemble", "options": {**spec["options"], "of": spec["model"], "members": len(networks)}}


def _total(work: Sequence[Stats | None]) -> Stats:
    """Sum the work of several solves."""
    done = [stats for stats in work if stats is not None]
    return Stats(*(sum(getattr(stats, name) for stats in done) for name in Stats.__dataclass_fields__))
