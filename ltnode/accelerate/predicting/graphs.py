"""The graphs of one model: which exist, with which end-times and edges they run, and what happens to rows that fail.

Rows whose error is too large are solved again in a graph on a grid with halved steps, and those that still fail, or for which no
graph exists yet, by the reference. A graph is captured when its size of batch is predicted for the second time, because capturing
takes as long as many predictions. Batches are padded to a power of two, so that a server needs few graphs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from threading import RLock
from typing import NamedTuple

import torch

from ltnode.accelerate.predicting.read_parts import ReadParts, unsupported_reason_model
from ltnode.accelerate.predicting.single_pass import PassKey, SinglePass, host_values, merge, precision_settings
from ltnode.accelerate.recorder import CaptureError, Recorder
from ltnode.endtime.distributions import uniform_draws
from ltnode.models.contract import Draw
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.prediction import Prediction
from ltnode.ode import Stats
from ltnode.ode.prediction_grid import extend_edges, halve_edges
from ltnode.ode.tableau import get_tableau
from ltnode.typing import Tensor

MOST_ROWS = 1024
"""Largest batch of a graph; larger ones are predicted in parts."""
_FEWEST_FAILED = 16
_CAPTURED_HALVINGS = 2
_MOST_GRAPHS = 16
_MOST_KEPT = 64
"""Number of shapes that are remembered as predicted once, and of sets of end-times that are kept."""


class _Chosen(NamedTuple):
    """End-times (S,), or levels (S, B) of amortised ones, and the latest time at which a state is needed."""

    times: Tensor
    latest: float


class _Solved(NamedTuple):
    """A prediction whose tensors nobody else has, with the evaluations of all passes."""

    prediction: Prediction
    evaluations: int
    halvings: int


class ChangedError(Exception):
    """The values of the end-time or of the grid are not those for which end-times and edges were chosen."""


class ModelGraphs:
    """Captured predictions of a model in its present state; the caller holds the lock."""

    def __init__(self, model: LatentTimeODE, kernels: bool) -> None:
        self.lock = RLock()
        self._kernels = kernels
        self._recorder = Recorder(model.grid.device, capture_mode="thread_local")
        self.forget(model)

    def forget(self, model: LatentTimeODE) -> None:
        """Start again with the present parts of the model."""
        self.parts = ReadParts(model)
        self._passes: OrderedDict[PassKey, SinglePass] = OrderedDict()
        self._predicted: OrderedDict[PassKey, None] = OrderedDict()
        self.refused = unsupported_reason_model(model)
        self.look_at_values(model)

    def look_at_values(self, model: LatentTimeODE) -> None:
        """Read the values on which end-times and edges depend, which may be changed in place."""
        self._values = tuple(host_values(model).tolist())
        self._grid = list(self._values[len(self._values) - len(model.grid) :])
        self._chosen: OrderedDict[tuple[int, str, int], _Chosen] = OrderedDict()

    def predict(self, model: LatentTimeODE, x: Tensor, samples: int, draw: Draw, seed: int) -> Prediction | None:
        """Return what the reference returns; None if it is not captured yet, or cannot be."""
        times, latest = self._chosen_times(model, x, samples, draw, seed)
        edges = extend_edges(self._grid, latest)
        parts = []
        for start in range(0, len(x), MOST_ROWS):
            rows = slice(start, start + MOST_ROWS)
            solved = self._solve(model, x[rows], times if times.ndim == 1 else times[:, rows], edges)
            if solved is None:
                return None
            parts.append(solved)
        stats = Stats(len(edges) - 1, 0, max(part.evaluations for part in parts), max(part.halvings for part in parts))
        predictions = [part.prediction for part in parts]
        return replace(predictions[0] if len(parts) == 1 else Prediction.cat(predictions), stats=stats)

    def _chosen_times(self, model: LatentTimeODE, x: Tensor, samples: int, draw: Draw, seed: int) -> _Chosen:
        if model.end_time.amortized:
            latest = float(torch.tensor(model.end_time.window[1], dtype=torch.promote_types(x.dtype, torch.float32)))
            return _Chosen(_levels(x, samples, draw, seed), latest)
        key = (samples, draw, seed if draw == "random" else 0)
        if (kept := self._chosen.get(key)) is not None:
            return kept
        with torch.inference_mode(False):
            times = model.prediction_times(x, samples, draw, seed)
            chosen = _Chosen(times, float(model.solved_times(times).max()))
        self._chosen[key] = chosen
        _limit(self._chosen, _MOST_KEPT)
        return chosen

    def _solve(self, model: LatentTimeODE, x: Tensor, times: Tensor, edges: list[float], halvings: int = 0) -> _Solved | None:
        """Solve on these edges and, for rows that fail, on finer ones; ``halvings`` is how often the edges were halved."""
        single = self._pass_for(model, x, times, edges, _FEWEST_FAILED if halvings else 1)
        if single is None:
            return None
        prediction, passed, latest, values = single(x, times)
        if values != self._values:
            raise ChangedError
        if latest > edges[-1]:
            return None
        evaluations = get_tableau(model.solver.method).evaluations(len(edges) - 1)
        if bool(passed.all()):
            return _Solved(prediction, evaluations, halvings)
        failed: list[int] = (~passed).nonzero().flatten().tolist()
        index = torch.tensor(failed, device=x.device)
        their_x, their_times = x[index], times if times.ndim == 1 else times[:, index]
        finer = None
        if halvings < _CAPTURED_HALVINGS:
            finer = self._solve(model, their_x, their_times, halve_edges(edges), halvings + 1)
        if finer is None:
            finer = _by_reference(model, their_x, their_times)
            # The reference has started again from the coarsest grid.
            evaluations = finer.evaluations - _evaluations_before(model, edges, halvings)
            finer = finer._replace(evaluations=0)
        merge(prediction, failed, finer.prediction)
        return _Solved(prediction, evaluations + finer.evaluations, max(halvings, finer.halvings))

    def _pass_for(self, model: LatentTimeODE, x: Tensor, times: Tensor, edges: list[float], fewest: int) -> SinglePass | None:
        rows = max(fewest, 1 << (len(x) - 1).bit_length())
        key = PassKey(rows, tuple(x.shape[1:]), x.dtype, len(times), tuple(edges), precision_settings())
        if (known := self._passes.get(key)) is not None:
            self._passes.move_to_end(key)
            return known
        if self.refused is not None:
            return None
        if key not in self._predicted:
            self._predicted[key] = None
            _limit(self._predicted, _MOST_KEPT)
            return None
        try:
            single = SinglePass(model, self._recorder, key, x, times, self._kernels)
        except (CaptureError, torch.OutOfMemoryError) as error:
            self.refused = str(error).splitlines()[0]
            return None
        self._passes[key] = single
        _limit(self._passes, _MOST_GRAPHS)
        return single


def _levels(x: Tensor, samples: int, draw: Draw, seed: int) -> Tensor:
    """Levels (S, B) of the quantiles at which `LatentTimeODE.prediction_times` lie if each input has its own."""
    if draw == "random":
        return uniform_draws((samples, len(x)), torch.Generator().manual_seed(seed), x.device)
    levels = (torch.arange(samples, device=x.device, dtype=torch.float64) + 0.5) / samples
    return levels[:, None].expand(-1, len(x))


def _by_reference(model: LatentTimeODE, x: Tensor, times: Tensor) -> _Solved:
    if model.end_time.amortized:
        times = model.end_time(x).quantile(times).detach()
    solution = model.solve(model.initial_state(x), model.solved_times(times), "stored")
    prediction = model.answer(model.members_at(solution.states, times, None))
    return _Solved(prediction, solution.stats.n_evaluations, solution.stats.n_refreshed)


def _evaluations_before(model: LatentTimeODE, edges: list[float], halvings: int) -> int:
    """Evaluations of the passes on coarser grids than this one."""
    tableau, steps = get_tableau(model.solver.method), len(edges) - 1
    return sum(tableau.evaluations(steps >> level) for level in range(1, halvings + 1))


def _limit(entries: OrderedDict, most: int) -> None:  # type: ignore[type-arg]
    """Drop the entries that were used least recently."""
    while len(entries) > most:
        entries.popitem(last=False)
