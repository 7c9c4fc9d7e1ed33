"""What a network must know about its data: the shape of an input, the task, its classes or targets, and their scale."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

from ltnode import data as data_sets
from ltnode.checks import checked_count, is_finite_number
from ltnode.errors import InputError, unknown_name
from ltnode.models.contract import Task


@dataclass(frozen=True)
class InputSpec:
    """Shape of one input, task, and number of classes or targets.

    Attributes:
        shape: (D,) for vectors or (C, H, W) for images.
        task: "classification" or "regression".
        n_classes: Number of classes; None for regression.
        n_targets: Number of real values that a regression predicts.
        target: Mean and standard deviation of the target of a regression, in whose units the model answers; None for several
            targets, and for targets that are already of order 1.
    """

    shape: tuple[int, ...]
    task: Task
    n_classes: int | None = None
    n_targets: int = 1
    target: tuple[float, float] | None = None

    @property
    def is_image(self) -> bool:
        """Whether inputs are images (C, H, W)."""
        return len(self.shape) == 3

    @property
    def n_outputs(self) -> int:
        """Width of the head: one logit per class, or one mean per target."""
        return self.n_classes if self.task == "classification" and self.n_classes else self.n_targets

    def __post_init__(self) -> None:
        shape = self.shape
        if not isinstance(shape, tuple) or len(shape) not in (1, 3) or not all(isinstance(n, int) and n >= 1 for n in shape):
            raise InputError(f"shape must be a tuple, (D,) for vectors or (C, H, W) for images, not {shape!r}")
        if self.task not in get_args(Task):
            raise InputError(unknown_name("task", self.task, get_args(Task)))
        if self.task == "classification" and (self.n_classes is None or self.n_classes < 2):
            raise InputError(f"n_classes must be >= 2 for classification, not {self.n_classes}")
        if checked_count("n_targets", self.n_targets) > 1 and self.task == "classification":
            raise InputError(f"n_targets must be 1 for classification, which has one label per input, not {self.n_targets}")
        if self.task == "regression" and self.n_classes is not None:
            raise InputError(f"n_classes must be None for regression, which has no classes, not {self.n_classes}")
        if self.target is not None:
            self._check_target()

    def _check_target(self) -> None:
        numbers = self.target if isinstance(self.target, tuple) else ()
        finite = all(map(is_finite_number, numbers))
        if self.task != "regression" or self.n_targets > 1 or len(numbers) != 2 or not finite or numbers[1] <= 0:
            raise InputError(f"target must be the mean and the positive std of a single regression target, not {self.target!r}")

    @property
    def scale(self) -> float:
        """Standard deviation of the targets of a regression; 1 if it is unknown."""
        return 1.0 if self.target is None else self.target[1]

    def to_json(self) -> dict[str, Any]:
        """Return the specification as JSON types; what files of earlier versions do not have is omitted where it can be."""
        plain: dict[str, Any] = {"shape": list(self.shape), "task": self.task, "n_classes": self.n_classes}
        several = {"n_targets": self.n_targets} if self.n_targets > 1 else {}
        return {**plain, **several, **({} if self.target is None else {"target": list(self.target)})}


def input_spec(data: str | InputSpec | Any) -> InputSpec:
    """Return the `InputSpec` of a data set, given by its name, as a `Dataset`, or as the specification itself."""
    if isinstance(data, InputSpec):
        return data
    if isinstance(data, str):
        return _spec_of_name(data)
    try:
        n_targets = data.train.y.shape[1:].numel()
        scale = getattr(data, "target_scale", None)
        return InputSpec(tuple(data.input_shape), data.task, data.n_classes, n_targets, scale)
    except AttributeError:
        raise InputError(f"data must be the name of a data set or a Dataset, not {type(data).__name__}") from None


@cache
def _spec_of_name(name: str) -> InputSpec:
    if name not in data_sets.names():
        raise InputError(unknown_name("data set", name, data_sets.names()))
    if name in data_sets.SPECS:  # an image set, whose files need not be there
        images = data_sets.SPECS[name]
        return InputSpec(images.shape, "classification", len(images.class_names))
    return input_spec(data_sets.load(name))
