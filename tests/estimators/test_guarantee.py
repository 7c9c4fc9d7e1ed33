"""The guarantee of the familiarity, by simulation of whole trainings: script, record and page, and a smaller simulation."""

from __future__ import annotations

import json

import numpy as np
import pytest
from repository import load_script
from scipy import stats


@pytest.fixture(scope="module")
def guarantee():
    return load_script("benchmarks/guarantee.py")


@pytest.fixture(scope="module")
def record(guarantee):
    return json.loads(guarantee.RECORD.read_text(encoding="utf-8"))


def test_the_page_shows_the_record(guarantee, record):
    """Rendering the record into the page leaves the page unchanged."""
    page = guarantee.PAGE.read_text(encoding="utf-8")
    assert guarantee.render(record, page) == page
    assert page.count(guarantee.BEGIN) == 1


def test_the_record_follows_from_its_rows(guarantee, record):
    """Every case has the same seeds, its own calibration size, and means that are recomputed exactly from the counts."""
    seeds = {name: [row["seed"] for row in record["rows"] if row["case"] == name] for name in guarantee.CASES}
    assert all(found == list(range(len(found))) and len(found) >= 20 for found in seeds.values())
    assert sum(map(len, seeds.values())) == len(record["rows"]) >= 200
    lines = guarantee.summary(record["rows"])
    assert lines == record["summary"]
    assert guarantee.pooled(lines) == record["pooled"]
    assert guarantee.contrasts(record["rows"]) == record["contrasts"]
    assert {"ltnode", "git_commit", "torch", "device"} <= set(record["provenance"])
    assert record["provenance"]["git_modified"] is False


def test_the_recorded_guarantee_holds(record):
    """No mean differs from the exact expected value by more than three standard errors, and shifts and groups void it."""
    judged = [*(line for line in record["summary"] if "z" in line), *record["pooled"]]
    assert len(judged) >= 24 and all(line["holds"] for line in judged)
    shares = {line["contrast"]: line["share"]["0.05"] for line in record["contrasts"]}
    grouped = next(line["mean"] for line in record["summary"] if line["case"] == "grouped rows")
    assert min(shares["shifted rows"], grouped) > 0.2
    assert shares["ranked among new groups"] < 0.1


@pytest.mark.parametrize(("n", "rate", "expected"), [(19, 0.05, 1 / 20), (19, 0.1, 2 / 20), (25, 0.05, 1 / 26), (18, 0.05, 0)])
def test_expected_value_and_standard_error_are_those_of_ranks(guarantee, n, rate, expected):
    """The number of flagged rows is beta-binomial (scipy), with k = floor((n + 1) rate) and n + 1 - k; 1e-12 is rounding."""
    assert guarantee.expected_rate(n, rate) == pytest.approx(expected, abs=1e-12)
    k = round(expected * (n + 1))
    variance = stats.betabinom(500, k, n + 1 - k).var() / 500**2 if k else 0.0
    assert guarantee.standard_error(n, rate, 500, 7) == pytest.approx(np.sqrt(variance / 7), rel=1e-12)


def test_a_simulated_rank_has_the_expected_distribution(guarantee, rng):
    """Without a network: ranks of uniform distances give the mean and standard error of the judge, to 4 % (4,000 tables)."""
    n, new, tables = 19, 50, 4000
    calibration, distances = rng.random((tables, 1, n)), rng.random((tables, new, 1))
    familiarity = (1 + (calibration >= distances).sum(axis=2)) / (n + 1)
    shares = (familiarity <= 0.1).mean(axis=1)
    assert shares.mean() == pytest.approx(guarantee.expected_rate(n, 0.1), rel=0.04)
    assert shares.std() == pytest.approx(guarantee.standard_error(n, 0.1, new, 1), rel=0.04)


@pytest.mark.slow
def test_the_guarantee_holds_in_a_smaller_simulation(guarantee):
    """Four trainings each of six cases, label noise among them, with other seeds than the record.

    Four tables say little about one case, because their shares are skewed to the right. The means over the cases in which the
    guarantee applies differ from their expected values by at most three standard errors of the beta-binomial distribution.
    """
    names = [name for name in guarantee.CASES if "12 columns" in name or "columns" not in name]
    assert len(names) == 6 and sum("label noise" in name for name in names) == 2
    rows = [{"case": name, "seed": seed, **guarantee.simulate(name, seed)} for name in names for seed in range(100, 104)]
    lines = guarantee.summary(rows)
    found = guarantee.pooled(lines)
    assert [line["fits"] for line in found] == [20] * 3 and all(line["holds"] for line in found), found
    assert next(line["mean"] for line in lines if line["case"] == "grouped rows") > 0.2
