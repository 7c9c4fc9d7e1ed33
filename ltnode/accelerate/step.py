"""The fastest training step that a model supports, with the eager step as its fallback."""

from __future__ import annotations

import logging

from ltnode.accelerate.graph_step import GraphStep
from ltnode.accelerate.phases_step import PhasesGraphStep
from ltnode.accelerate.plan import Accelerate, plan_step, unsupported_request
from ltnode.accelerate.recorder import CaptureError
from ltnode.models.end_time_model import EndTimeModel
from ltnode.models.step import Batch, EagerStep, TrainingStep
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")


class AcceleratedStep:
    """A captured step that is replaced by the eager one from the first batch whose step cannot be captured.

    A failed capture leaves no trace, and the eager step takes the same batch, so that no update is lost or made twice. Both
    steps use the state of the optimiser, which most optimisers make in their first step; that one is always eager.
    """

    def __init__(self, captured: GraphStep | PhasesGraphStep, eager: EagerStep, requested: Accelerate = "auto") -> None:
        self._captured, self._eager, self._requested = captured, eager, requested
        self.capturing = True
        """False once the eager step has taken over."""
        self._began = False

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Update the model; see `TrainingStep`.

        Raises:
            ConfigError: The step cannot be captured, and the user asked for a captured step.
        """
        began, self._began = self._began, True
        if self.capturing and (began or self._captured.ready):
            try:
                return self._captured(batch)
            except CaptureError as error:
                if self._requested != "auto":
                    raise unsupported_request(self._requested, str(error)) from error
                _LOG.warning("training runs eagerly from step %d on: %s", batch.step, error)
                self.capturing = False
                self._captured.release()
        return self._eager(batch)

    def counts(self) -> dict[str, int]:
        """Return the counters of the captured step."""
        return self._captured.counts()


def accelerated_step(eager: EagerStep, example: Tensor, requested: Accelerate = "auto", concurrent_runs: int = 1) -> TrainingStep:
    """Return the fastest step that is requested and supported; ``eager`` itself, with the reason in the log, if there is none.

    ``example`` holds one input or more, from which the step is planned; ``concurrent_runs`` trainings share the device.

    Raises:
        ConfigError: The requested acceleration is not supported; the message says why.
    """
    model, optimizers = eager.model, eager.optimizers
    device = next(model.parameters()).device
    plan = plan_step(model, optimizers, device, example, requested, shared_batch=eager.combine is not None)
    if device.type == "cuda" and requested == "auto":
        _LOG.info("%s", plan)
    if plan.mode == "eager":
        return eager
    shared = (optimizers, eager.settings, plan.mode == "fused", concurrent_runs, eager.averages)
    if isinstance(model, EndTimeModel):
        return AcceleratedStep(GraphStep(model, *shared, compile=plan.compile), eager, requested)
    captured = PhasesGraphStep(model, *shared)
    return AcceleratedStep(captured, eager, requested)
