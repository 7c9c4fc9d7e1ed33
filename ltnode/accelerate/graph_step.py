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
from typing import Literal

import torch

from ltnode.accelerate.captured_update import CapturedUpdate, captured_update, has_state
from ltnode.accelerate.compile_policy import CompilePolicy, agreement_problem, milliseconds
from ltnode.accelerate.compiled import CompiledSolvePass
from ltnode.accelerate.drawn_times import DrawnTimes
from ltnode.accelerate.grid_policy import GridPolicy
from ltnode.accelerate.recorder import CaptureError, Recorder
from ltnode.accelerate.running_statistics import RunningStatistics
from ltnode.accelerate.solve_pass import FusedSolvePass, SolvePass, StepInputs
from ltnode.errors import ConfigError
from ltnode.models.averaging import Averages
from ltnode.models.end_time_model import EndTimeModel
from ltnode.models.step import Batch, Optimizers, StepSettings, clipped, part_names
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")
Compile = Literal["never", "later", "now"]
"""When layers are compiled: not at all, once a training has lasted long enough to gain from it, or at once."""


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
    """`TrainingStep` of a model on CUDA: replays one CUDA graph per (batch size, number of solver steps)."""

    def __init__(
        self,
        model: EndTimeModel,
        optimizers: Optimizers,
        settings: StepSettings,
        fused: bool,
        concurrent_runs: int = 1,
        averages: Averages | None = None,
        compile: Compile = "never",
    ) -> None:
        self.model, self.settings = model, settings
        self.optimizer = optimizers["main"]
        self._average = (averages or {}).get("main")
        self.policy = GridPolicy(model.solving_network, settings.precision)
        self._times = DrawnTimes(model.solving_network, settings.seed)
        self._layers: SolvePass = (FusedSolvePass if fused else SolvePass)(model, self._times, settings)
        self._compiled: CompiledSolvePass | None = None
        self._compile, self._wanted = CompilePolicy(compile), compile == "now"
        device = next(model.parameters()).device
        self._recorder = Recorder(device, concurrent_runs)
        self._failures = torch.zeros((), dtype=torch.long, device=device)
        self._statistics = RunningStatistics(model)
        self._graphs: dict[tuple[int, int], _Captured] = {}

    @property
    def ready(self) -> bool:
        """Whether the optimiser has its state, without which a step cannot be captured."""
        return has_state(self.optimizer)

    @cached_property
    def optimizer_step(self) -> CapturedUpdate:
        """The masked update; made at the first step, after a resumed run has restored the optimiser's state."""
        return captured_update(self.optimizer, self._average)

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Update the model; see `TrainingStep`.

        Raises:
            CaptureError: The step cannot be captured, and nothing has changed.
        """
        indices = batch.indices if self._times.per_input else None
        inputs = StepInputs(batch.x, batch.target, self._times.draw(batch.step), indices)
        self.optimizer_step.refresh_rates()
        # If the step cannot be captured, another one takes this batch and searches a grid for itself.
        with self.policy.grid.restored_on(CaptureError):
            edges = self.policy.edges_for(batch.x)
            key = (len(batch.indices), len(edges) - 1)
            captured = self._graphs.get(key)
            if captured is None:
                chosen = self._compiled if self._compile.chosen_for(len(batch.indices)) else None
                captured = self._graphs[key] = self._capture(chosen or self._layers, inputs, edges)
        if self._compile.due(len(batch.indices)):
            captured = self._graphs[key] = self._with_compiled_layers(captured, inputs, edges)
        self._set(captured, inputs, edges)
        captured.graph.replay()
        self.model.solve_stats = self.policy.record(captured.norms)
        return captured.parts

    def counts(self) -> dict[str, int]:
        """Return the numbers of masked updates and of grid searches."""
        return {"masked_updates": int(self._failures), "grid_searches": self.policy.grid.n_searches}

    def release(self) -> None:
        """Free the captured graphs and their memory, and leave the optimiser to the eager step; the counters stay."""
        self._graphs.clear()
        self.policy.release()
        if "optimizer_step" in self.__dict__:
            self.optimizer_step.release()

    def _set(self, captured: _Captured, inputs: StepInputs, edges: Sequence[float]) -> None:
        """Copy the inputs of a step, and edges that have changed, to where the graph reads them."""
        for static, value in zip(captured.inputs.tensors(), inputs.tensors(), strict=True):
            static.copy_(value, non_blocking=True)
        if captured.generation != self.policy.generation:
            captured.edges.copy_(torch.tensor(edges, dtype=torch.float64))
            captured.generation = self.policy.generation

    def _capture(self, forward: SolvePass, inputs: StepInputs, edges: Sequence[float]) -> _Captured:
        device = inputs.x.device
        static = inputs.copy_to(device)
        static_edges = torch.tensor(edges, dtype=torch.float64, device=device)

        def rehearse() -> None:
            """Call every part of the model once, with gradients."""
            if (loss := forward.rehearse(static, static_edges)) is not None:
                torch.autograd.grad(loss, self.optimizer_step.parameters)

        graph, (parts, norms) = self._recorder.record(self.model, lambda: self._pass(forward, static, static_edges), rehearse)
        _LOG.info("captured a training step: batch %d, %d solver steps, %s", len(static.y), len(edges) - 1, forward.kind)
        named = dict(zip(part_names(self.model, "main"), parts.unbind(), strict=True))
        return _Captured(graph, static, static_edges, named, norms, self.policy.generation)

    def _pass(self, forward: SolvePass, inputs: StepInputs, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Forward, backward and masked update: the content of the graph. Returns the parts of the loss and the error norms."""
        with self._statistics.undone_unless() as flag:
            parts, norms = forward(inputs, edges)
            gradients = torch.autograd.grad(parts.loss, self.optimizer_step.parameters)
            valid = (norms < 1.0).all() & torch.isfinite(parts.loss) & self._recorder.enabled
            flag.append(valid)
        self._failures += ~valid & self._recorder.enabled
        self.optimizer_step.update(clipped(gradients, self.settings.clip_norm), valid)
        self.model.after_step()
        return torch.stack(list(parts.logged().values())).detach().double(), norms

    def _with_compiled_layers(self, plain: _Captured, inputs: StepInputs, edges: Sequence[float]) -> _Captured:
        """Return the same step with compiled layers if it is faster and computes the same loss, else the one that is given.

        Raises:
            ConfigError: The layers cannot be compiled, and the user asked for it.
        """
        size = len(inputs.y)
        self._compile.tried(size)
        try:
            compiled = self._compiled or CompiledSolvePass(self.model, self._times, self.settings)
            faster = self._capture(compiled, inputs, edges)
        except Exception as error:  # compilers may raise anything; the captured layers go on
            reason = (str(error).splitlines() or [""])[0]
            if self._wanted:
                raise ConfigError(f"accelerate = 'compiled' is not possible: {type(error).__name__}: {reason}") from error
            _LOG.info("the layers could not be compiled (%s: %s)", type(error).__name__, reason)
            return plain
        for step in (plain, faster):
            self._set(step, inputs, edges)
        before, after = (milliseconds(step.graph, self.model, self._recorder) for step in (plain, faster))
        problem = agreement_problem(plain.parts, faster.parts, self.model, self.settings.precision)
        if problem is not None or (after > before and not self._wanted):
            _LOG.info("the layers are not compiled: %s", problem or f"{after:.3g} ms a step instead of {before:.3g} ms")
            return plain
        _LOG.info("compiled layers take %.3g ms a step instead of %.3g ms", after, before)
        self._compiled = compiled
        self._compile.choose(size)
        return faster
