"""The generated pages agree with the recorded results: README, docs, paper/README.md, paper/tables.md and the cards of the zoo.

If a test fails, run ``ltnode reproduce claims --figures`` and commit the files that it writes.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ltnode.errors import ConfigError, DataError
from paper.reproduce.claims.all_claims import all_claims, outcome_counts
from paper.reproduce.claims.verdict import JudgedClaim, Outcome
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.grid import Cell, load_grid, select
from paper.reproduce.images.results import ImageResult, read_results
from paper.reproduce.images.zoo import DefaultEntry, read_zoo
from paper.reproduce.one_dimensional import experiment
from paper.reproduce.pages.causes import read_compared
from paper.reproduce.pages.claims import paper_page
from paper.reproduce.pages.readme import RESULT_PAGES, read_promises, with_results
from paper.reproduce.pages.remarks import Remarks
from paper.reproduce.pages.tables import tables_page
from paper.reproduce.pages.zoo import card, overview

PAPER = PaperFolder(Path(__file__).parents[2] / "paper")
REBUILD = "run `ltnode reproduce claims --figures` and commit the files that it writes"


@pytest.fixture(scope="module")
def results() -> list[ImageResult]:
    return read_results(PAPER.results)


@pytest.fixture(scope="module")
def grid() -> list[Cell]:
    return load_grid(PAPER.grid)


@pytest.fixture(scope="module")
def claims(results: list[ImageResult]) -> list[JudgedClaim]:
    pytest.importorskip("gpytorch", reason="NODE-GP's parameters are counted")
    return all_claims(results, PAPER.results, PAPER.published())


def test_every_result_is_a_cell_of_the_grid(results: list[ImageResult], grid: list[Cell]) -> None:
    """Every file has the name and the number of epochs of its cell, and covers the whole test set."""
    assert results
    for result in results:
        key = [result.data], [result.model], [result.preset], [result.variant or "standard"], [result.seed]
        (cell,) = select(grid, *key)
        assert (PAPER.results / f"images-{cell.name}.json").exists()
        assert (result.content["epochs"], result.content["precision"]) == (cell.config.epochs, cell.config.precision)
        clean = [row.n for row in result.rows() if row.protocol == "clean"]
        assert set(clean) <= {26_032 if result.data == "svhn" else 10_000}


@pytest.mark.parametrize("page", RESULT_PAGES)
def test_the_pages_have_the_results_of_the_record(page: str, claims: list[JudgedClaim]) -> None:
    text = (PAPER.repository / page).read_text(encoding="utf-8")
    assert with_results(text, RESULT_PAGES[page](read_promises(PAPER.promises), claims)) == text, REBUILD


def test_the_pages_of_the_paper_are_those_of_the_results(results: list[ImageResult], claims: list[JudgedClaim]) -> None:
    assert tables_page(results, PAPER.published()) == (PAPER.path / "tables.md").read_text(encoding="utf-8"), REBUILD
    remarks, causes = Remarks.read(PAPER.remarks), read_compared(PAPER, results)
    page = paper_page(claims, remarks, results, PAPER.published(), PAPER.figure_names(), causes)
    assert page == (PAPER.path / "README.md").read_text(encoding="utf-8"), REBUILD


def test_the_cards_of_the_zoo_are_those_of_the_results(grid: list[Cell]) -> None:
    entries, published = read_zoo(PAPER.zoo, grid, PAPER.records), PAPER.published()
    assert len(entries) >= 19
    assert overview(entries, published, Remarks.read(PAPER.remarks).zoo) == (PAPER.zoo / "README.md").read_text(), REBUILD
    for entry in entries:
        assert card(entry, published) == (entry.folder / "README.md").read_text(encoding="utf-8"), REBUILD
        if isinstance(entry, DefaultEntry):
            assert entry.small_part["examples"] == 500
        else:
            assert entry.result is not None
            assert entry.result.content["small_part"]["examples"] == 500


def test_the_recorded_verdicts_stay_what_they_are(claims: list[JudgedClaim]) -> None:
    """217 claims of the paper; another count means a changed rule, a changed record or a new claim: explain it."""
    expected = {Outcome.REPRODUCED: 134, Outcome.NOT_REPRODUCED: 60, Outcome.REVERSED: 20, Outcome.MISSING: 3}
    assert outcome_counts(claims) == expected


def test_every_number_of_the_paper_has_a_claim_with_a_command(claims: list[JudgedClaim]) -> None:
    """Two tables (24 sizes, 24 errors, 36 detections), 12 entropies, 5 values of E, 2 posteriors; keys are unique."""
    kinds: dict[str, int] = {}
    keys = [entry.claim.key for entry in claims]
    for key in keys:
        kind = key.partition(".")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    expected = {"parameters": 24, "error": 24, "auroc": 12, "aupr_in": 12, "aupr_out": 12, "entropy": 12}
    expected |= {"synthetic-entropy": 5, "synthetic-posterior": 2}
    assert {kind: kinds[kind] for kind in expected} == expected
    assert len(set(keys)) == len(keys)
    for statement in ("rotation-log_likelihood", "rotation-brier", "rotation-ece", "confidence_accuracy", "fgsm", "selection"):
        assert kinds[statement] >= 1
    for key in ("synthetic-fit-alt", "synthetic-fit-uni", "synthetic-stagnation", "synthetic-priors", "cost-evaluations.lt-node"):
        assert key in keys
    assert keys[:4] == [f"users.{d}.{m}" for d in ("cifar10", "svhn") for m in ("lt-node", "alt-node")]


def test_every_command_selects_something(claims: list[JudgedClaim], grid: list[Cell]) -> None:
    """The names in the commands are those of the grid and of the 1-D experiment."""
    for command in {entry.claim.command for entry in claims}:
        words = shlex.split(command)
        assert words[:2] == ["ltnode", "reproduce"]
        options = dict(zip(words[3::2], words[4::2], strict=True))
        lists = {name.removeprefix("--"): value.split(",") for name, value in options.items() if name != "--seeds"}
        if words[2] == "images":
            assert select(grid, **lists)
        elif words[2] == "synthetic":
            assert experiment.chosen(lists["models"])
        else:
            assert words[2] in ("claims", "motivating")


def test_a_remark_on_no_claim_is_an_error(tmp_path: Path, claims: list[JudgedClaim]) -> None:
    keys = [entry.claim.key for entry in claims]
    Remarks.read(PAPER.remarks).check(keys)
    (tmp_path / "remarks.toml").write_text('[remarks]\n"error.cifar10.ltnode" = "x"\n')
    with pytest.raises(ConfigError, match=r"Did you mean 'error.cifar10.lt-node'"):
        Remarks.read(tmp_path / "remarks.toml").check(keys)
    (tmp_path / "remarks.toml").write_text('[remarks]\n"error.cifar10.lt-node" = "another seed"\n')
    assert "| Another seed |" in paper_page(claims, Remarks.read(tmp_path / "remarks.toml"), [], PAPER.published())
    assert Remarks.read(tmp_path / "none.toml") == Remarks()
    (tmp_path / "remarks.toml").write_text('[remarks]\n"error.cifar10.lt-node" = 3\n')
    with pytest.raises(ConfigError, match="must be a string"):
        Remarks.read(tmp_path / "remarks.toml")


def test_a_readme_without_marks_is_not_touched() -> None:
    with pytest.raises(DataError, match="must have the marks"):
        with_results("# x\n", "table")
