"""Recording a pass as a CUDA graph, and restoring a usable state where recording fails."""

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
"""Stream priority of captured work, which lies above that of long kernels in `nvrtc`."""
Result = TypeVar("Result")


class CaptureError(LTNodeError):
    """A training step cannot be captured; the attempt left no trace."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "the field or another part of the model does something that CUDA graphs cannot record, such as reading a value with "
            f".item() or in an if ({reason})"
        )


def _unsupported_reason(error: Exception) -> str | None:
    """Return one line about why a recording failed; None for lack of memory and wrong inputs, which recording did not cause."""
    # `apply_part` wraps errors of stem and head in an InputError.
    cause = error.__cause__ if isinstance(error, InputError) else error
    if not isinstance(cause, RuntimeError) or isinstance(cause, LTNodeError | torch.OutOfMemoryError):
        return None
    text = str(cause)
    return None if "out of memory" in text else (text.splitlines() or [type(cause).__name__])[0]


class Recorder:
    """Records passes of one training; their graphs share a memory pool, because they never run at the same time."""

    enabled: Bool[Tensor, ""]
    """A flag on the device that is False during trial passes, which must not update anything."""

    def __init__(self, device: torch.device, concurrent_runs: int = 1, capture_mode: str = "global") -> None:
        self._concurrent_runs = concurrent_runs
        # Where other threads use the device meanwhile, as in a server, "thread_local" keeps their calls out of the capture.
        self._capture_mode = capture_mode
        self.enabled = torch.zeros((), dtype=torch.bool, device=device)
        # Libraries keep one workspace per stream, so graphs that run concurrently must be captured on different streams.
        self._stream = torch.cuda.Stream(device, priority=SHORT_KERNELS)
        self._pool: Any = None

    def record(
        self, model: Model, run: Callable[[], Result], rehearse: Callable[[], None] | None = None
    ) -> tuple[torch.cuda.CUDAGraph, Result]:
        """Record ``run``; returns the graph and its static outputs.

        ``run`` reads and writes static tensors only, and updates nothing while ``enabled`` is False, so that trial passes leave
        the model unchanged. ``rehearse`` calls its parts once; waiting for the device is an error during this call.

        Raises:
            CaptureError: Recording failed; weights, momentum, buffers, random numbers and counters are unchanged.
        """
        graph = torch.cuda.CUDAGraph()
        self.enabled.fill_(False)
        with no_trace(model, self.enabled.device), sharing_device(self._concurrent_runs):
            try:
                self._warm_up(run, rehearse)
                return graph, self._capture(graph, run)
            except (RuntimeError, InputError) as error:
                # The passes must have finished writing before the eager step makes its update.
                torch.cuda.synchronize()
                reason = _unsupported_reason(error)
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
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=self._capture_mode):
                try:
                    return run()
                except Exception as error:
                    cause = error
                    raise
        except RuntimeError as error:
            cause = cause or error  # leaving a broken capture raises a second, less specific error
        self._recover(stream)
        try:
            raise cause
        finally:
            del cause  # its traceback holds this frame and thereby the tensors of the pass

    def _recover(self, stream: torch.cuda.Stream) -> None:
        """Restore torch after a broken capture, which leaves stream, memory pool and generator in capture mode."""
        torch.cuda.set_stream(stream)
        with suppress(RuntimeError):  # raised if the capture ended regularly
            torch._C._cuda_endAllocateToPool(self.enabled.device.index, self._pool)
            torch._C._cuda_releasePool(self.enabled.device.index, self._pool)
        # The generator refuses to draw until another capture has ended regularly.
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream):
            self.enabled.clone()


def _without_waiting(call: Callable[[], None]) -> None:
    """Call a function in a mode in which waiting for the device raises an error.

    A capture would raise it as well, but torch needs repair after a broken capture; see `Recorder._recover`.
    """
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that this mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
            call()
    finally:
        torch.cuda.set_sync_debug_mode(before)
