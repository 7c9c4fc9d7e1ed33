"""The protocols by name: what each one measures and needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from ltnode.evaluation.protocols.adversarial import fgsm, projected_gradient
from ltnode.evaluation.protocols.clean import clean
from ltnode.evaluation.protocols.context import Context
from ltnode.evaluation.protocols.held_out import conformal, temperature
from ltnode.evaluation.protocols.out_of_distribution import ood
from ltnode.evaluation.protocols.regression import regression
from ltnode.evaluation.protocols.shifted import corruption, rotation
from ltnode.evaluation.results import ResultRow

__all__ = ["PROTOCOLS", "Context", "Protocol"]


@dataclass(frozen=True)
class Protocol:
    """A way to test a model.

    Attributes:
        run: Runs the protocol.
        about: Description in one line.
        passes: How often it predicts the test set (or a set of the same size), for a progress bar.
        task: Task of the models that it can test.
        images: Whether it needs images.
        other_set: Whether it needs an out-of-distribution set.
        in_paper: Whether the paper uses it.
    """

    run: Callable[[Context], list[ResultRow]]
    about: str
    passes: Callable[[Context], int]
    task: Literal["classification", "regression"] = "classification"
    images: bool = False
    other_set: bool = False
    in_paper: bool = False


def _draws(context: Context) -> int:
    return len(context.spread_seeds)


PROTOCOLS: Mapping[str, Protocol] = {
    "clean": Protocol(
        clean, "the unchanged test set: all metrics, calibration, cost, spread over draws", lambda c: 1 + _draws(c), in_paper=True
    ),
    "rotation": Protocol(
        rotation, "test images rotated by 0 to 180 degrees", lambda c: len(c.options.angles), images=True, in_paper=True
    ),
    "ood": Protocol(
        ood, "detection of another data set, entropies, rejection", lambda c: 2 * (1 + _draws(c)), other_set=True, in_paper=True
    ),
    "fgsm": Protocol(
        fgsm, "fast gradient sign attack in two units", lambda c: 2 * len(c.options.epsilons), images=True, in_paper=True
    ),
    "pgd": Protocol(
        projected_gradient, "projected gradient attack, in expectation over T", lambda c: len(c.options.pgd_epsilons), images=True
    ),
    "corruption": Protocol(
        corruption,
        "noise, blur, contrast, brightness and JPEG at five severities",
        lambda c: len(c.options.corruptions) * len(c.options.severities),
        images=True,
    ),
    "temperature": Protocol(temperature, "temperature scaling on held-out data", lambda c: 1),
    "conformal": Protocol(conformal, "split-conformal prediction sets", lambda c: 1),
    "regression": Protocol(
        regression, "RMSE, NLL, CRPS, coverage, entropy in an interval", lambda c: 1 + _draws(c), task="regression", in_paper=True
    ),
}
