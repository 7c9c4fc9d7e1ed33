"""A training step with an ODE solve as one CUDA graph: forward, backward, error check and update in a single launch.

The step replays the training grid, and the embedded error of the solve comes out of the same pass. Nothing can be decided on the
host inside a graph, so a step whose error check fails masks its own update on the device; `GridPolicy` notices the failure a few
steps later and searches a new grid. `ltnode.models.step.EagerStep` is the reference.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from ltnode.accelerate.drawn_times import DrawnTimes
from ltnode.accelerate.flat_sgd import FlatSGD
from ltnode.accelerate.grid_policy import GridPolicy
from ltnode.accelerate.recorder import CaptureError, Recorder
from ltnode.accelerate.solve_pass import SolvePass, StepInputs
from ltnode.models.averaging import Averages
from ltnode.models.end_time_model import EndTimeModel
from ltnode.models.step import Batch, Optimizers, StepSettings, part_names
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")


@dataclass
class _Captured:
    """One graph with its static inputs and outputs."""

    graph: torch.cuda.CUDAGraph
    inputs: StepInputs
    edges: Tensor
    parts: dict[str, Tensor]
    norms: Tensor
    generation: int


class GraphStep:
    """`TrainingStep` of a model on CUDA with SGD: replays one CUDA graph per (batch size, number of solver steps)."""

    def __init__(
        self,
        model: EndTimeModel,
        optimizers: Optimizers,
        settings: StepSettings,
        fused: bool,
        concurrent_runs: int = 1,
        averages: Averages | None = None,
    ) -> None:
        self.model, self.fused = model, fused
        self.optimizer = optimizers["main"]
        self._average = (averages or {}).get("main")
        self.policy = GridPolicy(model.solving_network, settings.precision)
        self._times = DrawnTimes(model.solving_network, settings.seed)
        self._forward = SolvePass(model, self._times, settings, fused)
        device = next(model.parameters()).device
        self._recorder = Recorder(device, concurrent_runs)
        self._failures = torch.zeros((), dtype=torch.long, device=device)
        self._graphs: dict[tuple[int, int], _Captured] = {}

    @cached_property
    def sgd(self) -> FlatSGD:
        """The masked update; made at the first step, after a resumed run has restored the optimiser's state."""
        return FlatSGD(self.optimizer, self._average)

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Update the model; see `TrainingStep`.

        Raises:
            CaptureError: The step cannot be captured, and nothing has changed.
        """
        indices = batch.indices if self._times.per_input else None
        inputs = StepInputs(batch.x, batch.target, self._times.draw(batch.step), indices)
        self.sgd.refresh_rates()
        # If the step cannot be captured, another one takes this batch and searches a grid for itself.
        with self.policy.grid.restored_on(CaptureError):
            edges = self.policy.edges_for(batch.x)
            key = (len(batch.indices), len(edges) - 1)
            captured = self._graphs.get(key)
            if captured is None:
                captured = self._graphs[key] = self._capture(inputs, edges)
        for static, value in zip(captured.inputs.tensors(), inputs.tensors(), strict=True):
            static.copy_(value, non_blocking=True)
        if captured.generation != self.policy.generation:
            captured.edges.copy_(torch.tensor(edges, dtype=torch.float64))
            captured.generation = self.policy.generation
        captured.graph.replay()
        self.model.solve_stats = self.policy.record(captured.norms)
        return captured.parts

    def counts(self) -> dict[str, int]:
        """Return the numbers of masked updates and of grid searches."""
        return {"masked_updates": int(self._failures), "grid_searches": self.policy.grid.n_searches}

    def release(self) -> None:
        """Free the captured graphs and their memory; the counters stay."""
        self._graphs.clear()
        self.policy.release()

    def _capture(self, inputs: StepInputs, edges: Sequence[float]) -> _Captured:
        device = inputs.x.device
        static = inputs.copy_to(device)
        static_edges = torch.tensor(edges, dtype=torch.float64, device=device)
        # A fused field is known to be capturable, and a rehearsal of its layers would not call the kernels.
        rehearse = None if self.fused else lambda: self._rehearse(static, static_edges)
        graph, (parts, norms) = self._recorder.record(self.model, lambda: self._pass(static, static_edges), rehearse)
        kind = "fused kernels" if self.fused else "captured layers"
        _LOG.info("captured a training step: batch %d, %d solver steps, %s", len(static.y), len(edges) - 1, kind)
        named = dict(zip(part_names(self.model, "main"), parts.unbind(), strict=True))
        return _Captured(graph, static, static_edges, named, norms, self.policy.generation)

    def _pass(self, inputs: StepInputs, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Forward, backward and masked update: the content of the graph. Returns the parts of the loss and the error norms."""
        statistics = self.model.running_statistics()
        before = [buffer.clone() for buffer in statistics]
        parts, norms = self._forward(inputs, edges)
        gradients = torch.autograd.grad(parts.loss, self.sgd.parameters)
        valid = (norms < 1.0).all() & torch.isfinite(parts.loss) & self._recorder.enabled
        self._failures += ~valid & self._recorder.enabled
        self.sgd.update(gradients, valid)
        for buffer, old in zip(statistics, before, strict=True):
            buffer.copy_(torch.where(valid, buffer, old))
        self.model.after_step()
        return torch.stack(list(parts.logged().values())).detach().double(), norms

    def _rehearse(self, inputs: StepInputs, edges: Tensor) -> None:
        """Call every part of the model once, with gradients."""
        torch.autograd.grad(self._forward.rehearse(inputs, edges), self.sgd.parameters)
