"""Trial steps of an adaptive prediction as one CUDA graph: a launch instead of more than a hundred.

Small batches leave a GPU waiting for launches, and predictions with the paper's steps are made in small batches, since the steps
depend on them. `ltnode.ode.take_step` with its error norm is the reference; the graph holds the same operations, with the step
size as a number on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from ltnode.models.images import ConvField
from ltnode.models.options import SolverOptions
from ltnode.ode.search import TrialStep
from ltnode.ode.step import Step, error_norm, take_step
from ltnode.ode.tableau import ButcherTableau, get_tableau
from ltnode.typing import Tensor

Record = Callable[[Callable[[], tuple[Tensor, Tensor]]], tuple[Any, tuple[Tensor, Tensor]]]
"""A pass on static tensors to its graph and its static results."""

_FIRST_SOLVES = 2
"""Solves of one kind before their step is recorded: fewer would not earn what a recording costs."""
_MOST_KINDS = 4
"""Recorded steps that a field keeps."""
_seen: WeakKeyDictionary[nn.Module, dict[Hashable, int | CapturedTrial]] = WeakKeyDictionary()


class CapturedTrial:
    """A recorded trial step of one field for states of one shape; see `ltnode.ode.search.TrialStep`.

    Args:
        field: Does the same operations in every call, whatever the values.
        tableau: A method that ends its steps with the field at the new state.
        like: A state.
        rtol: Relative tolerance of the error norm.
        atol: Absolute tolerance of the error norm.
        record: Makes the graph; the tests put an emulation in its place.
    """

    def __init__(self, field: nn.Module, tableau: ButcherTableau, like: Tensor, rtol: float, atol: float, record: Record) -> None:
        start, length = torch.zeros(2, dtype=torch.float64, device=like.device).unbind()
        state, first = torch.empty_like(like), torch.empty_like(like)
        state.copy_(like)
        first.copy_(like)

        def run() -> tuple[Tensor, Tensor]:
            step = take_step(field, tableau, start, length, state, first)
            norm = error_norm(tableau, length, state, step, rtol, atol, per_sample=False)
            return torch.stack([step.y, *step.stages[1:]]), norm

        self._inputs = (start, length, state, first)
        self._graph, (self._results, self._norm) = record(run)
        self._lock = Lock()

    def __call__(self, t: float, t_new: float, y: Tensor, k: Tensor) -> tuple[Step, float]:
        """The step from (t, y) to t_new, and its error norm."""
        start, length, state, first = self._inputs
        with self._lock:
            start.fill_(t)
            length.fill_(t_new - t)
            state.copy_(y)
            first.copy_(k)
            self._graph.replay()
            new, *stages = self._results.clone().unbind()
            return Step(new, (k, *stages)), float(self._norm)


def captured_trial(field: nn.Module, h: Tensor, options: SolverOptions) -> TrialStep | None:
    """The recorded trial step for states like h; None where there is none, and `take_step` serves.

    Args:
        field: The model's field; only the library's own is known to do the same operations in every call.
        h: Initial state of a prediction.
        options: Method and tolerances.
    """
    if not h.is_cuda or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda") or type(field) is not ConvField:
        return None
    tableau = get_tableau(options.method)
    if not tableau.fsal or any(m._forward_hooks or m._forward_pre_hooks for m in field.modules()):
        return None
    # Tensors made in inference mode could not be written to outside of it.
    if torch.compiler.is_compiling() or torch.cuda.is_current_stream_capturing() or torch.is_inference_mode_enabled():
        return None
    # A graph reads the parameters where they were when it was made, and computes as the settings then said.
    places = tuple(p.data_ptr() for p in field.parameters())
    settings = (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic)
    kind = (h.shape, h.stride(), h.dtype, h.device, options.method, options.rtol, options.atol, places, settings)
    kinds = _seen.setdefault(field, {})
    found = kinds.get(kind, 0)
    if isinstance(found, CapturedTrial):
        return found
    if len(kinds) > _MOST_KINDS:
        kinds.clear()
    if found < _FIRST_SOLVES:
        kinds[kind] = found + 1
        return None
    made = CapturedTrial(field, tableau, h, options.rtol, options.atol, _recorded)
    kinds[kind] = made
    return made


def _recorded(run: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Any, tuple[Tensor, Tensor]]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()  # libraries set themselves up in a first call
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may go on computing
        results = run()
    return graph, results
