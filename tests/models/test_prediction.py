"""`Prediction` is the one place that says what a prediction means: averages, entropies, intervals, joined batches."""

from __future__ import annotations

import pytest
import torch

from ltnode import metrics
from ltnode.models import Prediction


def classes(generator: torch.Generator, inputs: int = 6, scale: float = 3.0) -> Prediction:
    """Random logits of 5 members for 4 classes."""
    return Prediction("classification", scale * torch.randn(5, inputs, 4, generator=generator), torch.linspace(0.2, 1, 5))


def test_float64_agrees_with_the_metrics(generator: torch.Generator) -> None:
    """Reference: `metrics.uncertainty_split` on the members' probabilities; 1e-15 is the rounding of another order of sums."""
    prediction = classes(generator).to(torch.float64)
    split = metrics.uncertainty_split(prediction.member_probs)
    for name, expected in zip(("entropy", "aleatoric", "epistemic"), split, strict=True):
        torch.testing.assert_close(getattr(prediction, name), expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(prediction.log_probs.exp(), prediction.probs, rtol=1e-14, atol=0)


@pytest.mark.parametrize("scale", [0.0, 1e3, 1e6])
def test_rounding_never_leaves_the_valid_range(generator: torch.Generator, scale: float) -> None:
    """Certain predictions: probabilities of at most 1, entropies of at least 0 and without a sign."""
    prediction = classes(generator, inputs=200, scale=scale)
    assert float(prediction.probs.max()) <= 1.0
    for value in (prediction.entropy, prediction.aleatoric, prediction.epistemic):
        assert float(value.min()) >= 0.0
        assert not bool(torch.signbit(value).any())


def test_the_interval_holds_its_share_of_the_gaussian() -> None:
    """Members 1 and 3 with noise 1: mean 2, total variance 1 + 1; reference torch.distributions to 1e-12."""
    outputs = torch.tensor([1.0, 3.0], dtype=torch.float64)[:, None, None]
    prediction = Prediction("regression", outputs, torch.ones(2), noise=torch.ones((), dtype=torch.float64))
    normal = torch.distributions.Normal(torch.tensor(2.0, dtype=torch.float64), 2**0.5)
    for coverage in (0.5, 0.9):
        low, high = prediction.interval(coverage)
        assert float(normal.cdf(high) - normal.cdf(low)) == pytest.approx(coverage, abs=1e-12)
        assert float(low + high) == pytest.approx(4.0, abs=1e-12)


def test_batches_are_joined_in_order(generator: torch.Generator) -> None:
    """Shared times stay shared; times that differ between batches become one set per input."""
    first, second = classes(generator, 2), classes(generator, 3)
    joined = Prediction.cat([first, second])
    assert torch.equal(joined.probs, torch.cat([first.probs, second.probs]))
    assert torch.equal(joined.times, first.times)
    other = Prediction("classification", second.outputs, 2 * second.times)
    times = Prediction.cat([first, other]).times
    assert times.shape == (5, 5)
    assert torch.equal(times[:, 2:], 2 * second.times[:, None].expand(5, 3))


def test_the_repr_is_one_short_line(generator: torch.Generator) -> None:
    assert repr(classes(generator)) == "Prediction(classification: 6 inputs, 5 members, 4 classes)"
    assert repr(Prediction("regression", torch.zeros(2, 3, 1), torch.ones(2))) == "Prediction(regression: 3 inputs, 2 members)"
