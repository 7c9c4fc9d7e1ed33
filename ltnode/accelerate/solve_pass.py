"""The forward pass of a captured step: stem, solve on the training grid, head and loss, without a decision on the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ltnode.accelerate.drawn_times import DrawnTimes
from ltnode.accelerate.fused import fused_outputs, fused_posterior_terms, stage_weights
from ltnode.accelerate.recorder import SHORT_KERNELS
from ltnode.device import autocast
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
    """Computes the loss of an `EndTimeModel` in train mode on CUDA and the error norms of its solve."""

    def __init__(self, model: EndTimeModel, times: DrawnTimes, settings: StepSettings, fused: bool) -> None:
        self._model, self._network, self._times = model, model.solving_network, times
        self._settings, self._fused = settings, fused
        self._tableau = get_tableau(self._network.solver.method)
        self._branch = torch.cuda.Stream(next(model.parameters()).device, priority=SHORT_KERNELS)

    def __call__(self, inputs: StepInputs, edges: Tensor) -> tuple[LossParts, Tensor]:
        """Return the parts of the loss and the error norm of every solver step; the edges (n+1,) are on the device."""
        x = inputs.x
        # The interpolation weights and the posterior consist of hundreds of tiny kernels that do not need the trajectory, so
        # they run on a stream of their own, concurrently with it.
        main = torch.cuda.current_stream()
        self._branch.wait_stream(main)
        timed = torch.cuda.Event()
        with torch.cuda.stream(self._branch):
            times = self._times.on_device(inputs.times_or_keys, inputs.indices)
            weights = stage_weights(self._tableau, edges, times) if self._fused else None
            timed.record()
            posterior = self._posterior(x, times)
        if weights is not None:

            def awaited_weights() -> Tensor:
                main.wait_event(timed)
                return weights

            outputs, norms = fused_outputs(self._network, x, times, edges, self._settings.precision, awaited_weights)
        else:
            main.wait_event(timed)
            outputs, norms = self._replayed_outputs(x, times, edges)
        main.wait_stream(self._branch)
        return self._model.compose_loss(outputs.float(), inputs.y, times, posterior, self._settings.n_data), norms

    def rehearse(self, inputs: StepInputs, edges: Tensor) -> Tensor:
        """Call every part of the model once; returns a loss."""
        network, x = self._network, inputs.x
        times = self._times.on_device(inputs.times_or_keys, inputs.indices)
        with autocast(self._settings.precision, x.device):
            h = network.initial_state(x).float()
            h = h + evaluate(network.field, edges[0], h)
            outputs = network.outputs_at(h.expand(len(times), *h.shape)).float()
            posterior = network.posterior_terms(x, times)
        return self._model.compose_loss(outputs, inputs.y, times, posterior, self._settings.n_data).loss

    def _posterior(self, x: Tensor, times: Tensor) -> PosteriorTerms:
        if self._fused:
            return fused_posterior_terms(self._network, x, times, self._settings.precision)
        with autocast(self._settings.precision, x.device):
            return self._network.posterior_terms(x, times)

    def _replayed_outputs(self, x: Tensor, times: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        network, o = self._network, self._network.solver
        with autocast(self._settings.precision, x.device):
            h = network.initial_state(x).float()
            result = replay(network.field, self._tableau, h, edges, times, o.rtol, o.atol)
            return network.outputs_at(result.states).float(), result.norms
