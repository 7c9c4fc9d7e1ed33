"""A training step without an adaptive solve as one CUDA graph: loss, gradient and update of every phase.

`ltnode.models.step.EagerStep` is the reference. A captured pass draws from the generator of torch, which advances with every
replay.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property

import torch

from ltnode.accelerate.captured_update import CapturedUpdate, captured_update, has_state
from ltnode.accelerate.execution import FusedLayers
from ltnode.accelerate.recorder import Recorder
from ltnode.accelerate.running_statistics import RunningStatistics
from ltnode.device import autocast
from ltnode.models import Model, execution
from ltnode.models.averaging import Averages
from ltnode.models.step import Batch, Optimizers, StepSettings, clipped, part_names
from ltnode.ode import Stats
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")


@dataclass(frozen=True)
class _Captured:
    """One graph with its static inputs and outputs."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    y: Tensor
    parts: dict[str, Tensor]
    stats: Stats | None


class PhasesGraphStep:
    """`TrainingStep` of a model with ``fixed_operations`` on CUDA: replays one CUDA graph per batch size.

    An update whose loss is not finite is masked and counted.
    """

    def __init__(
        self,
        model: Model,
        optimizers: Optimizers,
        settings: StepSettings,
        fused: bool = False,
        concurrent_runs: int = 1,
        averages: Averages | None = None,
    ) -> None:
        self.model, self.settings, self.fused = model, settings, fused
        self._optimizers, self._averages = optimizers, averages or {}
        self._execution = FusedLayers() if fused else execution.current()
        self._graphs: dict[int, _Captured] = {}
        device = next(model.parameters()).device
        self._recorder = Recorder(device, concurrent_runs)
        self._failures = torch.zeros((), dtype=torch.long, device=device)
        self._statistics = {phase: RunningStatistics(model) for phase in model.phases}

    @property
    def ready(self) -> bool:
        """Whether the optimisers have their state, without which a step cannot be captured."""
        return all(map(has_state, self._optimizers.values()))

    @cached_property
    def _updates(self) -> dict[str, CapturedUpdate]:
        # Made at the first step, after a resumed run has restored the optimisers' state.
        return {phase: captured_update(self._optimizers[phase], self._averages.get(phase)) for phase in self.model.phases}

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Update the model; see `TrainingStep`.

        Raises:
            CaptureError: The step cannot be captured, and nothing has changed.
        """
        for update in self._updates.values():
            update.refresh_rates()
        captured = self._graphs.get(len(batch.y))
        if captured is None:
            captured = self._graphs[len(batch.y)] = self._capture(batch)
        captured.x.copy_(batch.x, non_blocking=True)
        captured.y.copy_(batch.target, non_blocking=True)
        captured.graph.replay()
        self.model.solve_stats = captured.stats
        return captured.parts

    def counts(self) -> dict[str, int]:
        """Return the number of masked updates."""
        return {"masked_updates": int(self._failures)}

    def release(self) -> None:
        """Free the captured graphs and their memory, and leave the optimisers to the eager step; the counter stays."""
        self._graphs.clear()
        if "_updates" in self.__dict__:
            for update in self._updates.values():
                update.release()

    def _capture(self, batch: Batch) -> _Captured:
        x, y = batch.x.clone(), batch.target.clone()
        graph, parts = self._recorder.record(self.model, lambda: self._pass(x, y))
        kind = "fused kernels" if self.fused else "layers"
        _LOG.info("captured a training step: batch %d, %s, %s", len(y), type(self.model).__name__, kind)
        names = [name for phase in self.model.phases for name in part_names(self.model, phase)]
        return _Captured(graph, x, y, dict(zip(names, parts.unbind(), strict=True)), self.model.solve_stats)

    def _pass(self, x: Tensor, y: Tensor) -> Tensor:
        """Run all phases in turn: the content of the graph. Returns the parts of their losses."""
        model, enabled = self.model, self._recorder.enabled
        reported: list[Tensor] = []
        for phase, update in self._updates.items():
            with self._statistics[phase].undone_unless() as flag:
                with autocast(self.settings.precision, x.device), execution.using(self._execution):
                    loss = model.loss(x, y, n_data=self.settings.n_data, phase=phase)
                assert model.loss_parts is not None
                gradients = torch.autograd.grad(loss, update.parameters)
                valid = torch.isfinite(loss) & enabled
                flag.append(valid)
            self._failures += ~valid & enabled
            update.update(clipped(gradients, self.settings.clip_norm), valid)
            model.after_step()
            reported += [part.detach() for part in model.loss_parts.logged().values()]
        return torch.stack([part.double() for part in reported])
