"""Attacks on the averaged prediction: FGSM in normalised and in pixel units, and PGD in expectation over T.

As in the paper's code, the attack uses one set of random end-times and the evaluation draws new ones: the attacker knows the
posterior, but not its next draws. Quantile end-times are the same for both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import torch

from ltnode import metrics
from ltnode.counter_rng import hash_counters
from ltnode.device import product_precision
from ltnode.evaluation.attacks import gradient_sign, pgd, signed_step
from ltnode.evaluation.predict import ClassPredictions
from ltnode.evaluation.protocols.context import Context
from ltnode.evaluation.results import ResultRow
from ltnode.trained.pixels import pixel_bounds
from ltnode.typing import Tensor

_PGD_STARTS, _PGD_TIMES = 1, 2
"""Separate the random numbers of the starts from those of the end-times."""


def fgsm(context: Context) -> list[ResultRow]:
    """Error and log-likelihood under FGSM; one gradient suffices for every strength and both units.

    ``setting["units"]`` is "normalised" (the paper: epsilon is added to the normalised input) or "pixel" (epsilon is a share of
    the pixel range). ``zero_gradient_share`` is the share of elements that the attack cannot move.
    """
    low, high = pixel_bounds(context.data.normalise)
    predictor, raw, scale = context.predictor, context.test.x, context.data.normalise
    signs, share = _gradient_signs(context)
    rows = [context.row("fgsm", "zero_gradient_share", share, len(context.test))]
    size = predictor.batch_size(raw, fresh=True)
    unmoved: ClassPredictions | None = None
    for units, epsilon in itertools.product(("normalised", "pixel"), context.options.epsilons):
        strength = epsilon if units == "normalised" or scale is None else [epsilon / std for std in scale.std]
        batches = (
            signed_step(x, sign.to(x.dtype), strength, low, high)
            for x, sign in zip(predictor.batches(raw, size), torch.split(signs, size), strict=True)
        )
        if epsilon == 0 and unmoved is not None:  # the same in both units
            predictions = unmoved
            predictor.on_predicted(len(context.test))
        else:
            predictions = predictor.classify_inputs(batches, fresh=True)
        if epsilon == 0:
            unmoved = predictions
        rows += _rows(context, "fgsm", predictions, {"units": units, "epsilon": epsilon})
    return rows


def projected_gradient(context: Context) -> list[ResultRow]:
    """Error and log-likelihood under PGD with random restarts.

    With random end-times, every gradient uses a new draw, so that the attack ascends the expectation over T.
    """
    o = context.options
    rows: list[ResultRow] = []
    for epsilon in o.pgd_epsilons:
        shares: list[float] = []
        predictions = context.predictor.classify_inputs(_pgd_batches(context, epsilon, shares), fresh=True)
        setting = {"units": "normalised", "epsilon": epsilon, "steps": o.pgd_steps, "restarts": o.pgd_restarts}
        rows += _rows(context, "pgd", predictions, setting)
        share = sum(shares) / len(context.test)
        rows.append(context.row("pgd", "zero_gradient_share", share, len(context.test), None, setting))
    return rows


def _labelled_batches(context: Context) -> Iterator[tuple[int, Tensor, Tensor]]:
    assert context.options.batch_size is not None
    labels = torch.split(context.test.y, context.options.batch_size)
    for position, (x, y) in enumerate(zip(context.predictor.batches(context.test.x), labels, strict=True)):
        yield position, x, y


def _gradient_signs(context: Context) -> tuple[Tensor, float]:
    """Signs of the gradients of all test inputs as int8, and the share of zeros among them."""
    predictor, seed = context.predictor, context.options.draw_seed
    signs = []
    with product_precision("fp32"):
        for position, x, y in _labelled_batches(context):
            log_probs = partial(predictor.log_probs, seed=predictor.seed_of(position, seed))
            signs.append(gradient_sign(log_probs, x, y).to(torch.int8))
    every = torch.cat(signs)
    return every, int((every == 0).sum()) / every.numel()


def _pgd_batches(context: Context, epsilon: float, shares: list[float]) -> Iterator[Tensor]:
    """Adversarial batches; the share of zero gradients of each, times its size, is appended to ``shares``."""
    o, predictor = context.options, context.predictor
    low, high = pixel_bounds(context.data.normalise)
    for position, x, y in _labelled_batches(context):
        starts = torch.Generator().manual_seed(hash_counters(o.draw_seed, _PGD_STARTS, position) >> 1)
        calls = itertools.count()

        def log_probs(inputs: Tensor, position: int = position, calls: Iterator[int] = calls) -> Tensor:
            return predictor.log_probs(inputs, hash_counters(o.draw_seed, _PGD_TIMES, position, next(calls)) >> 1)

        stride = 2.5 * epsilon / o.pgd_steps
        attack = pgd(log_probs, x, y, epsilon, o.pgd_steps, stride, o.pgd_restarts, low, high, starts)
        shares.append(attack.zero_gradient_share * x.shape[0])
        yield attack.x


def _rows(context: Context, protocol: str, predictions: ClassPredictions, setting: dict[str, object]) -> list[ResultRow]:
    measures = {"error": metrics.error, "log_likelihood": metrics.log_likelihood}
    rows = context.quality_rows(protocol, predictions, context.test.y, setting, measures)
    entropy = predictions.entropy.mean().item()
    return [*rows, context.row(protocol, "mean_entropy", entropy, len(predictions), predictions.cost, setting)]
