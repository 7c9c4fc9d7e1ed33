"""The first page of the report, the paper's tables in its own layout, and the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from ltnode.report.aggregate import Measured
from ltnode.report.style import LIGHT, themed
from paper.reproduce.causes.cause import Cause
from paper.reproduce.causes.outcome import Compared
from paper.reproduce.claims.all_claims import all_claims, one_dimensional_results
from paper.reproduce.claims.claim import AtMost, Claim, Section
from paper.reproduce.claims.evidence import Evidence, Seeds
from paper.reproduce.claims.verdict import JudgedClaim, Outcome, Verdict
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.results import ImageResult, read_results
from paper.reproduce.pages.front import front_page
from paper.reproduce.pages.paper_figures import figure_2, figure_3, figure_4, paper_rows
from paper.reproduce.pages.printed_tables import detection, generalisation
from paper.reproduce.pages.statements import STATEMENTS, Share, statements
from paper.reproduce.pages.summary_figures import differs_figure, holds_figure, why_figure

PAPER = PaperFolder(Path(__file__).parents[2] / "paper")


@pytest.fixture(scope="module")
def results() -> list[ImageResult]:
    return read_results(PAPER.results)


@pytest.fixture(scope="module")
def claims(results: list[ImageResult]) -> list[JudgedClaim]:
    pytest.importorskip("gpytorch", reason="NODE-GP's parameters are counted")
    return all_claims(results, PAPER.results, PAPER.published())


def judged(key: str, outcome: Outcome, seeds: int = 5, data: str = "") -> JudgedClaim:
    command = f"ltnode reproduce images --data {data}" if data else "ltnode reproduce claims"
    claim = Claim(key, Section.ERROR, "text", AtMost(1.0), command)
    return JudgedClaim(claim, Evidence({}, ""), Verdict(outcome, Seeds(seeds, seeds)))


def test_every_claim_of_the_paper_belongs_to_one_statement(claims: list[JudgedClaim]) -> None:
    """No claim is left out of the first page, and none counts twice."""
    kinds = [kind for group in STATEMENTS.values() for kind in group]
    assert len(kinds) == len(set(kinds))
    found = [entry.claim.key for statement in statements(claims) for entry in statement.claims]
    assert sorted(found) == sorted(entry.claim.key for entry in claims if entry.claim.paper is not None)


def test_a_statement_is_listed_where_it_holds_and_where_it_does_not() -> None:
    """Reproduced on MNIST and not on SVHN: it stands in both lists, each time with the set."""
    claims = [
        judged("error.mnist.node", Outcome.REPRODUCED, data="mnist"),
        judged("error.svhn.node", Outcome.REVERSED, data="svhn"),
    ]
    claims += [judged("motivating.reflection", Outcome.REPRODUCED), judged("motivating.concentric", Outcome.MISSING, seeds=1)]
    page = front_page(claims, [], [])
    holds, differs = page.split("## What does not")
    assert "- The models have the printed test errors: MNIST 1 of 1." in holds
    assert "- The models have the printed test errors: SVHN 0 of 1." in differs
    assert "common one cannot" not in page  # half is neither, and shown in the figure only
    assert "Reproduced claims: MNIST 1 of 1, SVHN 0 of 1, without images 1 of 2." in holds
    assert "prints 4 numbers" in page
    assert "2 are reproduced, 0 are not,\n1 come out the other way round, and 1 wait for runs" in page
    assert "![" not in page  # figures that do not exist are not shown
    assert statements(claims)[0].by_data == {"mnist": Share(1, 1), "svhn": Share(0, 1)}


def test_the_page_says_what_explains_a_difference() -> None:
    causes = [
        Compared(Cause("error", about, data="svhn", model="node", variant="x"), what, Measured((0.1,)), 0.2, changed, 3)
        for about, what, changed in (
            ("it helps", "the error", Measured((0.19,))),
            ("it does not", "the entropy", Measured((0.1,))),
            ("nobody knows", "the cost", None),
        )
    ]
    page = front_page([], causes, ["figures/why.svg"])
    assert "2 of 3 hypotheses are tested; 1 explain" in page
    assert (
        "- **the error** (0.100 → 0.190 (1 seed); target 0.200, 10 % of the difference left). It helps: this explains it." in page
    )
    assert "- **Unexplained**, although all hypotheses on it were tested: the entropy." in page
    assert "(figures/why.svg)" in page


def test_the_tables_have_the_layout_of_the_paper(results: list[ImageResult], claims: list[JudgedClaim]) -> None:
    """24 and 12 rows in the paper's order, with its numbers as printed, and a mark for every verdict."""
    first = generalisation(results, claims, PAPER.published()).splitlines()
    assert len(first) == 2 + 24
    assert first[2].startswith("| **MNIST** | NODE | 0.21M | 0.005 ± 0.000 | 0.00")
    assert [line.split("|")[2].strip() for line in first[2:8]] == [
        "NODE",
        "SDE-Net",
        "NODE-GP",
        "Uni-NODE",
        "LT-NODE",
        "ALT-NODE",
    ]
    marks = {entry.claim.key: entry.verdict.outcome for entry in claims if entry.claim.key.startswith("error.")}
    assert sum("✓" in line for line in first) == sum(outcome is Outcome.REPRODUCED for outcome in marks.values())
    second = detection(results, claims, PAPER.published()).splitlines()
    assert len(second) == 2 + 12
    assert "| 83.75 ± 1.63 |" in second[2]


def test_every_figure_can_be_drawn(results: list[ImageResult], claims: list[JudgedClaim]) -> None:
    """Two rows of five panels as in the paper, also when there are no results yet; five models on the 1-D data."""
    published, rows = PAPER.published(), paper_rows(results)
    trained = one_dimensional_results(PAPER.results).trained
    with themed(LIGHT):
        for figure in (
            figure_3(LIGHT, rows),
            figure_4(LIGHT, rows),
            figure_3(LIGHT, paper_rows([])),
            figure_4(LIGHT, paper_rows([])),
        ):
            assert len(figure.axes) == 10
        assert len(figure_2(LIGHT, trained, published).axes) >= 5
        found = statements(claims)
        tiles = holds_figure(LIGHT, found).axes[0].patches
        assert len(tiles) == sum(len(statement.by_data) for statement in found)
        markers = differs_figure(LIGHT, results, published).axes[0].lines
        assert len(markers) >= 4 * 6  # and one line at zero
        same = [Compared(Cause("error", "x", data="svhn"), "it", Measured((0.1,)), 0.2, Measured((c,)), 3) for c in (0.15, 0.18)]
        bar, *legend = why_figure(LIGHT, same).axes[0].patches
        assert bar.get_width() == pytest.approx(20.0)  # the better of two hypotheses on the same difference
        assert [entry.get_width() for entry in legend] == [0]
