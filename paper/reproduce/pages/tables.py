"""``paper/tables.md``: the paper's tables with our columns, further tables, and how every run was made."""

from __future__ import annotations

from collections.abc import Sequence

from ltnode.report import tables
from ltnode.report.aggregate import Rows
from ltnode.report.naming import Variant, data_title
from ltnode.report.table import markdown_table
from paper.reproduce.images.results import ImageResult
from paper.reproduce.published import PaperValues


def tables_page(results: Sequence[ImageResult], published: PaperValues) -> str:
    """The paper's tables with our columns, and those that say more, in Markdown."""
    rows = Rows(row for result in results for row in result.rows())
    made = (
        tables.generalisation_table(rows, published),
        tables.quality_table(rows),
        tables.ood_table(rows, published),
        tables.entropy_table(rows, published),
        tables.scores_table(rows),
        tables.posterior_table(rows),
        tables.draws_table(rows),
        tables.calibration_table(rows),
    )
    texts = "\n".join(table.markdown() for table in made if table.rows)
    return f"# Tables\n\nMade by `ltnode reproduce images` from `results/`. Paper: 5 seeds.\n\n{texts}\n{_runs_table(results)}"


def _runs_table(results: Sequence[ImageResult]) -> str:
    """How every run was trained and evaluated."""
    header = ("run", "epochs", "precision", "KL weight", "effective", "training", "commit", "evaluation", "protocols")
    lines = []
    for result in results:
        content, weight = result.content, result.content["kl_weight"]
        training = content["training"]
        parts = [part["provenance"] for part in result.protocols.values()]
        lines.append(
            [
                f"{data_title(result.data)}, {_title(result)}, seed {result.seed}",
                str(content["epochs"]),
                content["precision"],
                "–" if weight is None else f"{weight['per_point']:g} ({weight['weighting']})",
                "–" if weight is None else f"{weight['effective']:g}",
                f"{training['device']}, {training['wall_time_s']:.0f} s",
                _commit(training["git_commit"]),
                ", ".join(dict.fromkeys(f"{p['device']}, {_commit(p['git_commit'])}" for p in parts)),
                ", ".join(result.protocols),
            ]
        )
    note = (
        "Effective: weight of the KL against an unbiased expectation of the log-likelihood; `density` weights estimate a "
        "third of it. Evaluated in float32."
    )
    return f"**Runs**\n\n{markdown_table(header, lines)}\n{note}\n"


def _title(result: ImageResult) -> str:
    return Variant(result.model, result.preset, result.variant).title


def _commit(commit: str | None) -> str:
    return "–" if commit is None else commit[:8]
