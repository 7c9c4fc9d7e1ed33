"""Hypotheses on why numbers differ: the rule, the numbers that it compares, and the hypotheses of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_images import tiny_set
from typer.testing import CliRunner

from ltnode.cli.app import make_app
from ltnode.errors import ConfigError
from ltnode.report.aggregate import Measured
from paper.reproduce.causes import again
from paper.reproduce.causes.again import CHANGES, evaluate_again, read_again
from paper.reproduce.causes.cause import READINGS, Cause, read_causes
from paper.reproduce.causes.outcome import Compared, Effect
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.grid import load_grid, select
from paper.reproduce.images.results import read_result, read_results
from paper.reproduce.one_dimensional.experiment import OTHERS
from paper.reproduce.pages.causes import causes_section, read_compared, unexplained

PAPER = PaperFolder(Path(__file__).parents[2] / "paper")
CAUSE = Cause("error", "a hypothesis", data="svhn", model="node", variant="x")


def made(ours: tuple[float, ...], target: float | None, changed: float | None, one_sided: bool = False) -> Compared:
    run = None if changed is None else Measured((changed,))
    return Compared(CAUSE, "the error", Measured(ours), target, run, digits=3, one_sided=one_sided)


@pytest.mark.parametrize(
    ("changed", "effect"),
    [
        (0.200, Effect.EXPLAINS),
        (0.176, Effect.EXPLAINS),  # 24 % left
        (0.224, Effect.EXPLAINS),  # beyond the target by as much
        (0.170, Effect.IN_PART),
        (0.126, Effect.IN_PART),
        (0.124, Effect.NO),
        (0.280, Effect.NO),
        (0.050, Effect.NO),
        (None, Effect.NOT_RUN),
    ],
)
def test_a_change_explains_what_it_leaves_no_difference_of(changed: float | None, effect: Effect) -> None:
    """Ours is 0.1 and the target 0.2, so a tenth of a unit is the whole difference."""
    assert made((0.1,), 0.2, changed).effect is effect


def test_what_could_be_chance_is_undecided() -> None:
    """Two seeds 0.06 and 0.14 have a deviation of 0.04, so a change of 0.07 may be chance; one of 0.09 is not."""
    assert made((0.06, 0.14), 0.2, 0.17).effect is Effect.UNDECIDED
    assert made((0.06, 0.14), 0.2, 0.19).effect is Effect.EXPLAINS


def test_without_a_target_or_a_difference_nothing_is_tested() -> None:
    assert made((0.1,), None, 0.2).effect is Effect.NOT_RUN
    assert made((0.2,), 0.2, 0.3).effect is Effect.NOT_RUN
    assert made((0.1,), 0.2, 0.3, one_sided=True).effect is Effect.EXPLAINS  # beyond the target is good enough


def test_the_line_shows_what_changed() -> None:
    assert made((0.1,), 0.2, 0.175).line == "0.100 → 0.175 (1 seed); target 0.200, 25 % of the difference left"
    assert made((0.1,), 0.2, None).line == "0.100; target 0.200"
    assert made((0.1,), None, None).line == "our number is missing"


def test_what_no_hypothesis_explains_is_said() -> None:
    no, partly, open_one = made((0.1,), 0.2, 0.1), made((0.1,), 0.2, 0.17), made((0.1,), 0.2, None)
    assert unexplained([no, no]) == ["the error"]
    assert unexplained([no, partly]) == unexplained([no, open_one]) == []
    assert "none explains them: the error." in causes_section([no])
    assert "2 hypotheses. Explains it in part: 1; does not explain it: 1." in causes_section([no, partly])
    assert causes_section([]) == ""


def test_every_hypothesis_names_a_run_that_can_be_made() -> None:
    """Image runs are cells of the grid, rows of the 1-D experiment exist, and no run is a row of the paper.

    Networks that are evaluated again are in the zoo.
    """
    grid, causes = load_grid(PAPER.grid), read_causes(PAPER.causes)
    assert len(causes) >= 8
    for cause in causes:
        if cause.is_image:
            chosen = select(grid, [cause.data], [cause.model], [cause.preset], [cause.variant or "standard"])
            assert chosen
            without_run = cause.again in CHANGES or cause.reading in READINGS.get(cause.measure, ())
            assert without_run or all(cell.preset != "paper" or cell.variant for cell in chosen)
            if cause.again:
                assert (PAPER.zoo / f"{cause.model}-{cause.data}-paper").is_dir()
        elif cause.variant:
            assert cause.variant in OTHERS


def test_the_numbers_of_the_hypotheses_are_those_of_the_records() -> None:
    """The default preset of LT-NODE on MNIST, looked up by hand in its file; every hypothesis has our number and a target."""
    found = read_compared(PAPER, read_results(PAPER.results))
    assert all(one.ours is not None and one.target is not None for one in found)
    (one,) = [one for one in found if one.cause.measure == "auroc" and one.cause.preset == "default"]
    rows = read_result(PAPER.results / "images-mnist-lt-node-default-seed0.json").rows()
    (auroc,) = [
        row.number
        for row in rows
        if row.metric == "auroc" and row.setting.get("score") == "max_probability" and "statistic" not in row.setting
    ]
    assert one.changed is not None
    assert one.changed.values[0] == pytest.approx(100 * auroc)
    attacks = {one.cause.reading: one for one in found if one.cause.measure == "attacks"}
    assert all(one.target == 8 and one.ours is not None and 0 <= one.ours.mean <= 8 for one in attacks.values())


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('measure = "error"', "needs measure and hypothesis"),
        ('measure = "eror"\nhypothesis = "x"', "Did you mean 'error'"),
        ('measure = "error"\nhypothesis = "x"\nvarient = "y"', "Did you mean 'variant'"),
        ('measure = "error"\nhypothesis = 3', "must be a string"),
        ('measure = "error"\nhypothesis = "x"\ndata = "svhn"', "needs data, and a variant"),
        ('measure = "fgsm"\nhypothesis = "x"\ndata = "svhn"\nreading = "pixel"', "unknown reading of fgsm"),
        ('measure = "auroc"\nhypothesis = "x"\ndata = "svhn"\nreading = "five-draw"', "Did you mean 'five-draws'"),
        ('measure = "error"\nhypothesis = "x"\ndata = "svhn"\nagain = "truncate"', "Did you mean 'truncated'"),
        ('measure = "attacks"\nhypothesis = "x"\nreading = "pixels"', "Did you mean 'pixel'"),
        ('measure = "rate"\nhypothesis = "x"', "needs the variant"),
    ],
)
def test_a_wrong_hypothesis_says_what_is_wrong(entry: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "causes.toml").write_text(f"[[causes]]\n{entry}\n")
    with pytest.raises(ConfigError, match=message):
        read_causes(tmp_path / "causes.toml")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    assert read_causes(tmp_path / "none.toml") == []
    (tmp_path / "causes.toml").write_text("= 1")
    with pytest.raises(ConfigError, match="cannot read the hypotheses"):
        read_causes(tmp_path / "causes.toml")


def test_a_network_is_evaluated_again_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LT-NODE on MNIST, whose posterior has 57 % of its mass beyond the window: truncated, its quantiles are within.

    The weights are those of the record, and the records say which change they are of. The images are made up.
    """
    run, data = PAPER.zoo / "lt-node-mnist-paper", tiny_set("mnist", size=28, classes=10)
    monkeypatch.setattr(again, "load_data", lambda name: data)
    grid = load_grid(PAPER.grid)
    made = {name: evaluate_again(run, name, ["clean"], tmp_path, grid, "cpu")[0] for name in ("unchanged", "truncated")}
    recorded = read_result(PAPER.results / "images-mnist-lt-node-paper-seed0.json")
    assert {result.content["weights_sha256"] for result in made.values()} == {recorded.content["weights_sha256"]}
    assert made["unchanged"].content["learnt"]["tail"] == pytest.approx(recorded.content["learnt"]["tail"])
    assert made["truncated"].content["learnt"]["q95"] < 3.0 < made["unchanged"].content["learnt"]["q95"]
    assert [result.variant for result in read_again(tmp_path)] == ["again-truncated", "again-unchanged"]
    likelihoods = [row.number for r in made.values() for row in r.rows() if row.metric == "log_likelihood" and not row.setting]
    assert likelihoods[0] != likelihoods[1]


def test_only_a_learnt_posterior_can_be_truncated(tmp_path: Path) -> None:
    """NODE has one end-time; and a folder that is no run of the grid is named."""
    with pytest.raises(ConfigError, match="no cell of the grid"):
        evaluate_again(PAPER.zoo / "node-mnist", "truncated", ["clean"], tmp_path, [])


def test_the_command_names_what_it_does_not_know(tmp_path: Path) -> None:
    """Both lists are checked before anything is loaded."""
    words = ["reproduce", "again", str(tmp_path / "run"), "--paper", str(PAPER.path)]
    for option, value in (("--changes", "truncate"), ("--protocols", "oood")):
        made = CliRunner().invoke(make_app(), [*words, option, value])
        assert made.exit_code == 2
        assert "Did you mean" in made.output


def test_the_mean_over_draws_is_that_of_the_record() -> None:
    """ALT-NODE on SVHN: 0.0675, 0.1809 and 0.0715 over three seeds, looked up by hand in their files."""
    found = read_compared(PAPER, [r for r in read_results(PAPER.results) if r.seed < 3])
    (one,) = [one for one in found if one.cause.measure == "error" and one.cause.reading == "five-draws"]
    assert one.changed is not None
    assert one.changed.values == pytest.approx((0.06746312, 0.1809388, 0.07148125))
    assert one.effect is Effect.NO
