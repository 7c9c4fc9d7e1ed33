"""A data set: checked training and test arrays, and what is needed to feed them to a network."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.data.augment import Augmentation, Normalisation
from ltnode.errors import InputError, unknown_name
from ltnode.typing import Tensor

Task = Literal["classification", "regression"]
TASKS: tuple[Task, ...] = ("classification", "regression")


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and targets of one split.

    Attributes:
        x: images uint8 or float ``(N, C, H, W)`` (maybe a memory map: do not write to it), vectors float ``(N, D)``.
        y: labels int64 ``(N,)``, or regression targets float ``(N,)``.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return self.x.shape[0]

    def to(self, device: torch.device | str) -> Split:
        """The split on another device, in its own (raw) dtype."""
        return Split(self.x.to(device), self.y.to(device))

    def select(self, indices: Tensor) -> Split:
        """The examples at ``indices``, in that order."""
        return Split(self.x[indices], self.y[indices])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification or regression problem with its training and test split.

    Construction checks everything that a training run relies on: shapes, dtypes, lengths, label range, no NaN or inf.

    Attributes:
        name: what the set is called in reports.
        task: "classification" or "regression".
        train, test: the two splits.
        n_classes: number of classes; None for regression.
        class_names: one name per class, if known.
        normalise: how a raw batch becomes network input; None leaves it as it is.
        augment: random changes of training images, in raw pixels; None for none.
        checksums: md5 of the arrays, for the provenance of a run.
        verified: False when files were accepted although they are not the official ones.
        ood: name of the out-of-distribution partner set.
        source: origin of the content: "official", "reconstructed", "unverified", "generated", "arrays" or "folder".
    """

    name: str
    task: Task
    train: Split
    test: Split
    n_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    normalise: Normalisation | None = None
    augment: Augmentation | None = None
    checksums: dict[str, str] = field(default_factory=dict)
    verified: bool = True
    ood: str | None = None
    source: str = "arrays"

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(unknown_name("task", self.task, TASKS))
        if self.task == "classification" and (self.n_classes is None or self.n_classes < 1):
            raise InputError(f"{self.name}: classification needs n_classes of at least 1, got {self.n_classes}")
        if self.task == "regression" and self.n_classes is not None:
            raise InputError(f"{self.name}: regression has no classes, but n_classes={self.n_classes} was given")
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            raise InputError(f"{self.name}: {len(self.class_names)} class names for {self.n_classes} classes")
        for role, split in (("train", self.train), ("test", self.test)):
            _check_split(f"{self.name} {role}", split, self.n_classes)
        if self.train.x.shape[1:] != self.test.x.shape[1:] or self.train.x.dtype != self.test.x.dtype:
            raise InputError(
                f"{self.name}: training inputs are {_describe(self.train.x)} but test inputs {_describe(self.test.x)}; "
                "both need the same shape after the first dimension, and the same dtype"
            )
        if self.normalise is not None and len(self.normalise.mean) != self.input_shape[0]:
            raise InputError(
                f"{self.name}: normalisation has {len(self.normalise.mean)} channels, the inputs {self.input_shape[0]}"
            )
        if self.augment is not None and not self.is_image:
            raise InputError(f"{self.name}: crops and flips need images (N, C, H, W), got {_describe(self.train.x)}")

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        y: Any,
        x_test: Any = None,
        y_test: Any = None,
        task: Task = "classification",
        *,
        name: str = "arrays",
        n_classes: int | None = None,
        class_names: tuple[str, ...] | None = None,
        standardise: bool = True,
        augment: Augmentation | None = None,
        test_fraction: float = 0.2,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> Dataset:
        """A data set from your own numpy arrays, tensors or nested lists.

        Args:
            x: images ``(N, C, H, W)`` or ``(N, H, W)``, uint8 or float on [0, 1], or vectors ``(N, D)``.
            y: labels, integers 0 ... n_classes - 1, shape ``(N,)``; regression targets ``(N,)`` or ``(N, 1)``.
            x_test: inputs of the test split; without it, a random ``test_fraction`` of the examples is held out.
            y_test: targets of the test split.
            task: "classification" or "regression".
            name: what to call it in reports.
            n_classes: by default the largest training label + 1.
            class_names: optional names of the classes.
            standardise: normalise every channel or feature by the mean and std of the training split.
            augment: optional crops and flips.
            test_fraction: share held out when there is no test split.
            seed: decides which examples are held out.
            dtype: floating-point dtype of inputs that are not uint8, and of regression targets.

        Raises:
            InputError: wrong shapes, mismatched lengths, no data, NaN or inf, labels that are not integers in range.
        """
        if task not in TASKS:
            raise InputError(unknown_name("task", task, TASKS))
        train = Split(_inputs("x", x, dtype), _targets("y", y, task, dtype))
        _check_lengths("x and y", train)
        if (x_test is None) != (y_test is None):
            raise InputError("give both x_test and y_test, or neither (then test_fraction of the data is held out)")
        if x_test is None:
            train, test = hold_out(train, test_fraction, seed)
        else:
            test = Split(_inputs("x_test", x_test, dtype), _targets("y_test", y_test, task, dtype))
        if task == "classification" and n_classes is None:
            n_classes = max(1, int(train.y.max()) + 1)
        return cls(
            name=name,
            task=task,
            train=train,
            test=test,
            n_classes=n_classes,
            class_names=class_names,
            normalise=Normalisation.fitted(train.x) if standardise else None,
            augment=augment,
            checksums=checksums(train, test),
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: ``(C, H, W)`` or ``(D,)``."""
        return tuple(self.train.x.shape[1:])

    @property
    def is_image(self) -> bool:
        """Whether inputs are images ``(C, H, W)``."""
        return self.train.x.ndim == 4

    @property
    def n_train(self) -> int:
        """Number of training examples."""
        return len(self.train)

    def provenance(self) -> dict[str, Any]:
        """What a result has to record about its data (JSON-serialisable)."""
        return {
            "name": self.name,
            "source": self.source,
            "verified": self.verified,
            "n_train": len(self.train),
            "n_test": len(self.test),
            "checksums": dict(self.checksums),
        }

    def prepare(self, x: Tensor, *, seed: int = 0, epoch: int = 0, indices: Tensor | None = None) -> Tensor:
        """A raw batch as network input, on its device: augmented if ``indices`` are given (training), then normalised.

        Args:
            x: a batch of raw inputs, as in ``train.x``.
            seed: the run's seed.
            epoch: the current epoch.
            indices: positions of the batch in the training set; None (evaluation) augments nothing. The crops are those
                of :func:`ltnode.data.augment.augmentation_offsets`.
        """
        if indices is not None and self.augment is not None:
            x = self.augment.apply(x, seed=seed, epoch=epoch, indices=indices)
        return x if self.normalise is None else self.normalise.apply(x)

    def subset(self, n: int, seed: int = 0) -> Dataset:
        """The same problem with ``n`` training examples, drawn without replacement; the test split stays whole."""
        if not 1 <= n <= self.n_train:
            raise InputError(f"{self.name}: a subset of {n} is impossible; there are {self.n_train} training examples")
        if n == self.n_train:
            return self
        chosen = _permutation(self.n_train, seed)[:n].sort().values
        return self._with_train(chosen)

    def with_validation(self, fraction: float, seed: int = 0) -> tuple[Dataset, Split]:
        """Take a random ``fraction`` of the training examples out for validation.

        Returns:
            The data set with the remaining training examples, and the validation split.
        """
        kept, held = _held_out(self.n_train, fraction, seed)
        return self._with_train(kept), self.train.select(held)

    def _with_train(self, indices: Tensor) -> Dataset:
        digest = hashlib.md5(indices.numpy().tobytes(), usedforsecurity=False).hexdigest()
        return replace(self, train=self.train.select(indices), checksums={**self.checksums, "train_indices": f"md5:{digest}"})


def checksums(train: Split, test: Split) -> dict[str, str]:
    """The md5 of each array's bytes in memory order, as ``{"train_x": "md5:...", ...}``."""
    arrays = {"train_x": train.x, "train_y": train.y, "test_x": test.x, "test_y": test.y}
    return {key: f"md5:{array_md5(value.numpy())}" for key, value in arrays.items()}


def array_md5(array: NDArray[Any]) -> str:
    """The md5 of an array's bytes in C order."""
    return hashlib.md5(np.ascontiguousarray(array).data, usedforsecurity=False).hexdigest()


def _describe(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"


def _check_lengths(what: str, split: Split) -> None:
    if split.x.shape[0] != split.y.shape[0]:
        raise InputError(f"{what}: {split.x.shape[0]} inputs but {split.y.shape[0]} targets; give one target per input")


def _check_split(what: str, split: Split, n_classes: int | None) -> None:
    x, y = split.x, split.y
    if x.ndim not in (2, 4) or (x.ndim == 2 and not x.is_floating_point()):
        raise InputError(f"{what}: inputs must be images (N, C, H, W) or float vectors (N, D), got {_describe(x)}")
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise InputError(f"{what}: images must be uint8, or float on [0, 1], got {_describe(x)}")
    if y.ndim != 1:
        raise InputError(f"{what}: targets must have shape (N,), got {_describe(y)}")
    _check_lengths(what, split)
    if x.numel() == 0:
        raise InputError(f"{what}: no data, inputs are {_describe(x)}")
    if not math.isfinite(x.sum().item() if x.is_floating_point() else 0.0):
        # the sum is cheap but may overflow on finite data: only the count below decides
        bad = int((~x.isfinite()).flatten(1).any(1).sum())
        if bad:
            raise InputError(f"{what}: NaN or inf in {bad} of {len(split)} inputs; remove or impute them")
    if n_classes is None:
        if not y.is_floating_point():
            raise InputError(f"{what}: regression targets must be floating point, got {_describe(y)}")
        if not bool(y.isfinite().all()):
            raise InputError(f"{what}: NaN or inf in {int((~y.isfinite()).sum())} of {len(split)} targets; remove them")
        return
    if y.dtype != torch.int64:
        raise InputError(f"{what}: labels must be int64, got {_describe(y)}")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= n_classes:
        raise InputError(
            f"{what}: labels run from {low} to {high}, but {n_classes} classes allow 0 to {n_classes - 1}; "
            "renumber them (numpy.unique(y, return_inverse=True)) or give n_classes"
        )


def _tensor(what: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        array = np.asarray(value)
        if array.dtype.kind in "OUS":
            raise TypeError(f"dtype {array.dtype}")
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=not array.flags.writeable))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{what} is not a numeric array ({error}); strings can be encoded by numpy.unique(..., return_inverse=True)"
        ) from error


def _inputs(what: str, value: Any, dtype: torch.dtype) -> Tensor:
    x = _tensor(what, value)
    if x.numel() == 0:
        raise InputError(f"{what} holds no data, it is {_describe(x)}")
    if x.ndim == 1:
        raise InputError(f"{what} has shape {tuple(x.shape)}; vectors need (N, D): use x.reshape(-1, 1) for one feature")
    if x.ndim == 4 and x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        raise InputError(f"{what} of shape {tuple(x.shape)} looks channels-last; pass x.transpose(0, 3, 1, 2)")
    if x.ndim not in (2, 3, 4) or x.is_complex():
        raise InputError(f"{what} must be (N, D), (N, H, W) or (N, C, H, W) real numbers, got {_describe(x)}")
    if x.ndim >= 3 and x.dtype not in (torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise InputError(f"{what}: images must be uint8, or float on [0, 1], got {_describe(x)}")
    x = x.unsqueeze(1) if x.ndim == 3 else x
    return x if x.dtype == torch.uint8 and x.ndim == 4 else x.to(dtype)


def _targets(what: str, value: Any, task: Task, dtype: torch.dtype) -> Tensor:
    y = _tensor(what, value)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InputError(f"{what} must have shape (N,), one target per example, got {_describe(y)}")
    if task == "regression":
        if y.is_complex():
            raise InputError(f"{what} must be real numbers, got {_describe(y)}")
        return y.to(dtype)
    if y.is_floating_point() or y.is_complex():
        raise InputError(
            f"{what} holds {_describe(y)} but classification needs integer labels; "
            'convert them, or use task="regression" if they are measurements'
        )
    return y.to(torch.int64)


def _permutation(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def _held_out(n: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Sorted indices (kept, held out), at least one each. Sorted, so that memory maps are read in order."""
    if not 0 < fraction < 1:
        raise InputError(f"the fraction to hold out must lie strictly between 0 and 1, got {fraction}")
    if n < 2:
        raise InputError(f"cannot hold anything out of {n} examples; at least 2 are needed")
    count = min(n - 1, max(1, round(n * fraction)))
    order = _permutation(n, seed)
    return order[count:].sort().values, order[:count].sort().values


def hold_out(split: Split, fraction: float, seed: int) -> tuple[Split, Split]:
    """The split without a random ``fraction`` of its examples, and that fraction; at least one example each."""
    kept, held = _held_out(len(split), fraction, seed)
    return split.select(kept), split.select(held)
