"""Recording a pass as a CUDA graph, and coming back unharmed where that is not possible."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch

from ltnode.accelerate.kernels.devices import sharing_device
from ltnode.errors import InputError, LTNodeError
from ltnode.models import Model
from ltnode.ode.trace import no_trace
from ltnode.typing import Bool, Tensor

_WARM_UPS = 3
SHORT_KERNELS = -1
"""Stream priority of captured work: above that of the kernels that `nvrtc` launches as long ones."""
Result = TypeVar("Result")


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


class Recorder:
    """Records passes of one training; they share a memory pool, since they never run at the same time.

    Args:
        device: Of the training.
        side_by_side: Trainings that share it at the same time.

    Attributes:
        enabled: False on the device while a pass is only tried: what it updates must stay as it is.
    """

    enabled: Bool[Tensor, ""]

    def __init__(self, device: torch.device, side_by_side: int = 1) -> None:
        self._side_by_side = side_by_side
        self.enabled = torch.zeros((), dtype=torch.bool, device=device)
        # Libraries keep a workspace per stream: graphs that run side by side must not be captured on the same one.
        self._stream = torch.cuda.Stream(device, priority=SHORT_KERNELS)
        self._pool: Any = None

    def record(
        self, model: Model, run: Callable[[], Result], rehearse: Callable[[], None] | None = None
    ) -> tuple[torch.cuda.CUDAGraph, Result]:
        """A graph of ``run`` and its static outputs.

        Args:
            model: Whose buffers and random numbers the trial passes must not move.
            run: Reads and writes static tensors only, and updates nothing where ``enabled`` does not hold.
            rehearse: Calls the model's own parts; waiting for the device is an error meanwhile.

        Raises:
            CaptureError: It cannot be recorded; weights, momentum, buffers, random numbers and counters are what they were.
        """
        graph = torch.cuda.CUDAGraph()
        self.enabled.fill_(False)
        with no_trace(model, self.enabled.device), sharing_device(self._side_by_side):
            try:
                self._warm_up(run, rehearse)
                return graph, self._capture(graph, run)
            except (RuntimeError, InputError) as error:
                # What the passes still write must not come after the eager step's update.
                torch.cuda.synchronize()
                reason = _why_not_recorded(error)
                if reason is None:
                    raise
                raise CaptureError(reason) from error
            finally:
                self.enabled.fill_(True)

    def _warm_up(self, run: Callable[[], Any], rehearse: Callable[[], None] | None) -> None:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                run()
            if rehearse is not None:
                _without_waiting(rehearse)
        torch.cuda.current_stream().wait_stream(self._stream)

    def _capture(self, graph: torch.cuda.CUDAGraph, run: Callable[[], Result]) -> Result:
        stream = torch.cuda.current_stream()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        cause: Exception | None = None
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                try:
                    return run()
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
            torch._C._cuda_endAllocateToPool(self.enabled.device.index, self._pool)
            torch._C._cuda_releasePool(self.enabled.device.index, self._pool)
        # The generator refuses to draw until some capture has ended well.
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream):
            self.enabled.clone()


def _without_waiting(call: Callable[[], None]) -> None:
    """Call it where waiting for the device is an error.

    A capture would find the same, but torch does not come back from a broken capture unharmed; see `Recorder._recover`.
    """
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
            call()
    finally:
        torch.cuda.set_sync_debug_mode(before)
