"""Distance and flags in evaluations: the fourth score of detection, and the share of examples that are called unfamiliar."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from familiar_models import familiar_run, rows, table_data

from ltnode import metrics
from ltnode.data import Dataset
from ltnode.evaluation import ResultRow, evaluate
from ltnode.trained import TrainedModel


def shifted_data() -> Dataset:
    """Rows five standard deviations away."""
    x = rows(200, 7) + 5.0
    return Dataset.from_arrays(x, (x[:, 0] > 5).long(), name="shifted", class_names=("no", "yes"))


def found(results: list[ResultRow], metric: str, **setting: object) -> float:
    (row,) = [row for row in results if row.metric == metric and dict(row.setting) == setting]
    return row.number


def test_the_distance_is_a_score_and_flags_are_counted(tmp_path: Path) -> None:
    """References: the metrics on the distances of the library, and the rows of the trained model; 1e-6 for float32 sums."""
    trained = TrainedModel.open(familiar_run(tmp_path / "run"))
    data, other = table_data(), shifted_data()
    results = evaluate(trained, data, ["clean", "ood"], ood=other, draws=0)
    inside, outside = (trained.predict(split.x).distance for split in (data.test, other.test))
    assert inside is not None and outside is not None
    where = {"ood": "shifted"}
    for name in ("auroc", "aupr_in", "aupr_out", "fpr95"):
        expected = getattr(metrics, name)(-inside.double(), -outside.double())
        assert found(results, name, **where, score="distance") == pytest.approx(expected, abs=1e-6)
    flagged = [[bool(row.unfamiliar) for row in trained.rows(split.x)] for split in (data.test, other.test)]
    shares = [sum(flags) / len(flags) for flags in flagged]
    assert found(results, "unfamiliar_share", rate=0.05) == pytest.approx(shares[0])
    assert [found(results, "unfamiliar_share", **where, part=part, rate=0.05) for part in ("in", "out")] == pytest.approx(shares)


def test_models_without_familiarity_have_neither(tmp_path: Path) -> None:
    trained = TrainedModel.open(familiar_run(tmp_path / "run", calibration=0))
    results = evaluate(trained, table_data(), ["clean"], draws=0)
    assert not [row for row in results if row.metric == "unfamiliar_share"]


def test_regression_counts_flags(tmp_path: Path) -> None:
    trained = TrainedModel.open(familiar_run(tmp_path / "run", "regression"))
    data = table_data("regression")
    results = evaluate(trained, data, ["regression"], draws=0)
    share = sum(bool(row.unfamiliar) for row in trained.rows(data.test.x)) / len(data.test)
    assert found(results, "unfamiliar_share", rate=0.05) == pytest.approx(share)
    assert torch.isfinite(torch.tensor(found(results, "nll")))
