"""The forward pass of a captured step: stem, solve on the training grid, head and loss, without a decision on the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ltnode.accelerate.drawn_times import DrawnTimes
from ltnode.accelerate.fused import fused_outputs, fused_posterior_terms, gamma_terms, stage_weights
from ltnode.accelerate.recorder import SHORT_KERNELS
from ltnode.device import autocast
from ltnode.endtime import GammaTime
from ltnode.models.end_time_model import EndTimeModel, PosteriorTerms
from ltnode.models.step import StepSettings
from ltnode.objective import LossParts
from ltnode.ode.replay import replay
from ltnode.ode.step import evaluate
from ltnode.ode.tableau import get_tableau
from ltnode.typing import Tensor


@dataclass(frozen=True)
class StepInputs:
    """What differs from step to step: the batch and `DrawnTimes.draw`; no indices where all inputs share their end-times."""

    x: Tensor
    y: Tensor
    times_or_keys: Tensor
    indices: Tensor | None

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors that are present."""
        shared = (self.x, self.y, self.times_or_keys)
        return shared if self.indices is None else (*shared, self.indices)

    def copy_to(self, device: torch.device) -> StepInputs:
        """Copy all tensors to a device."""
        x, y, times_or_keys, *indices = (tensor.to(device, copy=True) for tensor in self.tensors())
        return StepInputs(x, y, times_or_keys, indices[0] if indices else None)


class SolvePass:
    """Computes the loss of an `EndTimeModel` in train mode on CUDA and the error norms of its solve, by the model's layers.

    Attributes:
        kind: How it computes the solve, for the log.
    """

    kind = "captured layers"

    def __init__(self, model: EndTimeModel, times: DrawnTimes, settings: StepSettings) -> None:
        self.model, self.network, self.settings = model, model.solving_network, settings
        self.tableau = get_tableau(self.network.solver.method)
        self._times = times
        self._branch = torch.cuda.Stream(next(model.parameters()).device, priority=SHORT_KERNELS)

    def __call__(self, inputs: StepInputs, edges: Tensor) -> tuple[LossParts, Tensor]:
        """Return the parts of the loss and the error norm of every solver step; the edges (n+1,) are on the device."""
        x = inputs.x
        # The interpolation weights and the posterior consist of many tiny kernels that do not need the trajectory, so they run
        # on a stream of their own, concurrently with it.
        main = torch.cuda.current_stream()
        self._branch.wait_stream(main)
        timed = torch.cuda.Event()
        with torch.cuda.stream(self._branch):
            times = self._times.on_device(inputs.times_or_keys, inputs.indices)
            weights = self._weights(edges, times)
            timed.record()
            posterior = self._posterior(x, times)

        def awaited_weights() -> Tensor:
            main.wait_event(timed)
            assert weights is not None
            return weights

        if weights is None:
            main.wait_event(timed)
        outputs, norms = self._outputs(x, times, edges, awaited_weights)
        main.wait_stream(self._branch)
        return self.model.compose_loss(outputs.float(), inputs.y, times, posterior, self.settings.n_data), norms

    def rehearse(self, inputs: StepInputs, edges: Tensor) -> Tensor | None:
        """Call every part of the model once; returns a loss, or None if the parts are known to be fit for a capture."""
        network, x = self.network, inputs.x
        times = self._times.on_device(inputs.times_or_keys, inputs.indices)
        with autocast(self.settings.precision, x.device):
            h = network.initial_state(x).float()
            h = h + evaluate(network.field, edges[0], h)
            outputs = network.outputs_at(h.expand(len(times), *h.shape)).float()
            posterior = network.posterior_terms(x, times)
        return self.model.compose_loss(outputs, inputs.y, times, posterior, self.settings.n_data).loss

    def _weights(self, edges: Tensor, times: Tensor) -> Tensor | None:
        """Compute `stage_weights`, if `_outputs` needs them."""
        return None

    def _posterior(self, x: Tensor, times: Tensor) -> PosteriorTerms:
        if isinstance(self.network.end_time, GammaTime):
            return gamma_terms(self.network.end_time, *self.network.end_time.shape_and_rate(), times.float())
        with autocast(self.settings.precision, x.device):
            return self.network.posterior_terms(x, times)

    def _outputs(self, x: Tensor, times: Tensor, edges: Tensor, weights: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """Compute the outputs of the members (S, B, C) and the error norms; ``weights`` waits for `_weights`."""
        network, o = self.network, self.network.solver
        with autocast(self.settings.precision, x.device):
            h = network.initial_state(x).float()
            result = replay(network.field, self.tableau, h, edges, times, o.rtol, o.atol)
            return network.outputs_at(result.states).float(), result.norms


class FusedSolvePass(SolvePass):
    """The same in fused kernels, for the networks that `plan.unsupported_reason_fused_step` supports."""

    kind = "fused kernels"

    def rehearse(self, inputs: StepInputs, edges: Tensor) -> Tensor | None:
        """Return None: a fused field is known to be capturable, and a rehearsal of its layers would not call the kernels."""
        return None

    def _weights(self, edges: Tensor, times: Tensor) -> Tensor | None:
        return stage_weights(self.tableau, edges, times)

    def _posterior(self, x: Tensor, times: Tensor) -> PosteriorTerms:
        return fused_posterior_terms(self.network, x, times, self.settings.precision)

    def _outputs(self, x: Tensor, times: Tensor, edges: Tensor, weights: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        return fused_outputs(self.network, x, times, edges, self.settings.precision, weights)
