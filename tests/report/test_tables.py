"""Tables and averages over seeds, from hand-written rows."""

from __future__ import annotations

import html.parser
import math
import re

import numpy as np
import pytest

from ltnode.evaluation import Cost, ResultRow
from ltnode.report import tables
from ltnode.report.aggregate import Rows
from ltnode.report.naming import Variant, data_in_order, in_order
from ltnode.report.published import Published

LT = Variant("lt-node", "default")
PAPER = Published(
    {
        "generalisation": {"cifar10": {m: {"parameters": 0.21, "error": [0.111, 0.002]} for m in ("node", "lt-node")}},
        "ood": {"cifar10": {"svhn": {"lt-node": {"auroc": [83.553, 2.04], "aupr_in": [77.5, 2.7], "aupr_out": [89.4, 1.6]}}}},
        "entropy": {"cifar10": {"svhn": {"lt-node": [1.074, 0.078]}}},
    }
)


def row(metric: str, value: float | tuple[float, ...], seed: int = 0, protocol: str = "clean", **more: object) -> ResultRow:
    cost = Cost(14.0, 0.25)
    return ResultRow("lt-node", "cifar10", "default", seed, protocol, metric, value, 100, cost=cost, **more)  # type: ignore[arg-type]


@pytest.fixture
def rows() -> Rows:
    made = []
    for seed, error in enumerate((0.10, 0.12, 0.17)):
        made += [row("error", error, seed), row("parameters", 209420.0, seed), row("log_likelihood", -0.4, seed)]
        where = {"ood": "svhn", "score": "max_probability"}
        made += [row(m, 0.8 + error, seed, "ood", setting=where) for m in ("auroc", "aupr_in", "aupr_out")]
        made.append(row("mean_entropy", 1.0 + seed, seed, "ood", setting={"ood": "svhn", "part": "out"}))
    return Rows(made)


def test_numbers_over_seeds_have_mean_and_population_deviation(rows):
    found = rows.number(LT, "clean", "error", "cifar10")
    assert found.seeds == 3
    assert found.mean == pytest.approx(0.13)
    assert found.std == pytest.approx(np.std([0.10, 0.12, 0.17]))
    assert rows.number(Variant("node", "default"), "clean", "error", "cifar10") is None


def test_curves_over_seeds_leave_out_what_is_unknown():
    """A point that one seed lacks is the mean of the others; a point that all seeds lack is NaN."""
    x = {"x": [0.0, 0.5, 1.0]}
    made = Rows(
        [row("c", (1.0, 0.5, math.nan), 0, extra=x), row("c", (0.0, math.nan, math.nan), 1, extra=x)]
    )  # fmt: skip
    band = made.curve(LT, "clean", "c", "cifar10")
    assert band.mean[:2] == pytest.approx([0.5, 0.5])
    assert band.std[:2] == pytest.approx([0.5, 0.0])
    assert math.isnan(band.mean[2]) and math.isnan(band.std[2])


def test_numbers_along_a_setting_are_sorted():
    made = Rows([row("error", a / 100, s, "rotation", setting={"angle": a}) for s in (0, 1) for a in (90, 0, 45)])
    band = made.along(LT, "rotation", "error", "cifar10", "angle")
    assert band.x.tolist() == [0, 45, 90]
    assert band.mean == pytest.approx([0, 0.45, 0.9])
    assert band.seeds == 2


def test_a_histogram_is_merged_into_shares_per_seed():
    """Four bins of 0.05 become two of 0.1; shares sum to one, and the deviation is that of the merged shares."""
    x = {"x": [0.0, 0.05, 0.1, 0.15]}
    made = Rows([row("h", (4.0, 0.0, 0.0, 4.0), 0, "ood", extra=x), row("h", (0.0, 0.0, 6.0, 2.0), 1, "ood", extra=x)])
    band = made.histogram(LT, "ood", "h", "cifar10", width=0.1)
    assert band.x == pytest.approx([0.05, 0.15])
    assert band.mean == pytest.approx([0.25, 0.75])
    assert band.std == pytest.approx([0.25, 0.25])


def test_spreads_over_draws_are_kept_separate(rows):
    spread = row("error", 0.01, setting={"statistic": "std over draws"}, extra={"mean": 0.1, "values": [0.09, 0.11]})
    both = Rows([*rows.all, spread])
    assert both.number(LT, "clean", "error", "cifar10") == rows.number(LT, "clean", "error", "cifar10")
    assert tables.draws_table(both).rows[0][2] == "0.1000 ± 0.0100"


def test_the_generalisation_table_has_the_papers_values_next_to_ours(rows):
    table = tables.generalisation_table(rows, PAPER)
    by_model = {line[1]: line for line in table.rows}
    assert by_model["LT-NODE"][2:] == ("0.21 M", "0.209 M", "0.111 ± 0.002", "0.1300 ± 0.0294", "3", "14")
    assert by_model["NODE"][2:] == ("0.21 M", "–", "0.111 ± 0.002", "–", "–", "–")


def test_the_ood_tables_have_the_papers_values_next_to_ours(rows):
    (line,) = tables.ood_table(rows, PAPER).rows
    assert line[:4] == ("CIFAR10 → SVHN", "LT-NODE", "83.553 ± 2.040", "93.00 ± 2.94")
    (line,) = tables.entropy_table(rows, PAPER).rows
    assert line[2:4] == ("1.074 ± 0.078", "2.000 ± 0.816")


def test_distance_and_flags_have_columns_only_where_they_were_measured(rows):
    """Records of earlier releases keep their tables."""
    assert not any(", d" in name for name in tables.scores_table(rows).header)
    assert "Unfamiliar" not in tables.quality_table(rows).header
    where = {"ood": "svhn", "score": "distance"}
    made = [row("auroc", 0.96, 0, "ood", setting=where), row("unfamiliar_share", 0.05, 0, setting={"rate": 0.05})]
    both = Rows([*rows.all, *made])
    assert "AUROC, d" in tables.scores_table(both).header
    (line,) = [line for line in tables.quality_table(both).rows if line[1] == "LT-NODE"]
    assert dict(zip(tables.quality_table(both).header, line, strict=True))["Unfamiliar"] == "0.050"


def test_one_seed_has_no_deviation(rows):
    alone = Rows(r for r in rows.all if r.seed == 0)
    table = tables.generalisation_table(alone, Published())
    assert dict(zip(table.header, table.rows[0], strict=True))["Error"] == "0.1000"


def test_without_published_values_there_is_no_column_of_the_paper(rows):
    for make in (tables.generalisation_table, tables.ood_table, tables.entropy_table, tables.regression_table):
        header = make(rows, Published()).header
        assert not any("paper" in name or "ours" in name for name in header)
    assert any("paper" in name for name in tables.ood_table(rows, PAPER).header)


def test_the_quality_table_includes_the_cost(rows):
    table = tables.quality_table(rows)
    line = dict(zip(table.header, table.rows[0], strict=True))
    assert (line["Evaluations"], line["s / 1000"]) == ("14", "0.25")
    assert "Memory" not in line  # nothing was recorded: a column of dashes says nothing


class _Cells(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.open = False

    def handle_starttag(self, tag, attrs):
        self.open = tag in ("td", "th")

    def handle_endtag(self, tag):
        self.open = False

    def handle_data(self, data):
        if self.open:
            self.cells.append(data)


def test_markdown_latex_and_html_hold_the_same_cells():
    table = tables.Table("t", "A & B", ("x_1", "50 %"), (("a|b", "0.1 ± 0.2"), ("<i>", "–")), words=(0,), note="n#1")
    cells = ["x_1", "50 %", "a|b", "0.1 ± 0.2", "<i>", "–"]
    parser = _Cells()
    parser.feed(table.html())
    assert parser.cells == cells
    lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
    found = [cell.strip().replace(r"\|", "|") for n in (0, 2, 3) for cell in re.split(r"(?<!\\)\|", lines[n])[1:-1]]
    assert found == cells
    assert lines[1] == "| --- | ---: |"
    latex = table.latex()
    assert r"x\_1 & 50 \% \\" in latex
    assert r"a|b & 0.1 $\pm$ 0.2 \\" in latex
    assert r"\caption{A \& B. n\#1}" in latex
    assert r"\begin{tabular}{lr}" in latex


def test_models_and_data_come_in_the_papers_order():
    variants = [
        Variant("zebra", None),
        Variant("alt-node", "default"),
        Variant("lt-node", "paper"),
        Variant("node", "default"),
        LT,
    ]
    assert [v.title for v in in_order(variants)] == ["NODE", "LT-NODE", "LT-NODE (paper)", "ALT-NODE", "zebra"]
    assert data_in_order(["svhn", "own", "mnist", "svhn"]) == ["mnist", "svhn", "own"]


def test_results_that_someone_has_changed_leave_gaps():
    """A curve where a number belongs, curves of different lengths, texts for angles, an empty histogram: no table fails."""
    x = {"x": [0.0, 0.5]}
    strange = [
        row("error", (0.1, 0.2), extra=x),
        row("log_likelihood", 0.5, extra={"mean": "x"}, setting={"statistic": "std over draws"}),
        row("curve", (0.1, 0.2), 0, extra=x),
        row("curve", (0.1,), 1, extra={"x": [0.0]}),
        row("error", 0.5, protocol="rotation", setting={"angle": "wide"}),
        row("histogram", (0.0, 0.0), extra=x),
    ]
    made = Rows(strange)
    assert made.number(LT, "clean", "error", "cifar10") is None
    band = made.curve(LT, "clean", "curve", "cifar10")
    assert band is not None and band.seeds == 1 and band.mean == pytest.approx([0.1, 0.2])
    assert made.along(LT, "rotation", "error", "cifar10", "angle") is None
    assert made.histogram(LT, "clean", "histogram", "cifar10", 0.1) is None
    assert not tables.draws_table(made).rows
