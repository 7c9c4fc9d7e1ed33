"""``paper/published.toml`` compared with the paper, and look-ups of values that the paper does not print."""

from __future__ import annotations

from pathlib import Path

import pytest

from ltnode.report.published import read_values
from paper.reproduce.published import PaperValues, Printed

FILE = Path(__file__).parents[2] / "paper" / "published.toml"
MODELS = ["node", "sde-net", "node-gp", "uni-node", "lt-node", "alt-node"]


@pytest.fixture(scope="module")
def published() -> PaperValues:
    return PaperValues(read_values(FILE))


@pytest.mark.parametrize("data", ["mnist", "fashion-mnist", "cifar10", "svhn"])
def test_all_six_models_have_size_and_error_on_every_set(published, data):
    assert list(published.value("generalisation", data)) == MODELS
    for model in MODELS:
        assert 0.2 < published.parameters_in_millions(data, model) < 0.5
        error = published.error(data, model)
        assert 0 <= error.std < error.mean < 0.2


def test_the_column_sums_of_the_tables_are_right(published):
    """A transcription error would change a sum; the sums were computed from the paper's source and are exact up to rounding."""
    sums = {"mnist": 0.032, "fashion-mnist": 0.427, "cifar10": 0.780, "svhn": 0.280}
    for data, expected in sums.items():
        assert sum(published.error(data, model).mean for model in MODELS) == pytest.approx(expected, abs=1e-9)
    detection = {
        ("cifar10", "svhn", "auroc"): 498.797,
        ("cifar10", "svhn", "aupr_in"): 465.172,
        ("cifar10", "svhn", "aupr_out"): 534.705,
        ("svhn", "cifar10", "auroc"): 567.375,
        ("svhn", "cifar10", "aupr_in"): 586.475,
        ("svhn", "cifar10", "aupr_out"): 516.633,
    }
    for (data, other, metric), expected in detection.items():
        values = [published.detection(data, other, model, metric) for model in MODELS]
        assert sum(value.mean for value in values) == pytest.approx(expected, abs=1e-9)
    entropies = {("cifar10", "svhn"): 5.045, ("svhn", "cifar10"): 6.991}
    for (data, other), expected in entropies.items():
        values = [published.entropy(data, other, model) for model in MODELS]
        assert sum(value.mean for value in values) == pytest.approx(expected, abs=1e-9)


def test_some_printed_numbers(published):
    assert published.error("cifar10", "lt-node") == Printed(0.131, 0.002)
    assert published.detection("cifar10", "svhn", "node", "aupr_in") == Printed(78.035, 2.239)
    assert published.entropy("svhn", "cifar10", "alt-node") == Printed(1.723, 0.034)
    assert published.gap_entropies["lt-node"] == 2.42
    assert published.learnt_posterior((2.0, 0.5)) == (1.27, 0.98)


def test_what_the_paper_does_not_print_is_none(published):
    assert published.error("imagenet", "node") is None
    assert published.error("mnist", "lt-node-mixture") is None
    assert published.detection("mnist", "fashion-mnist", "node", "auroc") is None
    assert published.learnt_posterior((3.0, 0.5)) is None
    assert PaperValues().value("generalisation", "mnist") is None
    assert PaperValues().gap_entropies == {}
