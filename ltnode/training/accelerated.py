"""A training step as one CUDA graph: forward, backward, error check and update in a single launch.

The grid of the previous steps is replayed and its embedded error comes out of the same pass. Inside a graph nothing can be
decided on the host, so a pass whose error check fails masks its own update on the device; the host sees it a few steps later,
counts it and searches a new grid. The eager step is the reference, and what training falls back to where a model's own parts
cannot be captured.
"""

from __future__ import annotations

import logging
import warnings
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ltnode.counter_rng import CounterGenerator
from ltnode.errors import ConfigError, InputError, LTNodeError
from ltnode.kernels.masked_sgd import Rule, masked_sgd
from ltnode.models import LatentTimeODE, Model
from ltnode.models.fused import fused_outputs, fused_posterior_terms, stage_weights, why_not_fused
from ltnode.ode import SolverError, Stats, Status
from ltnode.ode.replay import replay
from ltnode.ode.search import Tolerance
from ltnode.ode.step import evaluate
from ltnode.ode.tableau import get_tableau
from ltnode.ode.trace import no_trace
from ltnode.training.batches import Batch
from ltnode.training.config import TrainConfig
from ltnode.training.status import RunStatus, TrainingError
from ltnode.training.step import EagerStep, Optimizers, TrainingStep, autocast
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")
_LAG = 3
"""Steps that the host runs ahead of the device before it looks at an error check."""
_WARM_UPS = 3
_PARTS = ("loss", "expected_log_likelihood", "kl")
_DRAWS = 2
"""Most calls of a generator for one step's end-times."""


def why_not_captured(model: Model, config: TrainConfig, device: torch.device, world: int) -> str | None:
    """Why a training step of this model cannot be captured; None where it can."""
    if device.type != "cuda":
        return f"the device is {device.type}, and CUDA graphs need CUDA"
    if not isinstance(model, LatentTimeODE):
        return f"{type(model).__name__} has no captured step"
    if model.solver.training == "fixed":
        return "fixed steps have no error check"
    if config.optimizer != "sgd":
        return f"the captured update is SGD's, not {config.optimizer}'s"
    if world > 1:
        return "the batch is shared by several processes"
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
            return f"{name} ({type(module).__name__}) changes from pass to pass"
    return None


class CaptureError(LTNodeError):
    """A training step cannot be captured; the attempt left no trace."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "the field or another part of the model does something that CUDA graphs cannot record, such as reading a value with "
            f".item() or in an if ({reason})"
        )


def _why_not_recorded(error: Exception) -> str | None:
    """What made a recording fail, in one line; None where recording is not to blame: no memory, or a wrong input."""
    # Errors of stem and head come as the cause of an InputError.
    cause = error.__cause__ if isinstance(error, InputError) else error
    if not isinstance(cause, RuntimeError) or isinstance(cause, LTNodeError | torch.OutOfMemoryError):
        return None
    text = str(cause)
    return None if "out of memory" in text else (text.splitlines() or [type(cause).__name__])[0]


@dataclass(frozen=True)
class _Inputs:
    """What differs from step to step.

    Attributes:
        x: Inputs.
        y: Targets.
        indices: Positions in the training set.
        chance: The end-times that all inputs share, or the keys of the random numbers from which each input's own follow.
    """

    x: Tensor
    y: Tensor
    indices: Tensor
    chance: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.x, self.y, self.indices, self.chance)


@dataclass
class _Captured:
    """One graph with its static inputs and outputs."""

    graph: torch.cuda.CUDAGraph
    inputs: _Inputs
    edges: Tensor
    parts: Tensor
    norms: Tensor
    generation: int


@dataclass
class _FlatSGD:
    """SGD on the flattened parameters of one optimiser, with the update masked by a device flag.

    The momentum is the optimiser's own: its state holds views of the flat buffer, so checkpoints are those of the eager step.
    """

    optimizer: torch.optim.Optimizer
    parameters: list[nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        groups = self.optimizer.param_groups
        self.parameters = [p for g in groups for p in g["params"]]
        sizes = [p.numel() for p in self.parameters]
        device = self.parameters[0].device
        self._momentum_factor, self._nesterov = groups[0]["momentum"], groups[0]["nesterov"]
        self._decay = torch.cat([torch.full((p.numel(),), float(g["weight_decay"])) for g in groups for p in g["params"]]).to(
            device
        )
        self._rates = torch.zeros(sum(sizes), device=device)
        self._momentum = torch.zeros(sum(sizes), device=device)
        for p, part in zip(self.parameters, self._momentum.split(sizes), strict=True):
            state = self.optimizer.state[p]
            if state.get("momentum_buffer") is not None:
                part.copy_(state["momentum_buffer"].reshape(-1))
            state["momentum_buffer"] = part.view_as(p)
        self._sizes = sizes
        self._known: tuple[float, ...] = ()
        self.refresh_rates()

    def refresh_rates(self) -> None:
        """Take over the groups' learning rates; does nothing while they stay."""
        rates = tuple(float(g["lr"]) for g in self.optimizer.param_groups)
        if rates != self._known:
            numbers = [torch.full((p.numel(),), float(g["lr"])) for g in self.optimizer.param_groups for p in g["params"]]
            self._rates.copy_(torch.cat(numbers))
            self._known = rates

    @torch.no_grad()
    def update(self, gradients: tuple[Tensor, ...], valid: Tensor) -> None:
        """One step where ``valid`` holds; parameters and momentum stay as they are where it does not."""
        p = torch.cat([q.reshape(-1) for q in self.parameters])
        d = torch.cat([g.reshape(-1) for g in gradients])
        rule = Rule(self._rates, self._decay, self._momentum_factor, self._nesterov)
        new = masked_sgd(p, d, self._momentum, valid, rule)
        parts = [part.view_as(q) for part, q in zip(new.split(self._sizes), self.parameters, strict=True)]
        torch._foreach_copy_(list[Tensor](self.parameters), parts)


class GraphStep:
    """`TrainingStep` that replays one CUDA graph per (batch size, number of steps).

    Args:
        model: A latent-time model in train mode on CUDA.
        optimizers: Those of the eager step; SGD.
        config: Precision, seed and ``accelerate``.
        n_data: Number of training examples.
        fused: Use the fused kernels of `ltnode.kernels`.
    """

    def __init__(self, model: LatentTimeODE, optimizers: Optimizers, config: TrainConfig, n_data: int, fused: bool) -> None:
        self.model, self.config, self.n_data, self.fused = model, config, n_data, fused
        self.optimizer = optimizers["main"]
        self._sgd: _FlatSGD | None = None
        self.tableau = get_tableau(model.solver.method)
        self.kept = model.kept_grid
        device = next(model.parameters()).device
        self._graphs: dict[tuple[int, int], _Captured] = {}
        self._pool: Any = None
        self._enabled = torch.zeros((), dtype=torch.bool, device=device)
        self._failures = torch.zeros((), dtype=torch.long, device=device)
        self._pending: deque[tuple[torch.cuda.Event, Tensor, int]] = deque()
        self._generation = 0
        self._branch = torch.cuda.Stream(device)
        # Libraries keep a workspace per stream: graphs that run side by side must not be captured on the same one.
        self._capturing = torch.cuda.Stream(device)

    @property
    def sgd(self) -> _FlatSGD:
        """The update; made at the first step, when a resumed run has put the optimiser's state back."""
        if self._sgd is None:
            self._sgd = _FlatSGD(self.optimizer)
        return self._sgd

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Update the model; see `TrainingStep`."""
        inputs = _Inputs(batch.x, batch.y, batch.indices, self._chance(batch))
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
        return dict(zip(_PARTS, captured.parts.clone().unbind(), strict=True))

    def _chance(self, batch: Batch) -> Tensor:
        """What the host draws for a step: a few numbers in pinned memory, so that no launches and no waiting come with them."""
        if self.model.end_time.amortized:
            return CounterGenerator.keys_of(self.config.seed, batch.step, _DRAWS).pin_memory()
        host = torch.device("cpu")
        times = self.model.training_times(len(batch.indices), self.config.seed, batch.step, batch.indices, device=host)
        return times.pin_memory()

    def _times(self, inputs: _Inputs) -> Tensor:
        if not self.model.end_time.amortized:
            return inputs.chance
        return self.model.training_times(len(inputs.indices), self.config.seed, 0, inputs.indices, keys=inputs.chance)

    def counts(self) -> dict[str, int]:
        """Masked updates and grid searches so far."""
        return {"masked_updates": int(self._failures), "grid_searches": self.kept.n_searches}

    def _note(self, norms: Tensor) -> None:
        host = torch.empty(norms.shape, pin_memory=True)
        host.copy_(norms, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._pending.append((event, host, self._generation))

    def _look_back(self, batch: Batch) -> None:
        """Read the error check of a few steps ago; search a new grid where it failed or where fewer steps would do."""
        if len(self._pending) < _LAG:
            return
        event, norms, generation = self._pending.popleft()
        event.synchronize()
        if generation != self._generation:
            return
        if not bool((norms < 1.0).all()):
            self.kept.n_failed_checks += 1
            self._refresh(batch)
        elif self.kept.wants_fewer(norms, self.tableau.error_order):
            self._refresh(batch, fewer=True)

    def _refresh(self, batch: Batch, fewer: bool = False) -> None:
        model, o = self.model, self.model.solver
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
        model, o, x = self.model, self.model.solver, inputs.x
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
        parts = model.objective_parts(x, inputs.y, times, outputs.float(), self.n_data, posterior)
        gradients = torch.autograd.grad(parts.loss, self.sgd.parameters)
        valid = (norms < 1.0).all() & torch.isfinite(parts.loss) & self._enabled
        self._failures += ~valid & self._enabled
        self.sgd.update(gradients, valid)
        model.after_step()
        return torch.stack([parts.loss, parts.expected_log_likelihood, parts.kl]).detach().double(), norms

    def _capture(self, inputs: _Inputs) -> _Captured:
        """Capture the step of this batch size and number of solver steps.

        Raises:
            CaptureError: It cannot be; weights, momentum, buffers, random numbers and counters are what they were.
        """
        device = inputs.x.device
        inputs = _Inputs(*(given.to(device, copy=True) for given in inputs.tensors()))
        edges = torch.tensor(self.kept.edges, dtype=torch.float64, device=device)
        graph = torch.cuda.CUDAGraph()
        self._enabled.fill_(False)
        with no_trace(self.model, device):
            try:
                self._warm_up(inputs, edges)
                parts, norms = self._record(graph, inputs, edges)
            except (RuntimeError, InputError) as error:
                # What the passes still write must not come after the eager step's update.
                torch.cuda.synchronize()
                reason = _why_not_recorded(error)
                if reason is None:
                    raise
                raise CaptureError(reason) from error
            finally:
                self._enabled.fill_(True)
        kind = "fused kernels" if self.fused else "captured layers"
        _LOG.info("captured a training step: batch %d, %d solver steps, %s", len(inputs.y), len(edges) - 1, kind)
        return _Captured(graph, inputs, edges, parts, norms, self._generation)

    def _warm_up(self, inputs: _Inputs, edges: Tensor) -> None:
        self._capturing.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._capturing):
            for _ in range(_WARM_UPS):
                self._pass(inputs, edges)
            if not self.fused:  # whose field is the library's own, and whose kernels a rehearsal of the layers would not call
                self._rehearse(inputs, edges)
        torch.cuda.current_stream().wait_stream(self._capturing)

    def _rehearse(self, inputs: _Inputs, edges: Tensor) -> None:
        """Call every part once, with gradients, where waiting for the device is an error.

        A capture would find the same, but torch does not come back from a broken capture unharmed; see `_recover`.
        """
        model, x, times = self.model, inputs.x, self._times(inputs)
        before = torch.cuda.get_sync_debug_mode()
        try:
            with warnings.catch_warnings(), autocast(self.config.precision, x.device):
                warnings.simplefilter("ignore")  # that the mode is a prototype
                torch.cuda.set_sync_debug_mode("error")
                h = model.initial_state(x).float()
                h = h + evaluate(model.field, edges[0], h)
                outputs = model.outputs_at(h.expand(len(times), *h.shape)).float()
                posterior = model.posterior_terms(x, times)
            loss = model.objective_parts(x, inputs.y, times, outputs, self.n_data, posterior).loss
            torch.autograd.grad(loss, self.sgd.parameters)
        finally:
            torch.cuda.set_sync_debug_mode(before)

    def _record(self, graph: torch.cuda.CUDAGraph, inputs: _Inputs, edges: Tensor) -> tuple[Tensor, Tensor]:
        stream = torch.cuda.current_stream()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        cause: Exception | None = None
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._capturing):
                try:
                    return self._pass(inputs, edges)
                except Exception as error:
                    cause = error
                    raise
        except RuntimeError as error:
            cause = cause or error  # leaving a broken capture raises too, and says less
        self._recover(stream)
        try:
            raise cause
        finally:
            del cause  # it holds this frame, and with it the tensors of the pass

    def _recover(self, stream: torch.cuda.Stream) -> None:
        """Bring torch back from a broken capture: it leaves its stream, its memory pool and its generator as while capturing."""
        torch.cuda.set_stream(stream)
        with suppress(RuntimeError):  # not where the capture itself could be ended
            torch._C._cuda_endAllocateToPool(self._enabled.device.index, self._pool)
            torch._C._cuda_releasePool(self._enabled.device.index, self._pool)
        # The generator refuses to draw until some capture has ended well.
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._capturing):
            self._enabled.clone()

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

    def __init__(self, captured: GraphStep, eager: EagerStep) -> None:
        self._captured, self._eager = captured, eager
        self._capturing = True

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
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


def accelerated_step(eager: EagerStep, device: torch.device, example: Tensor) -> TrainingStep:
    """The fastest step that ``accelerate`` allows and the model permits; ``eager`` itself, with the reason in the log, if none.

    Args:
        eager: The reference, and what a step that turns out not to be capturable is replaced by.
        device: Of the training.
        example: One input or more, on any device.

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
    assert isinstance(model, LatentTimeODE)
    fused = False
    if wish in ("auto", "fused"):
        reason = why_not_fused(model, example)
        if reason is not None and wish == "fused":
            raise ConfigError(f"accelerate = 'fused' is not possible: {reason}; use 'auto', 'graph' or 'off'")
        if reason is not None:
            _LOG.info("training is captured without fused kernels: %s", reason)
        fused = reason is None
    return AcceleratedStep(GraphStep(model, eager.optimizers, config, eager.n_data, fused), eager)
