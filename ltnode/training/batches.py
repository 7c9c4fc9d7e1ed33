"""Training data: examples on the device, or read while training, in an order that is a function of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ltnode.counter_rng import hash_counters
from ltnode.data import Dataset, Split
from ltnode.data.loaders import from_batches
from ltnode.data.parts import Parts, split_parts
from ltnode.data.streaming import StreamedTensor, read_ahead
from ltnode.errors import ConfigError, InputError
from ltnode.models import Model
from ltnode.models.step import Batch
from ltnode.training.config import TrainConfig
from ltnode.typing import Int, Tensor

_ORDER = 1
"""Separates the random numbers of the data order from those of augmentation and end-times, which also hash the seed."""
_BLOCK = 32
"""Number of batches that are augmented and normalised together on CUDA."""
_TAUGHT = 1024
"""Largest number of inputs that a teacher gets at once, which bounds its memory."""

Teacher = Callable[[Tensor], Tensor]
"""Maps network inputs (B, ...), augmented as the student sees them, to class probabilities (B, C); draws no random numbers."""


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The raw training and held-out examples of a run on the device; the data set normalises and augments them."""

    dataset: Dataset
    train: Split
    validation: Split | None
    calibration: Split | None
    config: TrainConfig
    dtype: torch.dtype
    parts: Parts
    teacher: Teacher | None = None

    @classmethod
    def of(
        cls, dataset: Dataset, model: Model, config: TrainConfig, device: torch.device, teacher: Teacher | None = None
    ) -> TrainingData:
        """Check the data against the model, and move the parts that the configuration chooses to the device.

        Args:
            dataset: The data.
            model: The model.
            config: ``limit``, held-out fractions and batch size.
            device: Device of the training.
            teacher: Gives probabilities that the model is trained towards; None trains towards the labels.

        Raises:
            InputError: The data do not fit the model, or there are too few examples.
            ConfigError: There is a teacher, and the model cannot learn from one.
        """
        check_fit(dataset, model)
        if teacher is not None and not model.soft_targets:
            raise ConfigError(f"{type(model).__name__} for {model.task} cannot be trained towards the probabilities of a teacher")
        used, parts = held_out_parts(dataset, config)
        validation, calibration = (
            used.train.select(positions).to(device) if len(positions) else None
            for positions in (parts.validation, parts.calibration)
        )
        if validation is not None or calibration is not None:
            used = used.with_train(parts.fit)
        size = config.batch_size
        if config.drop_last and size is not None and size > used.n_train:
            raise InputError(f"batch_size must be <= {used.n_train} (all training examples) with drop_last, not {size}")
        if config.class_weights is not None and (dataset.task != "classification" or size is None or size >= used.n_train):
            raise ConfigError(
                f"class_weights needs a classification in batches of fewer than all {used.n_train} examples, not a "
                f"{dataset.task} with batch_size {size}"
            )
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        return cls(used, used.train.to(device), validation, calibration, config, dtype, parts, teacher)

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimiser steps in one pass over the data."""
        size = self.config.batch_size or len(self.train)
        whole, rest = divmod(len(self.train), size)
        return whole if self.config.drop_last else whole + (rest > 0)

    def epoch_order(self, epoch: int) -> Int[Tensor, " n"]:
        """Return the order of the examples in an epoch, a permutation by (seed, epoch); unchanged if a step takes all of them.

        With balanced classes it is a draw with replacement, in which every class has the same probability.
        """
        n = len(self.train)
        if self.config.batch_size is None or self.config.batch_size >= n:
            return torch.arange(n)
        generator = torch.Generator().manual_seed(hash_counters(self.config.seed, _ORDER, epoch) >> 1)
        if self.config.class_weights is not None:
            labels = self.train.y.cpu()
            return torch.multinomial(1.0 / torch.bincount(labels)[labels], n, replacement=True, generator=generator)
        return torch.randperm(n, generator=generator)

    def batches(self, epoch: int, skip: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """Yield the batches of an epoch (from 0) after the first ``skip``; with several processes, the share of one in each."""
        n = len(self.train)
        size = self.config.batch_size or n
        order = self.epoch_order(epoch).to(self.train.x.device)
        if self.train.x.is_cuda and world == 1:
            yield from self._cuda_batches(epoch, skip, order, size)
            return
        everything = size >= n and world == 1
        positions = range(skip, self.steps_per_epoch)
        wholes = [order[position * size : (position + 1) * size] for position in positions]
        shares = [whole.tensor_split(world)[rank] for whole in wholes]
        raws = read_ahead(self.train.x if everything else self.train.x[indices] for indices in shares)
        for position, whole, indices, raw in zip(positions, wholes, shares, raws, strict=True):
            y = self.train.y if everything else self.train.y[indices]
            x = raw.to(self.train.y.device)
            if len(indices):
                x = self.dataset.prepare(x, seed=self.config.seed, epoch=epoch, indices=indices)
            step = epoch * self.steps_per_epoch + position
            inputs = self._inputs(x)
            yield Batch(inputs, y, indices.to(x.device), step, len(whole), self._soft_targets(inputs, y))

    def _cuda_batches(self, epoch: int, skip: int, order: Tensor, size: int) -> Iterator[Batch]:
        """Prepare many batches at a time, because the small kernels of one preparation would take longer than a training step."""
        for first in range(skip, self.steps_per_epoch, _BLOCK):
            positions = range(first, min(first + _BLOCK, self.steps_per_epoch))
            indices = order[first * size : (positions[-1] + 1) * size]
            examples = self.train.select(indices)
            x = self._inputs(self.dataset.prepare(examples.x, seed=self.config.seed, epoch=epoch, indices=indices))
            soft = self._soft_targets(x, examples.y)
            softs = [None] * len(positions) if soft is None else soft.split(size)
            parts = zip(positions, x.split(size), examples.y.split(size), indices.split(size), softs, strict=True)
            for position, inputs, targets, chosen, taught in parts:
                yield Batch(inputs, targets, chosen, epoch * self.steps_per_epoch + position, len(chosen), taught)

    def _soft_targets(self, x: Tensor, y: Tensor) -> Tensor | None:
        """Return the teacher's probabilities of network inputs, mixed with the labels by ``distill_weight``; None without one."""
        if self.teacher is None or not len(x):
            return None
        with torch.no_grad():
            taught = torch.cat([self.teacher(part) for part in x.split(_TAUGHT)]).to(self.dtype)
        if taught.ndim != 2 or len(taught) != len(x):
            raise InputError(
                f"the teacher must return probabilities ({len(x)}, C) for {len(x)} inputs, not {tuple(taught.shape)}"
            )
        weight = self.config.distill_weight
        if weight == 1:
            return taught
        return weight * taught + (1 - weight) * functional.one_hot(y, taught.shape[1]).to(self.dtype)

    def evaluation_inputs(self, split: Split, limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the first examples of a split, normalised but not augmented, and their targets.

        Inputs that are read while they are used are normalised when they are read.
        """
        x, y = split.x[:limit], split.y[:limit]
        if isinstance(x, StreamedTensor):
            return x.changed(lambda raw: self._inputs(self.dataset.prepare(raw.to(y.device))), self.dtype, y.device), y
        return self._inputs(self.dataset.prepare(x)), y

    def describe(self) -> dict[str, Any]:
        """Describe the data for the records of a run, as JSON."""
        data = self.dataset
        return {
            **data.provenance(),
            "task": data.task,
            "input_shape": list(data.input_shape),
            "n_classes": data.n_classes,
            "class_names": None if data.class_names is None else list(data.class_names),
            "normalise": None if data.normalise is None else {"mean": list(data.normalise.mean), "std": list(data.normalise.std)},
            "n_validation": len(self.parts.validation),
            "n_calibration": len(self.parts.calibration),
            **self.parts.checksums(),
            **({} if data.schema is None else {"schema": data.schema.to_json()}),
        }

    def _inputs(self, x: Tensor) -> Tensor:
        return x.to(self.dtype) if x.is_floating_point() else x


def held_out_parts(dataset: Dataset, config: TrainConfig) -> tuple[Dataset, Parts]:
    """Return the data set with the training examples that ``limit`` keeps, and the positions of their three parts."""
    used = dataset if config.limit is None else dataset.subset(min(config.limit, dataset.n_train))
    if used.parts is not None:
        return used, used.parts.merged(config.validation_fraction > 0, config.calibration_fraction > 0)
    return used, split_parts(used.n_train, config.validation_fraction, config.calibration_fraction, config.parts_seed)


def as_dataset(data: Any, model: Model) -> Dataset:
    """Return a `Dataset` unchanged, and a pair (x, y) or batches of pairs as a data set without normalisation or test split."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, Iterable) and not isinstance(data, tuple | list | str | Mapping | Tensor | np.ndarray):
        return from_batches(data, model.task)
    if not isinstance(data, tuple | list) or len(data) != 2:
        hint = f"; a built-in data set is ltnode.data.load({data!r})" if isinstance(data, str) else ""
        raise InputError(
            f"data must be a Dataset, a pair (x, y), or a DataLoader or iterable of such pairs, not {type(data).__name__}{hint}"
        )
    x, y = data
    made = Dataset.from_arrays(x, y, x, y, task=model.task, standardise=False)
    # The test split repeats the training split and must not be recorded as one.
    return replace(made, checksums={key: value for key, value in made.checksums.items() if key.startswith("train")})


def check_fit(dataset: Dataset, model: Model) -> None:
    """Check that data and model have the same task and, where those of the model are known, the same shapes.

    Raises:
        InputError: Task, input shape, or number of classes or targets differ.
    """
    if dataset.task != model.task:
        raise InputError(f"{dataset.name} is a {dataset.task} problem, but the model is for {model.task}")
    if dataset.task == "regression" and (given := dataset.train.y.shape[1:].numel()) != model.n_targets:
        raise InputError(
            f"{dataset.name} has {given} targets per example, but the model predicts {model.n_targets}; "
            "build the model with ltnode.build(..., data=dataset)"
        )
    if model.spec is None:
        return
    spec = model.spec["input"]
    if list(dataset.input_shape) != list(spec["shape"]):
        raise InputError(
            f"{dataset.name} has inputs of shape {dataset.input_shape}, but the model was built for {tuple(spec['shape'])}; "
            "build the model with ltnode.build(..., data=dataset)"
        )
    if dataset.n_classes is not None and spec["n_classes"] is not None and dataset.n_classes > spec["n_classes"]:
        raise InputError(
            f"{dataset.name} has {dataset.n_classes} classes, but the model was built for {spec['n_classes']}; "
            "build the model with ltnode.build(..., data=dataset)"
        )
