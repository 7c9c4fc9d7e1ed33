"""Predictions of a whole test set: in batches on the model's device, with what they cost.

Posterior draws: a model with one end-time for all inputs uses one set of times for every batch (the seed is the same), as
in the paper; where every input has its own times, or noise of its own, each batch has its own seed, a function of the
evaluation's seed and the position of the batch.

Size of the batches: predictions on the stored grid do not depend on batch-mates. Where all batches have the same end-times,
nobody chose a size, and the device is a GPU, which small batches leave idle, larger ones serve. Adaptive steps do depend on
them; on a GPU several batches are solved side by side, each with its own steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ltnode import metrics
from ltnode.accelerate.joint_batches import predict_batches
from ltnode.accelerate.plan import unsupported_reason_joint_batches
from ltnode.counter_rng import hash_counters
from ltnode.device import product_precision
from ltnode.endtime import FixedTime
from ltnode.errors import InputError
from ltnode.evaluation.options import EvaluationOptions
from ltnode.evaluation.results import Cost
from ltnode.models import LatentTimeODE, Model, Prediction
from ltnode.models.contract import Draw
from ltnode.typing import Float, Tensor

_LARGEST_BATCH = 4096
_SHARE_OF_MEMORY = 0.25
"""Of a GPU's free memory that a batch may take."""


@dataclass(frozen=True, eq=False)
class ClassPredictions:
    """Predictions of N examples in float64, on the model's device.

    Attributes:
        probs: Averaged probabilities.
        log_probs: Their logarithm, by log-mean-exp.
        entropy: Entropy of the averaged prediction in nats.
        aleatoric: Mean entropy of the members in nats.
        epistemic: Mutual information of label and end-time in nats.
        cost: What they cost.
    """

    probs: Float[Tensor, "N C"]
    log_probs: Float[Tensor, "N C"]
    entropy: Float[Tensor, " N"]
    aleatoric: Float[Tensor, " N"]
    epistemic: Float[Tensor, " N"]
    cost: Cost

    def __len__(self) -> int:
        return self.probs.shape[0]

    def select(self, indices: Tensor) -> ClassPredictions:
        """The examples at ``indices``."""
        return ClassPredictions(
            probs=self.probs[indices],
            log_probs=self.log_probs[indices],
            entropy=self.entropy[indices],
            aleatoric=self.aleatoric[indices],
            epistemic=self.epistemic[indices],
            cost=self.cost,
        )


@dataclass(frozen=True, eq=False)
class RealPredictions:
    """Regression predictions of N examples in float64.

    Attributes:
        mean: Predictive mean.
        std: Standard deviation over the members.
        noise_std: Standard deviation of the observation noise.
        cost: What they cost.
    """

    mean: Float[Tensor, " N"]
    std: Float[Tensor, " N"]
    noise_std: float
    cost: Cost

    @property
    def total_std(self) -> Float[Tensor, " N"]:
        """``sqrt(std^2 + noise_std^2)``."""
        return (self.std.square() + self.noise_std**2).sqrt()


class Predictor:
    """Predicts with one model under one set of options.

    Args:
        model: In any mode; predictions are made in eval mode.
        prepare: Raw batch -> network input, normalised with the constants of the training data.
        options: Resolved for the model's preset.
        larger_batches: Whether `batch_size` may exceed that of the options.
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
        """All members are the same one: nothing to draw, no mutual information."""
        self._shares_draws = end_time is not None and not end_time.amortized
        self._may_enlarge = larger_batches and end_time is not None and options.steps == "stored"
        self._enlarged: int | None = None
        self._side_by_side = (
            isinstance(model, LatentTimeODE)
            and options.steps == "adaptive"
            and self.device.type == "cuda"
            and unsupported_reason_joint_batches(model) is None
        )
        self._together: int | None = None
        self._warm = False
        self.on_predicted: Callable[[int], None] = lambda examples: None
        """Called with the number of examples of every predicted batch."""

    def inputs(self, raw: Tensor) -> Float[Tensor, "B *rest"]:
        """Network input of a raw batch, on the model's device."""
        x = self._prepare(raw.to(self.device))
        return x.to(self._dtype) if x.is_floating_point() else x

    def batch_size(self, raw: Tensor, *, draw: str | None = None, fresh: bool = False) -> int:
        """Examples per prediction of a raw set: as the options say, or more where that changes no number; see `classify`."""
        size = self.options.batch_size
        assert size is not None
        same_times = (draw or self.options.draw) == "quantile" or (self._shares_draws and not fresh)
        if not (self._may_enlarge and same_times):
            return size
        if self._enlarged is None:
            fitting = _fitting_examples(self._one(self.inputs(raw[:size]), 0, draw), min(size, len(raw)), self.device)
            self._enlarged = max(size, min(_LARGEST_BATCH, fitting))
        return self._enlarged

    def batches(self, raw: Tensor, size: int | None = None) -> Iterator[Float[Tensor, "b *rest"]]:
        """Network inputs of a raw set, batch by batch; of the options' size, unless another is given."""
        size = size or self.options.batch_size
        assert size is not None
        return (self.inputs(part) for part in torch.split(raw, size))

    def seed_of(self, batch: int, draw_seed: int, fresh: bool = False) -> int:
        """Seed of a batch's random numbers; ``fresh`` gives every batch its own also where draws are shared."""
        if self._shares_draws and not fresh:
            return draw_seed
        return hash_counters(draw_seed, int(fresh), batch) >> 1

    def classify(
        self, raw: Tensor, draw_seed: int | None = None, *, draw: str | None = None, fresh: bool = False
    ) -> ClassPredictions:
        """Predictions of a raw set of examples.

        Args:
            raw: (N, ...) as in the data set.
            draw_seed: By default that of the options.
            draw: By default that of the options.
            fresh: New end-times for every batch.
        """
        size = self.batch_size(raw, draw=draw, fresh=fresh)
        return self.classify_inputs(self.batches(raw, size), draw_seed, draw=draw, fresh=fresh)

    def classify_inputs(
        self, batches: Iterable[Tensor], draw_seed: int | None = None, *, draw: str | None = None, fresh: bool = False
    ) -> ClassPredictions:
        """Predictions of network inputs that come in batches; see `classify`."""
        parts, cost = self._predict(batches, draw_seed, draw, fresh)
        log_members = [torch.log_softmax(p.outputs.double(), dim=-1) for p in parts]
        log_probs = [torch.logsumexp(logs, dim=0) - math.log(logs.shape[0]) for logs in log_members]
        splits = [metrics.uncertainty_split(logs.exp()) for logs in log_members]
        # A mean of probabilities may exceed 1 by rounding, and its entropy then lies just below 0.
        return ClassPredictions(
            probs=torch.cat([logs.exp().mean(0).clamp_max(1.0) for logs in log_members]),
            log_probs=torch.cat(log_probs),
            entropy=torch.cat([split.total for split in splits]).clamp_min(0.0),
            aleatoric=torch.cat([split.aleatoric for split in splits]).clamp_min(0.0),
            epistemic=torch.cat([split.epistemic for split in splits]),
            cost=cost,
        )

    def regress(self, raw: Tensor, draw_seed: int | None = None, *, draw: str | None = None) -> RealPredictions:
        """Regression predictions of a raw set of examples; see `classify`."""
        parts, cost = self._predict(self.batches(raw), draw_seed, draw, False)
        means = torch.cat([p.member_means.double() for p in parts], dim=1)
        return RealPredictions(means.mean(0), means.std(0, correction=0), float(parts[0].noise_std), cost)

    def log_probs(self, x: Tensor, seed: int) -> Float[Tensor, "B C"]:
        """Log of the averaged class probabilities with a graph to the network input x, for attacks."""
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
        examples, seconds = 0, 0.0
        peak = 0
        with product_precision("fp32"):
            for group in self._groups(batches, seed, draw, fresh):
                predict = self._several(group, draw)
                if not self._warm:
                    # The first call on a device compiles and chooses kernels: it would be the whole time of a small set.
                    self._warm = True
                    if self.device.type == "cuda":
                        predict()
                with _measured(self.device) as measured:
                    parts += predict()
                count = sum(len(x) for x, _ in group)
                self.on_predicted(count)
                examples += count
                seconds += measured.seconds
                peak = max(peak, measured.peak_memory_bytes)
        if not parts:
            raise InputError("there is nothing to predict: the set of examples is empty")
        work = [p.stats.n_evaluations for p in parts if p.stats is not None]
        evaluations = sum(work) / len(work) if work else None
        return parts, Cost(evaluations, 1000 * seconds / examples, peak or None)

    def _groups(self, batches: Iterable[Tensor], seed: int, draw: str | None, fresh: bool) -> Iterator[list[tuple[Tensor, int]]]:
        """Batches with their seeds: one by one, or several of one size where they can be predicted side by side."""
        group: list[tuple[Tensor, int]] = []
        most = 1
        for position, x in enumerate(batches):
            if group and (len(group) == most or len(x) != len(group[0][0])):
                yield group
                group = []
            group.append((x, self.seed_of(position, seed, fresh)))
            if self._side_by_side and self._together is None:
                fitting = _fitting_examples(self._one(*group[0], draw), len(x), self.device)
                self._together = max(1, min(_LARGEST_BATCH, fitting) // len(x))
            most = self._together or 1
        if group:
            yield group

    def _several(self, group: Sequence[tuple[Tensor, int]], draw: str | None) -> Callable[[], list[Prediction]]:
        if len(group) == 1:
            one = self._one(*group[0], draw)
            return lambda: [one()]
        model = self.model
        assert isinstance(model, LatentTimeODE)
        batches, seeds = zip(*group, strict=True)
        chosen: Draw = draw or self.options.draw or "quantile"  # type: ignore[assignment]
        return lambda: predict_batches(model, batches, self._samples, chosen, seeds)

    def _one(self, x: Tensor, seed: int, draw: str | None) -> Callable[[], Prediction]:
        model, o = self.model, self.options
        chosen = draw or o.draw or "quantile"
        if isinstance(model, LatentTimeODE):
            return lambda: model.predict(x, self._samples, chosen, seed, o.steps or "stored")  # type: ignore[arg-type]
        return lambda: model.predict(x, self._samples, chosen, seed)  # type: ignore[arg-type]


def _fitting_examples(predict: Callable[[], Prediction], examples: int, device: torch.device) -> int:
    """How many examples at once take a share of a GPU's free memory, judging by a prediction of some; 0 for a CPU."""
    if device.type != "cuda":
        return 0
    free, _ = torch.cuda.mem_get_info(device)
    before = torch.cuda.memory_allocated(device)
    with product_precision("fp32"), _measured(device) as measured:
        predict()
    taken = max(1, measured.peak_memory_bytes - before)
    return int(_SHARE_OF_MEMORY * free * examples / taken)


@dataclass
class _Measured:
    seconds: float = 0.0
    peak_memory_bytes: int = 0


@contextmanager
def _measured(device: torch.device) -> Iterator[_Measured]:
    """Time and, on CUDA, peak memory of what happens inside."""
    result = _Measured()
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    yield result
    if on_cuda:
        torch.cuda.synchronize(device)
        result.peak_memory_bytes = torch.cuda.max_memory_allocated(device)
    result.seconds = time.perf_counter() - began
