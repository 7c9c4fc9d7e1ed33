"""Pages made of the results of the image experiments: tables, figures, the README's table, and the page of claims.

All of them are functions of the files in ``paper/``: made again, they are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ltnode.errors import DataError
from ltnode.report import tables
from ltnode.report.aggregate import Rows, Summary
from ltnode.report.figures_images import figure_3_rotation, figure_4_shift_and_attack
from ltnode.report.markdown import markdown_table
from ltnode.report.naming import Variant, data_title
from ltnode.report.published import Published
from ltnode.report.style import LIGHT, Theme, themed
from paper.reproduce.claims import all_claims, claims_page, read_remarks, verdict_counts
from paper.reproduce.claims_evidence import Claim
from paper.reproduce.claims_rules import Verdict
from paper.reproduce.images_results import ImageResult, read_results

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEGIN, END = "<!-- results -->", "<!-- /results -->"
"""Around the table in the README."""
_FOREIGN = {"cifar10": "svhn", "svhn": "cifar10", "mnist": "fashion-mnist", "fashion-mnist": "mnist"}


@dataclass(frozen=True)
class PaperFolder:
    """The folder ``paper`` of a clone, and what is made in it.

    Attributes:
        path: The folder.
    """

    path: Path

    @property
    def grid(self) -> Path:
        """TOML files of the grid."""
        return self.path / "grid"

    @property
    def results(self) -> Path:
        """Result files."""
        return self.path / "results"

    @property
    def readme(self) -> Path:
        """README of the repository, whose table is made here."""
        return self.path.parent / "README.md"

    @property
    def zoo(self) -> Path:
        """Folder of the trained models."""
        return self.path.parent / "zoo"

    def figure_names(self) -> list[str]:
        """Drawings of the image experiments and, beside their results, of the 1-D ones; relative to the folder."""
        drawn = [path for folder in ("figures", "results") for path in sorted((self.path / folder).glob("*.svg"))]
        return [path.relative_to(self.path).as_posix() for path in drawn]

    def published(self) -> Published:
        """What the paper prints."""
        return Published.read(self.path / "published.toml")


def rebuild(paper: PaperFolder, figures: bool = True) -> list[Path]:
    """Make tables, figures and pages again from the results.

    Args:
        paper: Where the results are, and where the pages go.
        figures: Also draw the figures.

    Returns:
        The files.
    """
    found, published = read_results(paper.results), paper.published()
    made = [_write(paper.path / "tables.md", tables_page(found, published))]
    if figures:
        made += draw(found, paper.path / "figures")
    claims = all_claims(found, paper.results, published)
    page = claims_page(claims, read_remarks(paper.path / "remarks.toml", claims), paper.figure_names())
    made.append(_write(paper.path / "README.md", page))
    if paper.readme.exists() and BEGIN in paper.readme.read_text(encoding="utf-8"):
        text = paper.readme.read_text(encoding="utf-8")
        made.append(_write(paper.readme, with_results(text, results_block(found, published, claims))))
    return made


def tables_page(results: Sequence[ImageResult], published: Published) -> str:
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


def draw(results: Sequence[ImageResult], folder: Path) -> list[Path]:
    """The paper's figures 3 and 4 of every data set that has the protocols, as SVG; variants are left to the tables."""
    rows = Rows(row for result in results if not result.variant for row in result.rows())
    drawn: list[Path] = []
    for stem, protocols, draw_one in (
        ("figure-3", ("rotation",), figure_3_rotation),
        ("figure-4", ("rotation", "ood", "fgsm"), figure_4_shift_and_attack),
    ):
        names = dict.fromkeys(data for protocol in protocols for data in rows.data_sets(protocol))
        for data in names:
            drawn.append(_figure(partial(draw_one, rows=rows, data=data), folder / f"{stem}-{data}.svg"))
    return sorted(drawn)


def _figure(make: Callable[[Theme], Figure], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with themed(LIGHT):
        # No date in the file: the same figure has the same bytes.
        make(LIGHT).savefig(path, metadata={"Date": None})
    return path


def results_block(results: Sequence[ImageResult], published: Published, claims: Sequence[Claim]) -> str:
    """The README's table: what was measured on the test sets, beside the paper's errors, and how the users' question stands."""
    rows = Rows(row for result in results if not result.variant for row in result.rows())
    lines = []
    for data in reversed(rows.data_sets("clean")):
        for variant in rows.variants("clean", data):
            printed = published.error(data, variant.model) if variant.preset == "paper" else None
            error = rows.number(variant, "clean", "error", data)
            foreign = {"ood": _FOREIGN.get(data, ""), "score": "max_probability"}
            cells = [
                data_title(data),
                variant.title,
                "–" if printed is None else f"{printed.mean:.3f} ± {printed.std:.3f}",
                _number(error, 4),
                _number(rows.number(variant, "clean", "log_likelihood", data), 3),
                _number(rows.number(variant, "clean", "ece", data), 3),
                _number(rows.number(variant, "ood", "auroc", data, foreign), 1, 100.0),
                "–" if error is None else str(error.seeds),
            ]
            lines.append(cells)
    header = ("data", "model (preset)", "error, paper", "error, ours", "log-likelihood", "ECE", "AUROC, foreign set (%)", "seeds")
    counts = verdict_counts(claims)
    summary = ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict)
    note = (
        "Real data, the paper's full schedules, our own training; foreign sets: SVHN for CIFAR10, Fashion-MNIST for MNIST, and "
        "the reverse. The preset is the default where none is named. One seed gives no ranking. "
        f"Of the paper's numbers and statements: {summary}; each with its command in [paper/README.md](paper/README.md)."
    )
    return f"{markdown_table(header, lines)}\n{note}\n"


def with_results(readme: str, block: str) -> str:
    """A README with the block between its marks replaced.

    Raises:
        DataError: The marks are not there, or not once.
    """
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", flags=re.DOTALL)
    if len(pattern.findall(readme)) != 1:
        raise DataError(f"the README must have the marks {BEGIN} and {END} once, around the table of results")
    return pattern.sub(lambda _: f"{BEGIN}\n{block}{END}", readme)


def _title(result: ImageResult) -> str:
    return Variant(result.model, result.preset, result.variant).title


def _number(value: Summary | None, digits: int, scale: float = 1.0) -> str:
    if value is None:
        return "–"
    mean = f"{scale * value.mean:.{digits}f}"
    return mean if value.seeds == 1 else f"{mean} ± {scale * value.std:.{digits}f}"


def _commit(commit: str | None) -> str:
    return "–" if commit is None else commit[:8]


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
