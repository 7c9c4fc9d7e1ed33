"""A data set: checked training and test arrays, with normalisation and augmentation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.data.arrays import TASKS, Task, check_examples, check_lengths, describe, inputs, targets
from ltnode.data.augment import Augmentation, Normalisation
from ltnode.data.origin import Origin
from ltnode.data.parts import Parts, positions_md5, split_parts
from ltnode.data.streaming import StreamedTensor, resident
from ltnode.errors import InputError, unknown_name
from ltnode.tables import Schema
from ltnode.typing import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Inputs and targets of one split.

    Attributes:
        x: Images ``(N, C, H, W)``, uint8 or float, possibly a memory map (do not write to it) or read while they are used (see
            `ltnode.data.streaming`), or float vectors ``(N, D)``.
        y: Labels int64 ``(N,)``, or regression targets float ``(N,)`` or, for K > 1 targets, ``(N, K)``.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return self.x.shape[0]

    def __repr__(self) -> str:
        return f"Split({len(self)} examples: x {describe(self.x)}, y {describe(self.y)})"

    def to(self, device: torch.device | str) -> Split:
        """Copy the split to another device, without changing its dtypes; inputs that are read while they are used stay there."""
        return Split(self.x if isinstance(self.x, StreamedTensor) else self.x.to(device), self.y.to(device))

    def select(self, indices: Tensor) -> Split:
        """The examples at ``indices``, in that order."""
        return Split(self.x[indices], self.y[indices])

    @property
    def streamed(self) -> bool:
        """Whether inputs are read while they are used."""
        return isinstance(self.x, StreamedTensor)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """A classification or regression problem with a training and a test split.

    The constructor checks shapes, dtypes, lengths and the range of the labels, and rejects NaN and inf.

    Attributes:
        name: Name in reports.
        task: "classification" or "regression".
        train: The training split.
        test: The test split.
        n_classes: Number of classes; None for regression.
        class_names: One name per class, if known.
        normalise: Normalisation of raw batches; None for no change.
        augment: Random augmentation of raw training images; None for none.
        checksums: md5 of the arrays, for the provenance of a run.
        verified: False if the files were accepted although they are not the official ones.
        ood: Name of the corresponding out-of-distribution set.
        source: Origin of the content: "official", "reconstructed", "unverified", "generated", "arrays", "table" or "folder".
        schema: Columns and target of a table, whose encoded rows are the inputs; None for other data.
        parts: Parts of the training split that are given or were drawn together with the data; None lets the configuration of a
            training draw them. Where a fraction of the configuration is 0, the examples of that part are trained on.
        origin: File or folder from which the same data can be loaded again; None if there is none.
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
    schema: Schema | None = None
    parts: Parts | None = None
    origin: Origin | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise InputError(unknown_name("task", self.task, TASKS))
        if self.task == "classification" and (self.n_classes is None or self.n_classes < 1):
            raise InputError(f"{self.name}: n_classes of a classification must be at least 1, not {self.n_classes}")
        if self.task == "regression" and self.n_classes is not None:
            raise InputError(f"{self.name}: regression has no classes; n_classes must be None, not {self.n_classes}")
        if self.class_names is not None and len(self.class_names) != self.n_classes:
            raise InputError(
                f"{self.name}: {len(self.class_names)} class names for {self.n_classes} classes; pass one name per class"
            )
        for role, split in (("train", self.train), ("test", self.test)):
            check_examples(f"{self.name} {role}", split.x, split.y, self.n_classes)
        if self.train.x.shape[1:] != self.test.x.shape[1:] or self.train.x.dtype != self.test.x.dtype:
            raise InputError(
                f"{self.name}: training inputs are {describe(self.train.x)}, but test inputs are {describe(self.test.x)}; "
                "both need the same shape after the first dimension, and the same dtype"
            )
        if self.normalise is not None and len(self.normalise.mean) != self.input_shape[0]:
            raise InputError(
                f"{self.name}: {len(self.normalise.mean)} channels in the normalisation, but {self.input_shape[0]} in the inputs"
            )
        if self.augment is not None and not self.is_image:
            raise InputError(f"{self.name}: crops and flips need images (N, C, H, W), not {describe(self.train.x)}")

    def __repr__(self) -> str:
        classes = "" if self.n_classes is None else f" with {self.n_classes} classes"
        kind = str(self.train.x.dtype).removeprefix("torch.")
        counts = f"{len(self.train)} training and {len(self.test)} test examples"
        return f"Dataset({self.name}: {self.task}{classes}, {counts} of shape {self.input_shape}, {kind})"

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
        """Create a data set from numpy arrays, tensors or nested lists.

        Args:
            x: Images ``(N, C, H, W)`` or ``(N, H, W)``, uint8 or float in [0, 1], or vectors ``(N, D)``.
            y: Labels 0 ... n_classes - 1 of shape ``(N,)``; regression targets ``(N,)``, ``(N, 1)`` or ``(N, K)``.
            x_test: Inputs of the test split; if None, a random ``test_fraction`` of the examples is held out.
            y_test: Targets of the test split.
            task: "classification" or "regression".
            name: Name in reports.
            n_classes: Number of classes; by default the largest training label + 1.
            class_names: Names of the classes.
            standardise: Normalise each channel or feature by its mean and std in the training split.
            augment: Random crops and flips.
            test_fraction: Share of held-out examples if there is no test split.
            seed: Seed of the choice of held-out examples.
            dtype: Floating-point dtype of inputs other than uint8 images, and of regression targets.
        """
        if task not in TASKS:
            raise InputError(unknown_name("task", task, TASKS))
        train = Split(inputs("x", x, dtype), targets("y", y, task, dtype))
        check_lengths("x and y", train.x, train.y)
        if (x_test is None) != (y_test is None):
            raise InputError("pass both x_test and y_test, or neither (then test_fraction of the data is held out)")
        if x_test is None:
            remaining, held_out = _held_out(len(train), test_fraction, seed)
            train, test = train.select(remaining), train.select(held_out)
        else:
            test = Split(inputs("x_test", x_test, dtype), targets("y_test", y_test, task, dtype))
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
    def target_scale(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the targets of a regression on a table, by which networks scale their outputs."""
        if self.schema is None or self.task != "regression":
            return None
        return self.schema.target.mean, self.schema.target.std

    @property
    def n_train(self) -> int:
        """Number of training examples."""
        return len(self.train)

    def provenance(self) -> dict[str, Any]:
        """Name, source, sizes and checksums, as a result records them (JSON-serialisable)."""
        return {
            "name": self.name,
            "source": self.source,
            "verified": self.verified,
            "n_train": len(self.train),
            "n_test": len(self.test),
            "checksums": dict(self.checksums),
            **({} if self.origin is None else {"origin": self.origin.to_json()}),
        }

    def prepare(self, x: Any, *, seed: int = 0, epoch: int = 0, indices: Tensor | None = None) -> Tensor:
        """Turn a raw batch into network input: augment it if ``indices`` are given (training), then normalise it.

        Args:
            x: A batch of raw inputs as in ``train.x``: a tensor, which stays on its device, or a numpy array.
            seed: Seed of the run.
            epoch: Current epoch.
            indices: Positions of the batch in the training set, see :func:`ltnode.data.augment.augmentation_offsets`;
                None (evaluation) for no augmentation.
        """
        if not isinstance(x, Tensor):
            x = inputs("x", x, self.train.x.dtype if self.train.x.is_floating_point() else torch.get_default_dtype())
        x = resident(x)
        if indices is not None and self.augment is not None:
            x = self.augment.apply(x, seed=seed, epoch=epoch, indices=indices)
        return x if self.normalise is None else self.normalise.apply(x)

    def subset(self, n: int, seed: int = 0) -> Dataset:
        """The same problem with ``n`` random training examples and the full test split."""
        if not 1 <= n <= self.n_train:
            raise InputError(
                f"{self.name}: the size of a subset must lie in 1..{self.n_train}, the number of training examples, not {n}"
            )
        if n == self.n_train:
            return self
        return self.with_train(_permutation(self.n_train, seed)[:n].sort().values)

    def with_validation(self, fraction: float, seed: int = 0) -> tuple[Dataset, Split]:
        """Hold out a random ``fraction`` of the training examples: the data set with the rest, and the validation split."""
        remaining, held_out = _held_out(self.n_train, fraction, seed)
        return self.with_train(remaining), self.train.select(held_out)

    def with_train(self, indices: Tensor) -> Dataset:
        """The same problem with the training examples at some positions, whose md5 becomes one of the checksums."""
        return replace(
            self,
            train=self.train.select(indices),
            checksums={**self.checksums, "train_indices": positions_md5(indices)},
            parts=None if self.parts is None else self.parts.within(indices),
        )


def checksums(train: Split, test: Split) -> dict[str, str]:
    """The md5 of each resident array's bytes in memory order, as ``{"train_x": "md5:...", ...}``."""
    arrays = {"train_x": train.x, "train_y": train.y, "test_x": test.x, "test_y": test.y}
    resident = {key: value for key, value in arrays.items() if not isinstance(value, StreamedTensor)}
    return {key: f"md5:{array_md5(value.numpy())}" for key, value in resident.items()}


def array_md5(array: NDArray[Any]) -> str:
    """The md5 of an array's bytes in C order."""
    return hashlib.md5(np.ascontiguousarray(array).data, usedforsecurity=False).hexdigest()


def _permutation(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def _held_out(n: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices of the remaining and of the held-out examples, at least one each; sorted for sequential reads of memory maps."""
    if not 0 < fraction < 1:
        raise InputError(f"the held-out fraction must lie strictly between 0 and 1, not {fraction}")
    parts = split_parts(n, fraction, 0.0, seed)
    return parts.fit, parts.validation
