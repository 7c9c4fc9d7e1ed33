"""A deep ensemble of plain neural ODEs: the same network trained from several initialisations.

Lakshminarayanan, Pritzel and Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles", NIPS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ltnode.checks import checked_count
from ltnode.errors import InputError
from ltnode.models.contract import Draw, Inputs, Model, Steps
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.prediction import Prediction
from ltnode.ode import Stats
from ltnode.typing import Tensor


class Ensemble(Model):
    """M neural ODEs with fixed end-times and independent parameters, trained as one model.

    The loss is the **sum** over the members, so that every member has the same gradient, and with any optimiser the same
    training, as if it were trained alone on the same batches. The noise variance of a regression is the mean over the members.
    """

    def __init__(self, members: Sequence[LatentTimeODE]) -> None:
        if len({member.task for member in members}) != 1:
            raise InputError(f"members must be one or more networks for the same task, not for {[m.task for m in members]}")
        super().__init__(members[0].task)
        self.members = nn.ModuleList(members)

    def _nodes(self, n: int | None = None) -> list[LatentTimeODE]:
        return [member for member in self.members[:n] if isinstance(member, LatentTimeODE)]

    def loss(self, x: Tensor, y: Tensor, n_data: int | None = None, times: Tensor | None = None, phase: str = "main") -> Tensor:
        """Compute the sum of the members' losses; the arguments are those of `LatentTimeODE.loss`."""
        losses = [member.loss(x, y, n_data, times, phase) for member in self._nodes()]
        loss = torch.stack(losses).sum()
        parts = [member.loss_parts for member in self._nodes() if member.loss_parts is not None]
        expected = torch.stack([part.expected_log_likelihood for part in parts]).sum()
        self.loss_parts = replace(parts[0], loss=loss.detach(), expected_log_likelihood=expected)
        self.solve_stats = _total([member.solve_stats for member in self._nodes()])
        return loss

    def finish_training(self, x: Tensor, y: Tensor) -> None:
        """Fit the prediction grid and the residual noise of every member."""
        for member in self._nodes():
            member.finish_training(x, y)

    @torch.no_grad()
    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        """Return the descriptions of the members, averaged."""
        rows = [member.describe(x) for member in self._nodes()]
        return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}

    def solver_state(self) -> dict[str, Any]:
        """Return the training grids of the members."""
        return {"members": [member.solver_state() for member in self._nodes()]}

    def load_solver_state(self, state: dict[str, Any]) -> None:
        """Restore the training grids of the members."""
        for member, member_state in zip(self._nodes(), state["members"], strict=True):
            member.load_solver_state(member_state)

    def predict(
        self, x: Inputs, samples: int = 10, draw: Draw = "quantile", seed: int = 0, steps: Steps = "stored"
    ) -> Prediction:
        """Compute the predictive distribution over the networks; see `LatentTimeODE.predict`.

        The M networks take turns as the S = ``samples`` members: S = M, or a multiple, weights them equally; S < M uses the first
        S only. ``draw`` and ``seed`` have no effect, because an ensemble has no random draws.
        """
        x = self.as_inputs(x)
        samples = checked_count("samples", samples)
        single = [member.predict(x, 1, draw, seed, steps) for member in self._nodes(samples)]
        turns = [s % len(single) for s in range(samples)]
        noise = None
        if self.task == "regression":
            noise = torch.stack([single[turn].noise_std.square() for turn in turns]).mean().sqrt()
        stats = _total([p.stats for p in single])
        outputs = torch.cat([single[turn].outputs for turn in turns])
        return Prediction(self.task, outputs, single[0].times.expand(samples), stats, noise)

    def log_probs(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Tensor:
        """Return the log of the averaged class probabilities with a graph to x."""
        samples = checked_count("samples", samples)
        single = [member(x, member.prediction_times(x, 1, draw, seed)) for member in self._nodes(samples)]
        outputs = torch.cat([single[s % len(single)] for s in range(samples)])
        return Prediction(self.task, outputs, outputs.new_ones(samples)).log_probs


def _total(work: Sequence[Stats | None]) -> Stats:
    """Sum the work of several solves."""
    done = [stats for stats in work if stats is not None]
    return Stats(*(sum(getattr(stats, name) for stats in done) for name in Stats.__dataclass_fields__))
