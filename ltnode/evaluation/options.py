"""The options of an evaluation: one frozen dataclass, saved with the results and compared when they are continued."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, Literal

from ltnode.checks import checked_count
from ltnode.errors import InputError, unknown_name
from ltnode.evaluation.attacks import PAPER_EPSILONS
from ltnode.evaluation.shifts import CORRUPTIONS, PAPER_ROTATIONS


@dataclass(frozen=True)
class EvaluationOptions:
    """How predictions are made and what the protocols vary. Invalid values raise `InputError`.

    Attributes:
        draw: ``"quantile"``: the posterior's quantiles, without randomness; ``"random"``: draws from the posterior, one set for
            the whole evaluation (the paper). None: ``"random"`` for the paper's preset, else ``"quantile"``.
        samples: Number of end-times S per prediction.
        steps: ``"stored"``: the prediction grid of the model; ``"adaptive"``: steps chosen by the error norm of the batch (the
            paper). None: ``"adaptive"`` for the paper's preset, else ``"stored"``.
        batch_size: Examples per prediction. None: 256 for the paper's preset (adaptive steps depend on it), else 512. On CUDA,
            None allows up to 4096 examples if all batches have the same end-times, since predictions on the stored grid do not
            depend on the rest of the batch. Batches with adaptive steps are solved jointly on CUDA, each with its own steps.
        limit: Use only this many examples, the first ones, of every test set.
        draw_seed: Seed of random draws, corruptions and attacks.
        draws: Number of sets of random T over which the spread of clean, out-of-distribution and regression metrics is reported.
        angles: Angles of the rotation protocol, in degrees.
        confidence_angle: Rotation at which confidence curves are computed; it must be one of the angles.
        epsilons: Strengths of FGSM, once in units of the normalised input and once in pixel units (1 = the whole range).
        pgd_epsilons: Strengths of PGD, in units of the normalised input.
        pgd_steps: Gradient steps of PGD, each 2.5 epsilon / pgd_steps long.
        pgd_restarts: Number of random starts of PGD.
        corruptions: Names of the corruptions.
        severities: Severities of the corruptions, 1 to 5.
        alphas: Allowed miscoverage of conformal sets.
        levels: Nominal coverage of regression intervals.
        entropy_interval: Interval of a 1-D input over which the entropy of a regression is averaged.
    """

    draw: Literal["quantile", "random"] | None = None
    samples: int = 10
    steps: Literal["stored", "adaptive"] | None = None
    batch_size: int | None = None
    limit: int | None = None
    draw_seed: int = 0
    draws: int = 5
    angles: tuple[int, ...] = PAPER_ROTATIONS
    confidence_angle: int = 45
    epsilons: tuple[float, ...] = PAPER_EPSILONS
    pgd_epsilons: tuple[float, ...] = (0.05, 0.1, 0.2)
    pgd_steps: int = 10
    pgd_restarts: int = 2
    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    alphas: tuple[float, ...] = (0.1, 0.05)
    levels: tuple[float, ...] = (0.5, 0.9, 0.95)
    entropy_interval: tuple[float, float] = (-0.5, 0.5)

    def __post_init__(self) -> None:
        _check_choice("draw", self.draw, ("quantile", "random"))
        _check_choice("steps", self.steps, ("stored", "adaptive"))
        for name in ("samples", "batch_size", "limit", "pgd_steps", "pgd_restarts"):
            if getattr(self, name) is not None:
                checked_count(name, getattr(self, name))
        for name in ("draw_seed", "draws"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InputError(f"{name} must be an integer >= 0, not {value!r}")
        for name in ("angles", "epsilons", "pgd_epsilons", "corruptions", "severities", "alphas", "levels"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if not getattr(self, name):
                raise InputError(f"{name} must not be empty")
        for name in ("epsilons", "pgd_epsilons"):
            if not all(math.isfinite(value) and value >= 0 for value in getattr(self, name)):
                raise InputError(f"{name} must be finite numbers >= 0, not {getattr(self, name)}")
        for corruption in self.corruptions:
            if corruption not in CORRUPTIONS:
                raise InputError(unknown_name("corruption", corruption, CORRUPTIONS))
        if self.confidence_angle not in self.angles:
            raise InputError(f"confidence_angle must be one of the angles {self.angles}, not {self.confidence_angle}")
        low, high = self.entropy_interval
        if not low < high:
            raise InputError(f"entropy_interval must be (low, high) with low < high, not {self.entropy_interval}")
        object.__setattr__(self, "entropy_interval", (float(low), float(high)))

    def resolved(self, preset: str | None) -> EvaluationOptions:
        """The options with every default that depends on the preset filled in."""
        paper = preset == "paper"
        return dataclasses.replace(
            self,
            draw=self.draw or ("random" if paper else "quantile"),
            steps=self.steps or ("adaptive" if paper else "stored"),
            batch_size=self.batch_size or (256 if paper else 512),
        )

    def to_json(self) -> dict[str, Any]:
        """All values as JSON types."""
        values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return values

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the values."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    @classmethod
    def of(cls, **values: Any) -> EvaluationOptions:
        """Options from keyword arguments; an unknown name is an error that suggests the nearest one."""
        names = [entry.name for entry in dataclasses.fields(cls)]
        for key in values:
            if key not in names:
                raise InputError(unknown_name("evaluation option", key, names))
        return cls(**values)


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise InputError(unknown_name(name, value, allowed))
