"""Metrics of class probabilities compared with scikit-learn, torchmetrics and hand-computed cases, and their properties.

Sums run in float64 over few terms, so two correct evaluations agree to about 1e-15 per term; the tolerance is 1e-12, or 1e-6 if
the reference uses float32.
"""

from __future__ import annotations

import doctest
import importlib
import itertools
import math
import pkgutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics
from torchmetrics.functional.classification import multiclass_calibration_error

from ltnode import metrics
from ltnode.errors import InputError

EXACT = 1e-12

SCALARS = (
    metrics.error,
    metrics.log_likelihood,
    metrics.brier,
    metrics.brier_mean_over_classes,
    metrics.ece,
    metrics.adaptive_ece,
    metrics.classwise_ece,
    metrics.aurc,
    metrics.misclassification_auroc,
)


@st.composite
def predictions(draw: st.DrawFn, max_examples: int = 25) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities with few distinct values, so that ties, zeros, ones and missing classes are common."""
    classes = draw(st.integers(2, 4))
    row = st.lists(st.integers(0, 3), min_size=classes, max_size=classes).filter(any)
    weights = torch.tensor(draw(st.lists(row, min_size=1, max_size=max_examples)), dtype=torch.float64)
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=len(weights), max_size=len(weights)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    return (weights / weights.sum(1, keepdim=True)).to(dtype), torch.tensor(labels)


def soft_predictions(n: int = 500, classes: int = 10, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Generic float64 predictions without ties, about half of them correct."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    logits = 1.5 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), labels] += 2.0
    return logits.softmax(1), labels


@pytest.mark.parametrize("module", [name for _, name, _ in pkgutil.iter_modules(metrics.__path__)])
def test_examples_in_docstrings_are_true(module):
    result = doctest.testmod(importlib.import_module(f"ltnode.metrics.{module}"))
    assert result.failed == 0


def test_every_metric_has_an_example():
    functions = [getattr(metrics, name) for name in metrics.__all__ if name[0].islower()]
    assert [f.__name__ for f in functions if ">>> " not in f.__doc__] == []


def test_numpy_arrays_are_accepted():
    """Equal to the tensors, also for read-only and reversed arrays."""
    probs, labels = soft_predictions(50)
    p, y = probs.numpy()[::-1], labels.numpy()[::-1]
    p.flags.writeable = False
    for function in SCALARS:
        assert function(p, y) == pytest.approx(function(probs, labels), abs=EXACT)
    assert metrics.auroc(p[:, 0], scores_out=p[:, 1]) == metrics.auroc(probs[:, 0], probs[:, 1])
    assert metrics.rmse(p, p) == 0


def test_scores_equal_scikit_learn():
    """Error, log-likelihood and Brier score agree with scikit-learn on generic predictions."""
    probs, labels = soft_predictions()
    p, y = probs.numpy(), labels.numpy()
    assert metrics.error(probs, labels) == pytest.approx(1 - sklearn_metrics.accuracy_score(y, p.argmax(1)), abs=EXACT)
    assert metrics.log_likelihood(probs, labels) == pytest.approx(-sklearn_metrics.log_loss(y, p), abs=EXACT)
    one_vs_rest = [sklearn_metrics.brier_score_loss(y == c, p[:, c]) for c in range(10)]
    assert metrics.brier(probs, labels) == pytest.approx(sum(one_vs_rest), abs=EXACT)
    assert metrics.brier_mean_over_classes(probs, labels) == pytest.approx(np.mean(one_vs_rest), abs=EXACT)


def test_scores_by_hand():
    """Two examples computed by hand."""
    probs, labels = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], dtype=torch.float64), torch.tensor([0, 1])
    assert metrics.error(probs, labels) == 0.5
    assert metrics.log_likelihood(probs, labels) == pytest.approx((math.log(0.5) + math.log(0.2)) / 2, abs=EXACT)
    assert metrics.brier(probs, labels) == pytest.approx((0.375 + 1.14) / 2, abs=EXACT)
    expected = [1.5 * math.log(2), -0.1 * math.log(0.1) - 0.2 * math.log(0.2) - 0.7 * math.log(0.7)]
    assert metrics.entropy(probs).tolist() == pytest.approx(expected, abs=EXACT)


def test_log_likelihood_of_an_impossible_label_is_the_floor():
    """p_y = 0 is replaced by 1e-40, also in float32, where 1e-40 is subnormal."""
    probs = torch.tensor([[1.0, 0.0]])
    assert metrics.log_likelihood(probs, torch.tensor([1])) == pytest.approx(math.log(1e-40), abs=EXACT)


def test_accumulation_is_float64():
    """The mean of 3e5 float32 values is accurate to 1e-12, unlike a float32 sum."""
    probs = torch.tensor([[0.1, 0.9]]).repeat(300_000, 1)
    value = metrics.log_likelihood(probs, torch.zeros(300_000, dtype=torch.long))
    assert value == pytest.approx(math.log(float(np.float32(0.1))), abs=EXACT)


@given(predictions())
def test_scores_stay_in_their_bounds(case):
    """Values lie in their documented ranges; only misclassification_auroc may be NaN, if all or no predictions are correct."""
    probs, labels = case
    classes, slack = probs.shape[1], 1e-6
    assert 0 <= metrics.error(probs, labels) <= 1
    assert math.log(1e-40) - slack <= metrics.log_likelihood(probs, labels) <= 0
    assert 0 <= metrics.brier(probs, labels) <= 2 + slack
    for function in (metrics.ece, metrics.adaptive_ece, metrics.classwise_ece):
        assert 0 <= function(probs, labels) <= 1 + slack
    assert 0 <= metrics.aurc(probs, labels) <= 1
    entropies = metrics.entropy(probs)
    assert bool(((entropies >= 0) & (entropies <= math.log(classes) + slack)).all())
    if metrics.error(probs, labels) in (0, 1):
        assert math.isnan(metrics.misclassification_auroc(probs, labels))


@given(predictions(), st.randoms(use_true_random=False))
def test_order_of_the_examples_does_not_matter(case, random):
    """The order does not matter even with ties, which makes all values reproducible."""
    probs, labels = case
    order = list(range(len(labels)))
    random.shuffle(order)
    for function in SCALARS:
        assert function(probs[order], labels[order]) == pytest.approx(function(probs, labels), abs=EXACT, nan_ok=True), function
    half = (len(labels) + 1) // 2
    shuffled = metrics.rejection_curve(probs[order], labels[order], probs[order][:half])
    straight = metrics.rejection_curve(probs, labels, probs[order][:half])
    torch.testing.assert_close(shuffled.accuracy, straight.accuracy, atol=EXACT, rtol=0)


@given(predictions())
def test_perfect_and_constant_predictors(case):
    """A perfect predictor has ideal scores; a constant one has the calibration error |accuracy - confidence|."""
    probs, labels = case
    classes = probs.shape[1]
    perfect = torch.nn.functional.one_hot(labels, classes).to(probs.dtype)
    for function in SCALARS[:-1]:
        assert function(perfect, labels) == 0, function
    assert metrics.entropy(perfect).abs().max() == 0
    constant = torch.full((len(labels), classes), 0.3 / (classes - 1), dtype=torch.float64)
    constant[:, 0] = 0.7
    gap = abs((labels == 0).double().mean().item() - 0.7)
    assert metrics.ece(constant, labels) == pytest.approx(gap, abs=EXACT)
    assert metrics.adaptive_ece(constant, labels) == pytest.approx(gap, abs=EXACT)
    assert metrics.aurc(constant, labels) == pytest.approx(metrics.error(constant, labels), abs=EXACT)


def test_equal_maxima_predict_the_lowest_class():
    """A uniform prediction has a well-defined class, independent of argmax on a device."""
    probs = torch.full((4, 4), 0.25)
    assert metrics.error(probs, torch.arange(4)) == 0.75
    assert metrics.error(probs[:1], torch.tensor([0])) == 0


# Entropy and its decomposition


@given(predictions(), predictions())
def test_uncertainty_splits_into_two_non_negative_parts(first, second):
    """total = aleatoric + epistemic with both >= 0; identical members have no epistemic part."""
    n, classes = min(len(first[1]), len(second[1])), min(first[0].shape[1], second[0].shape[1])
    members = torch.stack([p[:n, :classes].double() + 0.1 for p in (first[0], second[0])])
    members = members / members.sum(-1, keepdim=True)
    split = metrics.uncertainty_split(members)
    torch.testing.assert_close(split.total, split.aleatoric + split.epistemic, atol=EXACT, rtol=0)
    torch.testing.assert_close(split.total, metrics.entropy(members.mean(0)), atol=EXACT, rtol=0)
    assert bool((split.epistemic >= 0).all())
    agreeing = metrics.uncertainty_split(members[:1].expand(3, -1, -1))
    assert 0 <= agreeing.epistemic.min() <= agreeing.epistemic.max() < EXACT


def test_certain_members_that_disagree_are_purely_epistemic():
    """Two one-hot members: the mutual information is ln 2, the aleatoric part 0; computed by hand."""
    split = metrics.uncertainty_split(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    assert split.aleatoric.item() == 0
    assert split.epistemic.item() == pytest.approx(math.log(2), abs=EXACT)


def test_entropy_takes_any_leading_shape_and_is_differentiable():
    """(S, B, C) -> (S, B), and the gradient is -(ln p + 1)."""
    probs = torch.tensor([[[0.2, 0.8], [0.5, 0.5]]], dtype=torch.float64, requires_grad=True)
    metrics.entropy(probs).sum().backward()
    torch.testing.assert_close(probs.grad, -(probs.detach().log() + 1), atol=EXACT, rtol=0)


# Calibration


@pytest.mark.parametrize("n_bins", [10, 15])
def test_ece_equals_torchmetrics_away_from_one(n_bins):
    """Generic predictions avoid the bin edges, where the conventions differ; torchmetrics uses float32."""
    probs, labels = soft_predictions(n=2000)
    assert probs.max() < 1
    oracle = multiclass_calibration_error(probs, labels, num_classes=10, n_bins=n_bins, norm="l1")
    assert metrics.ece(probs, labels, n_bins) == pytest.approx(oracle.item(), abs=1e-6)


def test_ece_puts_probability_one_into_the_last_bin():
    """By hand: 1.0 and 0.95 both lie in [0.9, 1], with accuracy 1/2 and confidence 0.975. torchmetrics separates them: 0.525."""
    probs, labels = torch.tensor([[1.0, 0.0], [0.95, 0.05]], dtype=torch.float64), torch.tensor([1, 0])
    assert metrics.ece(probs, labels) == pytest.approx(0.475, abs=EXACT)
    assert multiclass_calibration_error(probs, labels, num_classes=2, n_bins=10).item() == pytest.approx(0.525)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_an_edge_belongs_to_the_bin_above_in_every_dtype(dtype):
    """0.5, 0.6, ..., 0.9 rounded to the dtype fall into bins 5..9, although float32 0.7 is smaller than float64 0.7."""
    top = torch.tensor([0.5, 0.6, 0.7, 0.8, 0.9], dtype=dtype)
    table = metrics.reliability(torch.stack([top, 1 - top], 1), torch.zeros(5, dtype=torch.long))
    assert table.counts.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]


@given(predictions(), st.integers(1, 12))
def test_reliability_table_adds_up(case, n_bins):
    """Counts, hits and confidence of the bins sum to those of the data, empty bins are NaN, and ece follows from the table."""
    probs, labels = case
    table = metrics.reliability(probs, labels, n_bins)
    full = table.counts > 0
    assert table.counts.sum() == len(labels)
    assert bool(table.accuracy[~full].isnan().all()) and bool(table.confidence[~full].isnan().all())
    hits, mass = (table.counts * table.accuracy)[full].sum(), (table.counts * table.confidence)[full].sum()
    assert hits.item() / len(labels) == pytest.approx(1 - metrics.error(probs, labels), abs=EXACT)
    assert mass.item() == pytest.approx(probs.double().amax(1).sum().item(), abs=EXACT * len(labels))
    slack = 1e-6  # the table has float64 edges, the bins use the dtype of the probabilities
    inside = (table.confidence >= table.lower - slack) & (table.confidence <= table.upper + slack)
    assert bool(inside[full].all())
    gap = (table.counts * (table.accuracy - table.confidence).abs())[full].sum().item()
    assert metrics.ece(probs, labels, n_bins) == pytest.approx(gap / len(labels), abs=EXACT)


@pytest.mark.parametrize("n", [7, 500, 503])
def test_adaptive_ece_equals_a_plain_loop(n):
    """Without ties, equal to numpy.array_split of the sorted examples; also with fewer examples than bins."""
    probs, labels = soft_predictions(n)
    confidence = probs.amax(1).numpy()
    order = confidence.argsort()
    correct = (probs.argmax(1) == labels).numpy()[order]
    pairs = zip(np.array_split(confidence[order], 10), np.array_split(correct, 10), strict=True)
    oracle = sum(len(c) / n * abs(c.mean() - h.mean()) for c, h in pairs if len(c))
    assert metrics.adaptive_ece(probs, labels) == pytest.approx(oracle, abs=EXACT)


def test_classwise_ece_equals_binary_ece_per_class():
    """The definition as a plain loop over classes and bins; class 9 has no examples."""
    probs, labels = soft_predictions()
    labels = labels.clamp_max(8)
    total = 0.0
    for c in range(10):
        p, hit = probs[:, c].numpy(), (labels == c).numpy()
        bins = np.minimum((p * 10).astype(int), 9)
        total += sum(abs(hit[bins == b].sum() - p[bins == b].sum()) for b in range(10)) / len(p)
    assert metrics.classwise_ece(probs, labels) == pytest.approx(total / 10, abs=EXACT)


# Temperature and conformal sets


@pytest.mark.parametrize("true_temperature", [0.5, 1.0, 3.0])
def test_fit_temperature_finds_the_minimum(true_temperature):
    """The result is a local maximum of the likelihood; 20,000 labels drawn at T recover T to 5 % (5 standard errors)."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(20_000, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial((logits / true_temperature).softmax(1), 1, generator=generator).squeeze(1)
    log_probs = logits.log_softmax(1)
    fitted = metrics.fit_temperature(log_probs, labels)
    assert fitted == pytest.approx(true_temperature, rel=0.05)

    def score(t: float) -> float:
        return metrics.log_likelihood(metrics.apply_temperature(log_probs, t).exp(), labels)

    assert score(fitted) > max(score(fitted * 0.999), score(fitted * 1.001))
    assert metrics.fit_temperature(metrics.apply_temperature(log_probs, fitted), labels) == pytest.approx(1, abs=1e-6)


def test_fit_temperature_without_a_minimum_stays_in_its_range():
    """Always right gives the lowest, always wrong the highest temperature; log-probabilities may be -inf."""
    log_probs = torch.tensor([[0.0, -math.inf], [-0.1, -2.0]])
    assert metrics.fit_temperature(log_probs, torch.tensor([0, 0])) == 1e-2
    assert metrics.fit_temperature(log_probs, torch.tensor([1, 1])) == 1e2


def test_conformal_threshold_by_hand():
    """n = 9, alpha = 0.1: rank ceil(10 * 0.9) = 9, the largest score; with 8 examples the level cannot be reached."""
    p = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)
    probs, labels = torch.stack([p, 1 - p], 1), torch.zeros(9, dtype=torch.long)
    assert metrics.conformal_threshold(probs, labels, 0.1) == pytest.approx(0.9, abs=EXACT)
    assert metrics.conformal_threshold(probs, labels, 0.5) == pytest.approx(0.5, abs=EXACT)
    assert metrics.conformal_threshold(probs[:8], labels[:8], 0.1) == math.inf
    assert bool(metrics.prediction_sets(probs, math.inf).all())


@given(predictions(), st.sampled_from([0.05, 0.1, 0.3, 0.5]))
def test_conformal_sets_cover_the_calibration_data(case, alpha):
    """On the calibration data, the threshold covers at least ceil((n + 1)(1 - alpha)) examples, also with ties."""
    probs, labels = case
    sets = metrics.prediction_sets(probs, metrics.conformal_threshold(probs, labels, alpha))
    covered = int(sets[torch.arange(len(labels)), labels].sum())
    assert covered >= min((len(labels) + 1) * (1 - alpha) - 1e-9, len(labels))


def test_conformal_coverage_on_fresh_data():
    """The expected coverage is in [1 - alpha, 1 - alpha + 1/(n + 1)]; 4000 + 4000 examples: within 4 deviations (0.027)."""
    probs, labels = soft_predictions(8000)
    threshold = metrics.conformal_threshold(probs[:4000], labels[:4000], 0.1)
    hit = metrics.prediction_sets(probs[4000:], threshold)[torch.arange(4000), labels[4000:]]
    assert hit.double().mean().item() == pytest.approx(0.9, abs=0.027)


# Selective prediction


@given(predictions(max_examples=6))
def test_risk_coverage_is_the_expectation_over_the_order_of_ties(case):
    """Reference: the average over all permutations that are sorted by confidence."""
    probs, labels = case
    confidence = probs.amax(1).tolist()
    wrong = [metrics.error(probs[i : i + 1], labels[i : i + 1]) for i in range(len(labels))]
    sorted_orders = [
        order
        for order in itertools.permutations(range(len(labels)))
        if all(confidence[a] >= confidence[b] for a, b in itertools.pairwise(order))
    ]
    risks = np.mean([np.cumsum([wrong[i] for i in order]) for order in sorted_orders], axis=0)
    curve = metrics.risk_coverage(probs, labels)
    steps = np.arange(1, len(labels) + 1)
    np.testing.assert_allclose(curve.risk.numpy(), risks / steps, atol=EXACT)
    np.testing.assert_allclose(curve.coverage.numpy(), steps / len(labels), atol=EXACT)
    assert metrics.aurc(probs, labels) == pytest.approx(np.mean(risks / steps), abs=EXACT)


def test_risk_coverage_takes_another_confidence():
    """If the confidence is an oracle for the errors, the risk is 0 until only errors remain."""
    probs, labels = soft_predictions(200)
    right = (probs.argmax(1) == labels).double()
    curve = metrics.risk_coverage(probs, labels, confidence=right)
    assert curve.risk[: int(right.sum())].max() == 0
    assert curve.risk[-1].item() == pytest.approx(metrics.error(probs, labels), abs=EXACT)


def test_misclassification_auroc_equals_scikit_learn():
    """The score is the largest probability or the negative entropy."""
    probs, labels = soft_predictions()
    right = (probs.argmax(1) == labels).numpy()
    oracle = sklearn_metrics.roc_auc_score(right, probs.amax(1).numpy())
    assert metrics.misclassification_auroc(probs, labels) == pytest.approx(oracle, abs=EXACT)
    score = -metrics.entropy(probs)
    oracle = sklearn_metrics.roc_auc_score(right, score.numpy())
    assert metrics.misclassification_auroc(probs, labels, score) == pytest.approx(oracle, abs=EXACT)


@given(predictions())
def test_confidence_curve_equals_its_definition(case):
    """Number and accuracy of the predictions with max p >= tau, by a loop in the dtype of the probabilities."""
    probs, labels = case
    curve = metrics.confidence_curve(probs, labels)
    top, right = probs.amax(1), probs.argmax(1) == labels
    for k in (0, 25, 33, 34, 50, 67, 75, 99, 100):
        retained = top >= torch.tensor(k / 100, dtype=probs.dtype)
        assert curve.threshold[k] == k / 100
        assert curve.counts[k] == retained.sum()
        # argmax may break ties differently, so compare only if the maximum is unique
        if bool(((probs == top[:, None]).sum(1) == 1).all()):
            expected = right[retained].double().mean().item()
            assert curve.accuracy[k].item() == pytest.approx(expected, abs=EXACT, nan_ok=True)


def test_rejection_curve_equals_a_plain_loop():
    """The definition for sets of unequal size without ties: pool, count OOD as wrong, sort by entropy, reject the largest."""
    probs, labels = soft_predictions(300)
    outside = soft_predictions(417, seed=1)[0]
    pooled = torch.cat([probs, outside])
    wrong = np.concatenate([(probs.argmax(1) != labels).numpy(), np.ones(417)])
    wrong = wrong[metrics.entropy(pooled).numpy().argsort()]
    curve = metrics.rejection_curve(probs, labels, outside)
    assert len(curve.rejected) == 200
    assert curve.rejected[-1].item() == pytest.approx(0.995, abs=EXACT)
    for k in range(200):
        retained = 717 - k * 717 // 200
        assert curve.accuracy[k].item() == pytest.approx(1 - wrong[:retained].mean(), abs=EXACT)


def test_rejection_of_certain_ood_points_cannot_help():
    """If all entropies are 0, the accuracy is the share of correct in-distribution points at every rejection rate."""
    curve = metrics.rejection_curve(torch.eye(2), torch.tensor([0, 0]), torch.eye(2))
    torch.testing.assert_close(curve.accuracy, torch.full((200,), 0.25, dtype=torch.float64), atol=EXACT, rtol=0)


def test_entropy_histogram_equals_numpy():
    """numpy.histogram has the same bins [lo, hi) with the last one closed; the range includes ln 10."""
    values = metrics.entropy(soft_predictions(1000)[0])
    values = torch.cat([values, torch.tensor([0.0, 2.5, math.log(10)], dtype=torch.float64)])
    histogram = metrics.entropy_histogram(values)
    counts, edges = np.histogram(values.numpy(), bins=np.arange(251) / 100)
    np.testing.assert_array_equal(histogram.counts.numpy(), counts)
    np.testing.assert_allclose(histogram.edges.numpy(), edges, atol=EXACT)
    assert metrics.entropy_histogram(torch.tensor([3.2]), upper=4).counts.sum() == 1


# Invalid input


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("probs", "labels", "match"),
    [
        (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), "0..1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([-1]), "0..1"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0.0]), "integers"),
        (torch.tensor([[0.5, 0.5]]), torch.tensor([0, 1]), "shape"),
        (torch.tensor([[0.5, 0.5]]), [0], "torch.Tensor"),
        (torch.tensor([[2.0, -1.0]]), torch.tensor([0]), r"\[0, 1\]"),
        (torch.tensor([[math.nan, 1.0]]), torch.tensor([0]), r"\[0, 1\]"),
        (torch.tensor([[0.5, 0.4]]), torch.tensor([0]), "sum to 1"),
        (torch.tensor([0.5, 0.5]), torch.tensor([0]), "dimension"),
        (torch.tensor([[1, 0]]), torch.tensor([0]), "floating"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "empty"),
        ([[0.5, 0.5]], torch.tensor([0]), "torch.Tensor"),
        (np.array([["0.5", "0.5"]]), torch.tensor([0]), "torch.Tensor"),
    ],
)
def test_bad_predictions_are_refused(probs, labels, match):
    """Every metric of (probs, labels) rejects invalid predictions with a message that states the requirement."""
    for function in (*SCALARS, metrics.reliability, metrics.risk_coverage, metrics.confidence_curve):
        with pytest.raises(InputError, match=match):
            function(probs, labels)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda p, y: metrics.ece(p, y, n_bins=0), "n_bins"),
        (lambda p, y: metrics.aurc(p, y, torch.zeros(3)), "confidence"),
        (lambda p, y: metrics.conformal_threshold(p, y, alpha=1.0), "alpha"),
        (lambda p, y: metrics.prediction_sets(p, math.nan), "threshold"),
        (lambda p, y: metrics.apply_temperature(p.log(), 0.0), "temperature"),
        (lambda p, y: metrics.fit_temperature(torch.tensor([[math.nan, 0.0]]), y[:1]), "log_probs"),
        (lambda p, y: metrics.rejection_curve(p, y, torch.full((1, 4), 0.25)), "classes"),
        (lambda p, y: metrics.entropy_histogram(torch.tensor([2.6])), "upper"),
        (lambda p, y: metrics.entropy_histogram(torch.tensor([1.0]), width=0.0), "width"),
        (lambda p, y: metrics.uncertainty_split(p), "dimension"),
        (lambda p, y: metrics.entropy(torch.tensor(1.0)), "classes"),
    ],
)
def test_bad_options_are_refused(call, match):
    """The message names the option that is out of range."""
    with pytest.raises(InputError, match=match):
        call(torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([0, 1]))


@pytest.mark.gpu
def test_a_cuda_device_gives_the_same_numbers():
    """The same float64 arithmetic with labels on the CPU; sums may be ordered differently (1e-12)."""
    probs, labels = soft_predictions(2000)
    for function in SCALARS:
        assert function(probs.cuda(), labels) == pytest.approx(function(probs, labels), abs=EXACT)
    on_device = metrics.rejection_curve(probs.cuda(), labels, probs.cuda()[:500])
    on_host = metrics.rejection_curve(probs, labels, probs[:500])
    torch.testing.assert_close(on_device.accuracy.cpu(), on_host.accuracy, atol=EXACT, rtol=0)
