"""Widening of class probabilities: where it goes, and what it never changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ltnode
from ltnode.models.widening import Widening, log_rates, widened_logits


def held_out(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of 3 members that are right in about 80 % of the cases, labels, and distances that are larger for wrong answers."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=generator)
    logits = torch.randn(3, n, 4, generator=generator) + 2.5 * torch.nn.functional.one_hot(y, 4)
    wrong = (logits.softmax(-1).mean(0).argmax(-1) != y).float()
    return logits, y, torch.randn(n, generator=generator) + 2 * wrong


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 1.0))
def test_widening_never_changes_the_most_probable_class(seed, weight):
    """Any logits, any class frequencies, any weight up to 1: the class with the largest mean probability stays the same."""
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(4, 6, 5, generator=generator, dtype=torch.float64)
    frequencies = torch.rand(5, generator=generator, dtype=torch.float64) ** 4 + 1e-3
    w = torch.full((6,), weight, dtype=torch.float64)
    widened = widened_logits(logits, -torch.log1p(-w), log_rates(frequencies / frequencies.sum()))
    assert torch.equal(widened.softmax(-1).mean(0).argmax(-1), logits.softmax(-1).mean(0).argmax(-1))


def test_widened_probabilities_are_a_mixture_with_the_base_rates():
    """The reference is the formula: (1 - w) p + w r, where the top class has at least the largest frequency."""
    logits = torch.tensor([[[2.0, 0.0, 0.0]], [[1.0, 0.5, 0.0]]], dtype=torch.float64)
    frequencies = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
    w = torch.tensor([0.3], dtype=torch.float64)
    rates = torch.tensor([0.7, 0.2, 0.7], dtype=torch.float64) / 1.6
    expected = 0.7 * logits.softmax(-1) + 0.3 * rates
    widened = widened_logits(logits, -torch.log1p(-w), log_rates(frequencies))
    torch.testing.assert_close(widened.softmax(-1), expected, rtol=1e-12, atol=1e-12)
    untouched = widened_logits(logits, torch.zeros(1, dtype=torch.float64), log_rates(frequencies))
    torch.testing.assert_close(untouched.softmax(-1), logits.softmax(-1), rtol=1e-14, atol=0)


def test_one_widened_row_leaves_the_others_exactly_as_they_are():
    """Without any excess nothing is computed; a row without excess is the same next to rows with a finite, or no, distance."""
    logits = 30 * torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    rates = log_rates(torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2]))
    plain = widened_logits(logits, torch.zeros(4), rates)
    mixed = widened_logits(logits, torch.tensor([0.0, 1.0, torch.inf, torch.nan]), rates)
    assert torch.equal(mixed[:, 0], plain[:, 0]) and bool(mixed.isfinite().all())
    torch.testing.assert_close(
        mixed[:, 2:].log_softmax(-1), rates[plain[:, 2:].softmax(-1).mean(0).argmax(-1)].expand(3, 2, 5), rtol=0, atol=2e-6
    )


@pytest.mark.parametrize("n", [60, 1000])
def test_widening_costs_held_out_examples_nothing(n):
    """On the examples on which it is chosen, the log-likelihood falls by at most 0.0005 nats."""
    logits, y, distance = held_out(n)
    widening = Widening()
    widening.fit_classes(logits, y, distance, torch.full((4,), 0.25))
    plain = ltnode.Prediction("classification", logits / widening.temperature, torch.ones(3)).log_probs
    widened = ltnode.Prediction("classification", widening(logits, distance, "classification")[0], torch.ones(3)).log_probs
    change = (widened - plain).gather(1, y[:, None]).mean()
    assert change >= -0.0005 - 1e-6


def test_a_distant_input_gets_the_class_frequencies():
    """At a distance without end, only the raised top class differs from the frequencies."""
    logits, y, distance = held_out(500)
    widening = Widening()
    widening.fit_classes(logits, y, distance, torch.tensor([0.4, 0.3, 0.2, 0.1]))
    far, _ = widening(torch.tensor([[[30.0, 0.0, 0.0, 0.0]]]), torch.tensor([1e6]), "classification")
    torch.testing.assert_close(far.softmax(-1)[0, 0], torch.tensor([0.4, 0.3, 0.2, 0.1]), rtol=1e-4, atol=1e-5)


def test_a_temperature_is_used_only_where_it_clearly_helps():
    """Overconfident logits (three times too large) get a temperature near 3; calibrated ones stay as they are."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 4000, 4, generator=generator)
    y = torch.multinomial(logits[0].softmax(-1), 1, generator=generator).squeeze(1)
    distance = torch.randn(4000, generator=generator)
    calibrated, overconfident = Widening(), Widening()
    calibrated.fit_classes(logits, y, distance, torch.full((4,), 0.25))
    overconfident.fit_classes(3 * logits, y, distance, torch.full((4,), 0.25))
    assert float(calibrated.temperature) == 1.0
    assert 2.5 < float(overconfident.temperature) < 3.6


def test_a_widened_prediction_keeps_its_identities():
    """probs is the mean of member_probs, and the entropy is the sum of its two parts, to float32 rounding."""
    model = ltnode.build("lt-node", ltnode.InputSpec((3,), "classification", 4))
    x, y = torch.randn(200, 3), torch.randint(4, (200,))
    model.fit_familiarity(x[:100], y[:100])
    model.fit_widening(x[100:], y[100:])
    p = model.predict(20 * x)
    assert (p.probs.amax(1) < 0.99).all()
    torch.testing.assert_close(p.probs, p.member_probs.mean(0))
    torch.testing.assert_close(p.entropy, p.aleatoric + p.epistemic, rtol=1e-5, atol=1e-6)
