"""One pass over the prediction grid as a CUDA graph: from the input to everything that a prediction consists of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from ltnode.accelerate.fused import field_tensors, stage_weights, states_at
from ltnode.accelerate.kernels.conv_trajectory import conv_trajectory
from ltnode.accelerate.kernels.fused_sequential import run_fused
from ltnode.accelerate.plan import unsupported_reason_device, unsupported_reason_field, unsupported_reason_state
from ltnode.accelerate.recorder import Recorder
from ltnode.accelerate.solve import conv_precision
from ltnode.device import Precision
from ltnode.models import execution
from ltnode.models.execution import Execution
from ltnode.models.images import ConvField
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.prediction import Prediction
from ltnode.ode.replay import Replay, replay
from ltnode.ode.tableau import get_tableau
from ltnode.typing import Bool, Float, Tensor

_PER_INPUT = ("distance", "familiarity", "widened_std")


@dataclass(frozen=True)
class PassKey:
    """What distinguishes the passes of one model.

    Attributes:
        rows: Number of rows of the input, padding included.
        shape: Shape of one input.
        dtype: Dtype of the inputs.
        samples: Number of end-times.
        edges: Edges of the grid.
        settings: Precision of products and autocast; see `precision_settings`.
    """

    rows: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    samples: int
    edges: tuple[float, ...]
    settings: tuple[object, ...]


class _Packed(NamedTuple):
    """A tensor of a prediction among the bytes that a graph returns."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    numel: int


class _FusedLayers(Execution):
    """Stems and heads of images in fused kernels."""

    def run_layers(self, layers: nn.Module, x: Tensor) -> Tensor:
        """See `Execution.run_layers`."""
        return run_fused(layers, x) if isinstance(layers, nn.Sequential) and x.is_cuda and x.ndim == 4 else layers(x)


_FUSED_LAYERS = _FusedLayers()


class PassResult(NamedTuple):
    """What a pass computes.

    Attributes:
        prediction: The prediction of the rows that were asked for, without the work of the solve.
        passed: Whether each of them meets the tolerance and is finite.
        latest: The latest end-time of any row.
        values: Values of the end-time and the prediction grid when the graph ran; see `host_values`.
    """

    prediction: Prediction
    passed: Bool[Tensor, " B"]
    latest: float
    values: tuple[float, ...]


def precision_settings() -> tuple[object, ...]:
    """Return all settings of torch that choose how layers compute."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    autocast = torch.is_autocast_enabled("cuda")
    return (
        torch.get_autocast_dtype("cuda") if autocast else None,
        cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        cuda.matmul.fp32_precision,
        cudnn.enabled,
        cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(),
    )


def host_values(model: LatentTimeODE) -> Float[Tensor, " n"]:
    """Values on which the host relies when it chooses end-times and edges: those of a shared end-time, and the grid."""
    end_time = model.end_time
    own = [] if end_time.amortized else [*end_time.parameters(), *end_time.buffers()]
    return torch.cat([value.detach().reshape(-1).double() for value in (*own, model.grid)])


@contextmanager
def _without_weight_cache() -> Iterator[None]:
    """Autocast as it is, but without its cache of cast weights, which a graph would read instead of the weights."""
    dtype, enabled = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
    with torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=False):
        yield


class SinglePass:
    """A captured pass; ``times`` are end-times (S,), or for amortised end-times the levels (S, B) of their quantiles."""

    def __init__(self, model: LatentTimeODE, recorder: Recorder, key: PassKey, x: Tensor, times: Tensor, kernels: bool) -> None:
        self.key = key
        # In inference mode, the buffers could not be written to outside of it.
        with torch.inference_mode(False), torch.no_grad():
            self._x = x.new_empty((key.rows, *key.shape)).copy_(x[:1].expand(key.rows, *key.shape))
            self._times = times.new_empty((*times.shape[:1], *[key.rows] * (times.ndim - 1)))
            self._fill(x, times)
            self._edges = torch.tensor(key.edges, dtype=torch.float64, device=x.device)
            self._kernels = kernels
            self._packed: tuple[_Packed, ...] = ()
            self._task = model.task
            self._graph, self._outputs = recorder.record(model, lambda: self._run(model))

    def _fill(self, x: Tensor, times: Tensor) -> None:
        # Rows beyond those that are asked for keep earlier inputs: no row depends on another.
        self._x[: len(x)].copy_(x)
        if times.ndim == 2:
            self._times[:, : len(x)].copy_(times)
        else:
            self._times.copy_(times)

    def _run(self, model: LatentTimeODE) -> tuple[Tensor, Tensor]:
        """The content of the graph: what the host reads at once, and the tensors of the prediction in one piece."""
        with _without_weight_cache(), execution.using(_FUSED_LAYERS if self._kernels else execution.current()):
            h = model.initial_state(self._x)
            times = self._times
            if model.end_time.amortized:
                times = model.end_time(self._x).quantile(times).detach()
            solved = model.solved_times(times)
            states, norms = self._trajectory(model, h, solved)
            prediction = model.answer(model.members_at(states, times, None))
        own_end = solved.double().amax(dim=0)
        needed = self._edges[:-1, None] < own_end
        finite = states.flatten(2).sum(dim=(0, 2)).isfinite()
        passed = finite & ~(needed & ~(norms < 1.0)).any(dim=0)
        status = torch.cat([passed.double(), own_end.max().reshape(1), host_values(model)])
        candidates = {"outputs": prediction.outputs, "times": prediction.times, "noise": prediction.noise}
        candidates |= {name: getattr(prediction, name) for name in _PER_INPUT}
        known = {name: value for name, value in candidates.items() if value is not None}
        self._packed = tuple(_Packed(name, value.dtype, value.shape, value.numel()) for name, value in known.items())
        # As bytes, because the tensors differ in their dtypes; those of eight bytes come first, so that each is aligned.
        order = sorted(range(len(self._packed)), key=lambda i: -self._packed[i].dtype.itemsize)
        self._packed = tuple(self._packed[i] for i in order)
        pieces = [known[entry.name].contiguous().reshape(-1).view(torch.uint8) for entry in self._packed]
        return status, torch.cat(pieces)

    def _trajectory(self, model: LatentTimeODE, h: Tensor, times: Tensor) -> Replay:
        """States at the times, and the error norm of every step and row (n, B)."""
        o = model.solver
        tableau = get_tableau(o.method)
        precision = self._kernel_precision(model, h)
        if precision is None:
            return replay(model.field, tableau, h, self._edges, times, o.rtol, o.atol, per_sample=True)
        assert isinstance(model.field, ConvField)
        with torch.autocast("cuda", enabled=False):  # autocast would round the matrix products below
            base, starts, lengths = h.float(), self._edges[:-1].float(), self._edges.diff().float()
            tensors = field_tensors(model.field, h.shape[-1])
            stages, squares = conv_trajectory(base, tensors, starts, lengths, tableau, o.rtol, o.atol, precision)
            states = states_at(stages, base, stage_weights(tableau, self._edges, times))
            return Replay(states.to(h.dtype), squares.sqrt())

    def _kernel_precision(self, model: LatentTimeODE, h: Tensor) -> Precision | None:
        """Precision of the fused trajectory; None where the layers of the field run."""
        if not self._kernels or unsupported_reason_device(h.device) is not None:
            return None
        if unsupported_reason_field(model.field, get_tableau(model.solver.method)) is not None:
            return None
        if any(p.dtype != torch.float32 for p in model.field.parameters()):
            return None
        return conv_precision() if unsupported_reason_state(h, model.field) is None else None

    def __call__(self, x: Tensor, times: Tensor) -> PassResult:
        """Predict inputs (B, ...), at most as many as the pass has rows."""
        count, rows = len(x), self.key.rows
        self._fill(x, times)
        self._graph.replay()
        status, packed = self._outputs
        own = packed.clone()  # one copy for all tensors: the next replay overwrites what the graph returns
        copies: dict[str, Any] = {}
        start = 0
        for entry in self._packed:
            end = start + entry.numel * entry.dtype.itemsize
            copies[entry.name] = self._own(entry.name, own[start:end].view(entry.dtype).view(entry.shape), count)
            start = end
        values = status.cpu()
        prediction = Prediction(self._task, **copies)
        return PassResult(prediction, values[:count] > 0, float(values[rows]), tuple(values[rows + 1 :].tolist()))

    def _own(self, name: str, value: Tensor, count: int) -> Tensor:
        """The rows that were asked for."""
        if name in _PER_INPUT or (name == "noise" and value.ndim == 2):
            return value[:count]
        return value[:, :count] if value.ndim > 1 else value


def merge(whole: Prediction, rows: Sequence[int], part: Prediction) -> None:
    """Write the prediction of some rows into that of all, whose tensors nobody else has."""
    index = torch.tensor(rows, device=whole.outputs.device)
    whole.outputs.index_copy_(1, index, part.outputs.to(whole.outputs.dtype))
    if whole.times.ndim == 2:
        whole.times.index_copy_(1, index, part.times)
    names = [*_PER_INPUT, *(["noise"] if whole.noise is not None and whole.noise.ndim == 2 else [])]
    for name in names:
        own, other = getattr(whole, name), getattr(part, name)
        if own is not None:
            own.index_copy_(0, index, other.to(own.dtype))
