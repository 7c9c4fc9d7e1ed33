"""Predictions of a whole test set, in batches on the model's device, and their cost.

Posterior draws: a model whose inputs share one end-time distribution uses the same end-times in every batch, as in the paper. If
every input has its own end-times, or its own noise, each batch has its own seed: a function of the evaluation's seed and of the
position of the batch.

Batch size: predictions on the stored grid do not depend on the rest of the batch. If, in addition, all batches have the same
end-times and the user chose no size, batches on a GPU are enlarged, because small ones leave it idle. Adaptive steps do depend on
the batch; on a GPU, several batches are solved jointly, each with its own steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch

from ltnode.accelerate.joint_batches import predict_batches
from ltnode.accelerate.plan import unsupported_reason_joint_batches
from ltnode.counter_rng import hash_counters
from ltnode.data.streaming import read_ahead
from ltnode.device import product_precision
from ltnode.endtime import FixedTime
from ltnode.errors import InputError
from ltnode.evaluation.options import EvaluationOptions
from ltnode.evaluation.results import Cost
from ltnode.models import LatentTimeODE, Model, Prediction
from ltnode.typing import Float, Tensor

_LARGEST_BATCH = 4096
_SHARE_OF_MEMORY = 0.25
"""Share of a GPU's free memory that a batch may take."""
Result = TypeVar("Result")
_COLUMNS = ("probs", "log_probs", "entropy", "aleatoric", "epistemic")
_OPTIONAL = ("distance", "familiarity")


@dataclass(frozen=True, eq=False)
class ClassPredictions:
    """Quantities of a `Prediction` of N examples, in float64 on the model's device, and the cost of the predictions."""

    probs: Float[Tensor, "N C"]
    log_probs: Float[Tensor, "N C"]
    entropy: Float[Tensor, " N"]
    aleatoric: Float[Tensor, " N"]
    epistemic: Float[Tensor, " N"]
    cost: Cost
    distance: Float[Tensor, " N"] | None = None
    familiarity: Float[Tensor, " N"] | None = None

    @classmethod
    def of(cls, parts: Sequence[Prediction], cost: Cost) -> ClassPredictions:
        """Collect the quantities batch by batch: the outputs of all members at once would need much memory."""
        exact = [part.to(torch.float64) for part in parts]
        return cls(cost=cost, **{name: torch.cat([getattr(part, name) for part in exact]) for name in _COLUMNS}, **_known(exact))

    def __len__(self) -> int:
        return self.probs.shape[0]

    def select(self, indices: Tensor) -> ClassPredictions:
        """The predictions of the examples at ``indices``."""
        known = [name for name in (*_COLUMNS, *_OPTIONAL) if getattr(self, name) is not None]
        return replace(self, **{name: getattr(self, name)[indices] for name in known})


@dataclass(frozen=True, eq=False)
class RealPredictions:
    """Quantities of a regression `Prediction` of N examples, in float64, and the cost of the predictions."""

    mean: Float[Tensor, "N *targets"]
    std: Float[Tensor, "N *targets"]
    total_std: Float[Tensor, "N *targets"]
    cost: Cost
    familiarity: Float[Tensor, " N"] | None = None


class Predictor:
    """Predicts with one model under one set of options.

    Args:
        model: The model, in any mode; predictions are made in eval mode.
        prepare: Raw batch -> network input, normalised with the constants of the training data.
        options: Options with every default resolved.
        larger_batches: Whether batches may be larger than the options say.
    """

    def __init__(
        self, model: Model, prepare: Callable[[Tensor], Tensor], options: EvaluationOptions, larger_batches: bool = False
    ) -> None:
        self.model, self.options = model, options
        self._prepare = prepare
        parameter = next(model.parameters(), torch.zeros(()))
        self.device, self._dtype = parameter.device, parameter.dtype
        end_time = model.end_time if isinstance(model, LatentTimeODE) else None
        self.deterministic = isinstance(end_time, FixedTime)
        """Whether all members are identical: there is nothing to draw and no mutual information."""
        self._shares_draws = end_time is not None and not end_time.amortized
        self._may_enlarge = larger_batches and end_time is not None and options.steps == "stored"
        self._enlarged: int | None = None
        self._solves_jointly = (
            isinstance(model, LatentTimeODE)
            and options.steps == "adaptive"
            and self.device.type == "cuda"
            and unsupported_reason_joint_batches(model) is None
        )
        self._joint_batches: int | None = None
        self._warm = False
        self.on_predicted: Callable[[int], None] = lambda examples: None
        """Called after every batch with the number of its examples."""

    def inputs(self, raw: Tensor) -> Float[Tensor, "B *rest"]:
        """Network input of a raw batch, on the model's device."""
        x = self._prepare(raw.to(self.device))
        return x.to(self._dtype) if x.is_floating_point() else x

    def batch_size(self, raw: Tensor, *, draw: str | None = None, fresh: bool = False) -> int:
        """Batch size of the options, or a larger one if no prediction depends on it; the arguments are those of `classify`."""
        size = self.options.batch_size
        assert size is not None
        same_times = (draw or self.options.draw) == "quantile" or (self._shares_draws and not fresh)
        if not (self._may_enlarge and same_times):
            return size
        if self._enlarged is None:
            predict = partial(self._one, self.inputs(raw[:size]), 0, draw)
            fitting = _fitting_examples(predict, min(size, len(raw)), self.device)
            self._enlarged = max(size, min(_LARGEST_BATCH, fitting))
        return self._enlarged

    def batches(self, raw: Tensor, size: int | None = None) -> Iterator[Float[Tensor, "b *rest"]]:
        """Network inputs of a raw set, batch by batch; by default in batches of the options' size."""
        size = size or self.options.batch_size
        assert size is not None
        return (self.inputs(part) for part in read_ahead(torch.split(raw, size)))

    def seed_of(self, batch: int, draw_seed: int, fresh: bool = False) -> int:
        """Seed of a batch's random numbers; with ``fresh``, every batch has its own even if draws could be shared."""
        if self._shares_draws and not fresh:
            return draw_seed
        return hash_counters(draw_seed, int(fresh), batch) >> 1

    def classify(
        self, raw: Tensor, draw_seed: int | None = None, *, draw: str | None = None, fresh: bool = False
    ) -> ClassPredictions:
        """Predict the classes of a raw set of examples.

        Args:
            raw: (N, ...) inputs, as in the data set.
            draw_seed: Seed of the end-times; by default that of the options.
            draw: ``"quantile"`` or ``"random"``; by default as in the options.
            fresh: Draw new end-times for every batch.
        """
        size = self.batch_size(raw, draw=draw, fresh=fresh)
        return self.classify_inputs(self.batches(raw, size), draw_seed, draw=draw, fresh=fresh)

    def classify_inputs(
        self, batches: Iterable[Tensor], draw_seed: int | None = None, *, draw: str | None = None, fresh: bool = False
    ) -> ClassPredictions:
        """Predict the classes of batches of network inputs; see `classify`."""
        return ClassPredictions.of(*self._predict(batches, draw_seed, draw, fresh))

    def regress(self, raw: Tensor, draw_seed: int | None = None, *, draw: str | None = None) -> RealPredictions:
        """Predict the targets of a raw set of examples; see `classify`."""
        parts, cost = self._predict(self.batches(raw), draw_seed, draw, False)
        p = Prediction.cat(parts).to(torch.float64)
        return RealPredictions(p.mean, p.std, p.total_std, cost, p.familiarity)

    def log_probs(self, x: Tensor, seed: int) -> Float[Tensor, "B C"]:
        """Log of the averaged class probabilities, differentiable with respect to the network input x, for attacks."""
        samples, draw = self._samples, self.options.draw or "quantile"
        if not isinstance(self.model, LatentTimeODE):
            return self.model.log_probs(x, samples, draw, seed)
        times = self.model.prediction_times(x, samples, draw, seed)
        return Prediction(self.model.task, self.model(x, times, self.options.steps), times).log_probs

    @property
    def _samples(self) -> int:
        return 1 if self.deterministic else self.options.samples

    def _predict(
        self, batches: Iterable[Tensor], draw_seed: int | None, draw: str | None, fresh: bool
    ) -> tuple[list[Prediction], Cost]:
        seed = self.options.draw_seed if draw_seed is None else draw_seed
        parts: list[Prediction] = []
        examples, seconds, peak = 0, 0.0, 0
        with product_precision("fp32"):
            for group in self._groups(batches, seed, draw, fresh):
                if not self._warm:
                    # The first call on a GPU compiles and selects kernels, which would dominate the time of a small set.
                    self._warm = True
                    if self.device.type == "cuda":
                        self._several(group, draw)
                predictions, took, used = _measured(partial(self._several, group, draw), self.device)
                parts += predictions
                count = sum(len(x) for x, _ in group)
                self.on_predicted(count)
                examples, seconds, peak = examples + count, seconds + took, max(peak, used)
        if not parts:
            raise InputError("there is nothing to predict: the set of examples is empty")
        work = [p.stats.n_evaluations for p in parts if p.stats is not None]
        evaluations = sum(work) / len(work) if work else None
        return parts, Cost(evaluations, 1000 * seconds / examples, peak or None)

    def _groups(self, batches: Iterable[Tensor], seed: int, draw: str | None, fresh: bool) -> Iterator[list[tuple[Tensor, int]]]:
        """Batches with their seeds: one at a time, or several of equal size if they can be solved jointly."""
        group: list[tuple[Tensor, int]] = []
        most = 1
        for position, x in enumerate(batches):
            if group and (len(group) == most or len(x) != len(group[0][0])):
                yield group
                group = []
            group.append((x, self.seed_of(position, seed, fresh)))
            if self._solves_jointly and self._joint_batches is None:
                fitting = _fitting_examples(partial(self._one, *group[0], draw), len(x), self.device)
                self._joint_batches = max(1, min(_LARGEST_BATCH, fitting) // len(x))
            most = self._joint_batches or 1
        if group:
            yield group

    def _several(self, group: Sequence[tuple[Tensor, int]], draw: str | None) -> list[Prediction]:
        if len(group) == 1:
            return [self._one(*group[0], draw)]
        assert isinstance(self.model, LatentTimeODE)
        batches, seeds = zip(*group, strict=True)
        return predict_batches(self.model, batches, self._samples, draw or self.options.draw or "quantile", seeds)  # type: ignore[arg-type]

    def _one(self, x: Tensor, seed: int, draw: str | None) -> Prediction:
        steps = {"steps": self.options.steps or "stored"} if isinstance(self.model, LatentTimeODE) else {}
        return self.model.predict(x, self._samples, draw or self.options.draw or "quantile", seed, **steps)  # type: ignore[arg-type]


def _known(parts: Sequence[Prediction]) -> dict[str, Tensor]:
    """Distance and familiarity of all examples, as far as the model knows them."""
    columns = {name: [getattr(part, name) for part in parts] for name in _OPTIONAL}
    return {name: torch.cat(values) for name, values in columns.items() if values[0] is not None}


def _fitting_examples(predict: Callable[[], object], examples: int, device: torch.device) -> int:
    """Number of examples that fit into a share of a GPU's free memory, extrapolated from one prediction; 0 for the CPU."""
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    before = torch.cuda.memory_allocated(device)
    with product_precision("fp32"):
        _, _, peak = _measured(predict, device)
    return int(_SHARE_OF_MEMORY * free * examples / max(1, peak - before))


def _measured(work: Callable[[], Result], device: torch.device) -> tuple[Result, float, int]:
    """The result of some work, the seconds that it took and, on CUDA, its peak memory in bytes."""
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    result = work()
    if on_cuda:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    return result, seconds, torch.cuda.max_memory_allocated(device) if on_cuda else 0
