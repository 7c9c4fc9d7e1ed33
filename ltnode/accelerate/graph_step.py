"""A training step as one CUDA graph: forward, backward, error check and update in a single launch.

The grid of the previous steps is replayed and its embedded error comes out of the same pass. Inside a graph nothing can be
decided on the host, so a pass whose error check fails masks its own update on the device; the host sees it a few steps later,
counts it and searches a new grid. The eager step is the reference, and what training falls back to where a model's own parts
cannot be captured.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass

import torch
from torch import nn

from ltnode.accelerate.flat_sgd import FlatSGD
from ltnode.accelerate.fused import fused_outputs, fused_posterior_terms, stage_weights, why_not_fused
from ltnode.accelerate.layers import why_no_fused_layers
from ltnode.accelerate.phases_step import PhasesGraphStep
from ltnode.accelerate.recorder import SHORT_KERNELS, CaptureError, Recorder
from ltnode.counter_rng import CounterGenerator
from ltnode.device import autocast
from ltnode.errors import ConfigError
from ltnode.models import Model
from ltnode.ode import SolverError, Stats, Status
from ltnode.ode.replay import replay
from ltnode.ode.search import Tolerance
from ltnode.ode.step import evaluate
from ltnode.ode.tableau import get_tableau
from ltnode.ode.trace import no_trace
from ltnode.training.batches import Batch
from ltnode.training.config import TrainConfig
from ltnode.training.status import RunStatus, TrainingError
from ltnode.training.step import EagerStep, LossPieces, Optimizers, TrainingStep
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")
_LAG = 3
"""Steps that the host runs ahead of the device before it looks at an error check."""
_PARTS = ("loss", "expected_log_likelihood", "kl")
_DRAWS = 2
"""Most calls of a generator for one step's end-times."""
_AHEAD = 8
"""Steps whose end-times the host draws in one go: so few that the card does not wait for it, several runs side by side either."""


def why_not_captured(model: Model, config: TrainConfig, device: torch.device, world: int) -> str | None:
    """Why a training step of this model cannot be captured; None where it can."""
    if device.type != "cuda":
        return f"the device is {device.type}, and CUDA graphs need CUDA"
    part = model.solving_part()
    if part is None and not model.fixed_operations:
        return f"{type(model).__name__} decides on the host what it computes"
    if part is not None and part.solver.training == "fixed":
        return "fixed steps have no error check"
    if config.optimizer != "sgd":
        return f"the captured update is SGD's, not {config.optimizer}'s"
    if world > 1:
        return "the batch is shared by several processes"
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
            return f"{name} ({type(module).__name__}) changes from pass to pass"
    return None


@dataclass(frozen=True)
class _Inputs:
    """What differs from step to step.

    Attributes:
        x: Inputs.
        y: Targets.
        chance: The end-times that all inputs share, or the keys of the random numbers from which each input's own follow.
        indices: Positions in the training set where each input has its own end-times.
    """

    x: Tensor
    y: Tensor
    chance: Tensor
    indices: Tensor | None

    def tensors(self) -> tuple[Tensor, ...]:
        given = (self.x, self.y, self.chance)
        return given if self.indices is None else (*given, self.indices)


@dataclass
class _Captured:
    """One graph with its static inputs and outputs."""

    graph: torch.cuda.CUDAGraph
    inputs: _Inputs
    edges: Tensor
    parts: Tensor
    norms: Tensor
    generation: int


class GraphStep:
    """`TrainingStep` that replays one CUDA graph per (batch size, number of steps).

    Args:
        model: One with a `Model.solving_part`, in train mode on CUDA.
        optimizers: Those of the eager step; SGD.
        config: Precision, seed and ``accelerate``.
        n_data: Number of training examples.
        fused: Use the fused kernels of `ltnode.kernels`.
        side_by_side: Trainings that share the device at the same time.
    """

    def __init__(
        self, model: Model, optimizers: Optimizers, config: TrainConfig, n_data: int, fused: bool, side_by_side: int = 1
    ) -> None:
        part = model.solving_part()
        assert part is not None
        self.model, self.part, self.config, self.n_data, self.fused = model, part, config, n_data, fused
        self.optimizer = optimizers["main"]
        self._sgd: FlatSGD | None = None
        self.tableau = get_tableau(part.solver.method)
        self.kept = part.training_grid
        device = next(model.parameters()).device
        self._graphs: dict[tuple[int, int], _Captured] = {}
        self._recorder = Recorder(device, side_by_side)
        self._failures = torch.zeros((), dtype=torch.long, device=device)
        self._pending: deque[tuple[torch.cuda.Event, Tensor, int]] = deque()
        self._spare: list[tuple[torch.cuda.Event, Tensor]] = []
        self._drawn: tuple[int, Tensor] | None = None
        self._generation = 0
        self._branch = torch.cuda.Stream(device, priority=SHORT_KERNELS)

    @property
    def sgd(self) -> FlatSGD:
        """The update; made at the first step, when a resumed run has put the optimiser's state back."""
        if self._sgd is None:
            self._sgd = FlatSGD(self.optimizer)
        return self._sgd

    def __call__(self, batch: Batch) -> LossPieces:
        """Update the model; see `TrainingStep`."""
        inputs = _Inputs(batch.x, batch.y, self._chance(batch), batch.indices if self.part.end_time.amortized else None)
        self._look_back(batch)
        if self.kept.edges is None:
            self._refresh(batch)
        assert self.kept.edges is not None
        self.sgd.refresh_rates()
        key = (len(batch.indices), len(self.kept.edges) - 1)
        captured = self._graphs.get(key)
        if captured is None:
            captured = self._graphs[key] = self._capture(inputs)
        for static, given in zip(captured.inputs.tensors(), inputs.tensors(), strict=True):
            static.copy_(given, non_blocking=True)
        if captured.generation != self._generation:
            captured.edges.copy_(torch.tensor(self.kept.edges, dtype=torch.float64))
            captured.generation = self._generation
        captured.graph.replay()
        self._note(captured.norms)
        self.kept.n_solves += 1
        n = len(self.kept.edges) - 1
        self.model.solve_stats = Stats(n, 0, self.tableau.evaluations(n))
        return LossPieces(_PARTS, captured.parts)

    def _chance(self, batch: Batch) -> Tensor:
        """What the host draws for a step: a few numbers in pinned memory, so that no launches and no waiting come with them."""
        block, position = divmod(batch.step, _AHEAD)
        if self._drawn is None or self._drawn[0] != block:
            self._drawn = block, self._draw(range(block * _AHEAD, (block + 1) * _AHEAD)).pin_memory()
        return self._drawn[1][position]

    def _draw(self, steps: range) -> Tensor:
        """Keys (steps, draws, 2) or end-times (steps, S)."""
        seed = self.config.seed
        if self.part.end_time.amortized:
            return torch.stack([CounterGenerator.keys_of(seed, step, _DRAWS) for step in steps])
        times = self.part.training_times(1, seed, steps, device=torch.device("cpu"))
        return times.expand(len(steps), -1).contiguous()  # a fixed end-time is not drawn: one row

    def _times(self, inputs: _Inputs) -> Tensor:
        if inputs.indices is None:
            return inputs.chance
        return self.part.training_times(len(inputs.indices), self.config.seed, 0, inputs.indices, keys=inputs.chance)

    def counts(self) -> dict[str, int]:
        """Masked updates and grid searches so far."""
        return {"masked_updates": int(self._failures), "grid_searches": self.kept.n_searches}

    def _note(self, norms: Tensor) -> None:
        fitting = self._spare and self._spare[-1][1].shape == norms.shape
        event, host = self._spare.pop() if fitting else (torch.cuda.Event(), torch.empty(norms.shape, pin_memory=True))
        host.copy_(norms, non_blocking=True)
        event.record()
        self._pending.append((event, host, self._generation))

    def _look_back(self, batch: Batch) -> None:
        """Read the error check of a few steps ago; search a new grid where it failed or where fewer steps would do."""
        if len(self._pending) < _LAG:
            return
        event, norms, generation = self._pending.popleft()
        event.synchronize()
        self._spare = [(event, norms)]
        if generation != self._generation:
            return
        if not all(norm < 1.0 for norm in norms.tolist()):
            self.kept.n_failed_checks += 1
            self._refresh(batch)
        elif self.kept.wants_fewer(norms, self.tableau.error_order):
            self._refresh(batch, fewer=True)

    def _refresh(self, batch: Batch, fewer: bool = False) -> None:
        model, o = self.part, self.part.solver
        tolerance = Tolerance(o.rtol, o.atol, o.max_steps)
        with torch.no_grad(), no_trace(model.field, batch.x.device), autocast(self.config.precision, batch.x.device):
            h = model.initial_state(batch.x).float()
            search = self.kept.try_fewer if fewer else self.kept.refresh
            found = search(model.field, self.tableau, h, 0.0, model.end_time.window[1], tolerance)
        if found.status is not Status.OK:
            stats = Stats(0, found.n_rejected, found.n_evaluations)
            error = SolverError(found.status, 0.0, model.end_time.window[1], stats)
            raise TrainingError(RunStatus.SOLVER_FAILED, f"step {batch.step}: {error}") from error
        self._generation += 1

    def _pass(self, inputs: _Inputs, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Forward, backward and masked update: what the graph holds; returns `_PARTS` and the error norms."""
        model, o, x = self.part, self.part.solver, inputs.x
        statistics = self.model.running_statistics()
        before = [buffer.clone() for buffer in statistics]
        # The weights of the interpolation and the posterior need hundreds of tiny kernels and nothing of the trajectory: a
        # branch of their own beside it.
        main = torch.cuda.current_stream()
        self._branch.wait_stream(main)
        timed = torch.cuda.Event()
        with torch.cuda.stream(self._branch):
            times = self._times(inputs)
            weights = stage_weights(self.tableau, edges, times) if self.fused else None
            timed.record()
            if self.fused:
                posterior = fused_posterior_terms(model, x, times, self.config.precision)
            else:
                with autocast(self.config.precision, x.device):
                    posterior = model.posterior_terms(x, times)
        if weights is not None:

            def awaited_weights() -> Tensor:
                main.wait_event(timed)
                return weights

            outputs, norms = fused_outputs(model, x, times, edges, self.config.precision, awaited_weights)
        else:
            main.wait_event(timed)
            with autocast(self.config.precision, x.device):
                h = model.initial_state(x).float()
                result = replay(model.field, self.tableau, h, edges, times, o.rtol, o.atol)
                outputs, norms = model.outputs_at(result.states).float(), result.norms
        main.wait_stream(self._branch)
        parts = self.model.objective_parts(x, inputs.y, times, outputs.float(), self.n_data, posterior)
        gradients = torch.autograd.grad(parts.loss, self.sgd.parameters)
        valid = (norms < 1.0).all() & torch.isfinite(parts.loss) & self._recorder.enabled
        self._failures += ~valid & self._recorder.enabled
        self.sgd.update(gradients, valid)
        for buffer, old in zip(statistics, before, strict=True):
            buffer.copy_(torch.where(valid, buffer, old))
        self.model.after_step()
        return torch.stack([parts.loss, parts.expected_log_likelihood, parts.kl]).detach().double(), norms

    def _capture(self, inputs: _Inputs) -> _Captured:
        """Capture the step of this batch size and number of solver steps.

        Raises:
            CaptureError: It cannot be, and nothing has changed.
        """
        device = inputs.x.device
        x, y, chance, *indices = (given.to(device, copy=True) for given in inputs.tensors())
        inputs = _Inputs(x, y, chance, indices[0] if indices else None)
        edges = torch.tensor(self.kept.edges, dtype=torch.float64, device=device)
        # A fused field is the library's own, and a rehearsal of the layers would not call its kernels.
        rehearse = None if self.fused else lambda: self._rehearse(inputs, edges)
        graph, (parts, norms) = self._recorder.record(self.model, lambda: self._pass(inputs, edges), rehearse)
        kind = "fused kernels" if self.fused else "captured layers"
        _LOG.info("captured a training step: batch %d, %d solver steps, %s", len(inputs.y), len(edges) - 1, kind)
        return _Captured(graph, inputs, edges, parts, norms, self._generation)

    def _rehearse(self, inputs: _Inputs, edges: Tensor) -> None:
        """Every part once, with gradients."""
        model, x, times = self.part, inputs.x, self._times(inputs)
        with autocast(self.config.precision, x.device):
            h = model.initial_state(x).float()
            h = h + evaluate(model.field, edges[0], h)
            outputs = model.outputs_at(h.expand(len(times), *h.shape)).float()
            posterior = model.posterior_terms(x, times)
        loss = self.model.objective_parts(x, inputs.y, times, outputs, self.n_data, posterior).loss
        torch.autograd.grad(loss, self.sgd.parameters)

    def release(self) -> None:
        """Let the captured graphs and their memory go; the counters stay."""
        self._graphs.clear()
        self._pending.clear()


class AcceleratedStep:
    """The captured step; the eager one from the first batch whose step cannot be captured.

    A capture that fails leaves no trace, and the eager step takes the same batch: no update is lost or done twice. The momentum
    is the optimiser's own in both.

    Args:
        captured: The step to begin with.
        eager: The reference, of the same model and optimisers.
    """

    def __init__(self, captured: GraphStep | PhasesGraphStep, eager: EagerStep) -> None:
        self._captured, self._eager = captured, eager
        self._capturing = True

    def __call__(self, batch: Batch) -> LossPieces:
        """Update the model; see `TrainingStep`.

        Raises:
            ConfigError: The step cannot be captured, and ``accelerate`` does not allow another one.
        """
        if self._capturing:
            try:
                return self._captured(batch)
            except CaptureError as error:
                wish = self._eager.config.accelerate
                if wish != "auto":
                    raise ConfigError(f"accelerate = {wish!r} is not possible: {error}; use 'auto' or 'off'") from error
                _LOG.warning("training runs eagerly from step %d on: %s", batch.step, error)
                self._capturing = False
                self._captured.release()
        return self._eager(batch)

    def counts(self) -> dict[str, int]:
        """Those of the captured step; see `TrainingStep`."""
        return self._captured.counts()


def accelerated_step(eager: EagerStep, device: torch.device, example: Tensor, side_by_side: int = 1) -> TrainingStep:
    """The fastest step that ``accelerate`` allows and the model permits; ``eager`` itself, with the reason in the log, if none.

    Args:
        eager: The reference, and what a step that turns out not to be capturable is replaced by.
        device: Of the training.
        example: One input or more, on any device.
        side_by_side: Trainings that share the device at the same time.

    Raises:
        ConfigError: ``accelerate`` names a way that this model cannot go.
    """
    model, config = eager.model, eager.config
    wish = config.accelerate
    if wish == "off":
        return eager
    reason = why_not_captured(model, config, device, eager.workers.world)
    if reason is not None:
        if wish in ("graph", "fused"):
            raise ConfigError(f"accelerate = {wish!r} is not possible: {reason}; use 'auto' or 'off'")
        if device.type == "cuda":
            _LOG.info("training runs eagerly: %s", reason)
        return eager
    part = model.solving_part()
    if part is None:
        reason = why_no_fused_layers(device) if example.ndim == 4 else "no kernels for inputs that are not images"
        if wish == "fused" and reason is not None:
            raise ConfigError(f"accelerate = 'fused' is not possible: {reason}; use 'auto', 'graph' or 'off'")
        fused = wish != "graph" and reason is None
        return AcceleratedStep(PhasesGraphStep(model, eager.optimizers, config, eager.n_data, fused, side_by_side), eager)
    fused = False
    if wish in ("auto", "fused"):
        reason = why_not_fused(part, example)
        if reason is not None and wish == "fused":
            raise ConfigError(f"accelerate = 'fused' is not possible: {reason}; use 'auto', 'graph' or 'off'")
        if reason is not None:
            _LOG.info("training is captured without fused kernels: %s", reason)
        fused = reason is None
    return AcceleratedStep(GraphStep(model, eager.optimizers, config, eager.n_data, fused, side_by_side), eager)
