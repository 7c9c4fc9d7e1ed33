"""``ltnode.report.build_report``: evaluated runs as one page, with its figures and tables as separate files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ltnode.data import Dataset
from ltnode.data import names as data_names
from ltnode.errors import require
from ltnode.report import figures_images, tables
from ltnode.report.aggregate import Rows
from ltnode.report.naming import Variant, data_in_order, data_title, in_order
from ltnode.report.page import Page
from ltnode.report.published import Published, read_values
from ltnode.report.runs import ReportedRun, read_runs
from ltnode.report.sections_models import Inputs, mechanism, posteriors
from ltnode.report.table import MISSING, Table
from ltnode.report.writer import ReportWriter
from ltnode.training import Run
from ltnode.training.convergence import not_converged

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class _ImageFigure(NamedTuple):
    """A figure of one data set, whose title replaces ``{data}``. It needs results of any of the protocols.

    Where its name is that of a figure of the paper, captions for the data sets of the paper begin with it.
    """

    name: str
    protocols: tuple[str, ...]
    draw: Callable[..., Figure]
    alt: str
    caption: str


_RELIABILITY = _ImageFigure(
    "reliability",
    ("clean",),
    figures_images.figure_reliability,
    "Reliability diagrams on {data}: accuracy against confidence, one panel per model.",
    "Reliability on {data}: points on the dashed line are calibrated, points below it are overconfident. Grey bars show the "
    "share of predictions.",
)
_SHIFT = (
    _ImageFigure(
        "figure-3",
        ("rotation",),
        figures_images.figure_3_rotation,
        "Performance of all models on rotated {data}.",
        "{data}: log-likelihood, Brier score and calibration error on rotated test images; accuracy and number of the "
        "predictions above a confidence.",
    ),
    _ImageFigure(
        "figure-4",
        ("ood", "rotation", "fgsm"),
        figures_images.figure_4_shift_and_attack,
        "Error under rotation, rejection, entropy histogram and FGSM of all models on {data}.",
        "{data}: error under rotation; accuracy on test and foreign images together after the most uncertain ones are "
        "rejected; entropies of foreign images; error under FGSM in normalised units (as in the paper) and in pixel units.",
    ),
    _ImageFigure(
        "corruptions",
        ("corruption",),
        figures_images.figure_corruptions,
        "Error of all models on corrupted {data}.",
        "Corrupted {data}: error at each severity.",
    ),
    _ImageFigure(
        "attacks",
        ("pgd",),
        figures_images.figure_attacks,
        "Error and entropy of all models under PGD on {data}.",
        "Projected gradient descent (PGD) on {data}, with random restarts.",
    ),
)


def build_report(
    runs: Iterable[str | Path | Run],
    out: str | Path,
    *,
    datasets: Mapping[str, Dataset] | None = None,
    published: str | Path | Published | None = None,
    title: str = "What these models know, and what they do not",
) -> Path:
    """Make a report of evaluated runs.

    Writes ``index.html`` (one page that needs no other file), ``figures/*.pdf`` and ``*.svg``, and ``tables/*.md``, ``*.tex`` and
    ``*.html``. Runs that differ only in their seed are shown as mean and population standard deviation.

    Args:
        runs: Run folders that hold evaluation.json (see `ltnode.evaluate(run, out=...)`), such files, or runs with a folder.
        out: Folder of the report; it is created.
        datasets: Data sets by name, for figures that need inputs. Others are loaded by name; if that fails, their figures are
            left out and the page says so.
        published: Values of the paper to compare with, or their TOML file. By default nothing is compared.
        title: Heading of the page.

    Returns:
        Path of the page.

    Raises:
        InputError: There are no runs, or one was never evaluated.
        MissingExtraError: matplotlib is not installed.
    """
    require({"matplotlib": "matplotlib"}, "plot", "a report")
    if not isinstance(published, Published):
        published = Published({} if published is None else read_values(published))
    reported = read_runs(runs)
    inputs = Inputs(datasets or {}, {run.data: run.path for run in reported})
    rows = Rows(row for run in reported for row in run.rows)
    count = f"{len(reported)} trained model{'s' if len(reported) > 1 else ''}"
    page = Page(title, f"{tables.model_names(rows)}: {count}, evaluated and compared.")
    writer = ReportWriter(page, Path(out))
    _overview(writer, reported)
    mechanism(writer, reported, rows, inputs)
    _quality(writer, rows, published)
    _shift(writer, rows, published)
    posteriors(writer, reported, rows, inputs)
    _sources(writer, reported, inputs.left_out)
    return page.write(Path(out) / "index.html")


def _overview(writer: ReportWriter, runs: Sequence[ReportedRun]) -> None:
    """List what was evaluated."""
    lines = []
    for data, variant, members in _cases(runs):
        protocols = dict.fromkeys(row.protocol for run in members for row in run.rows)
        seeds = ", ".join(str(run.seed) for run in members if run.seed is not None)
        lines.append((data_title(data), variant.title, seeds or MISSING, ", ".join(protocols)))
    writer.heading("What was evaluated")
    writer.table(Table("", "", ("Data", "Model", "Seeds", "Protocols"), tuple(lines), words=(0, 1, 2, 3)))
    for run in runs:
        if (problem := not_converged(run.history)) is not None:
            seed = "" if run.seed is None else f", seed {run.seed}"
            writer.page.note(f"{data_title(run.data)}, {run.variant.title}{seed}: {problem}.", good=False)


def _quality(writer: ReportWriter, rows: Rows, published: Published) -> None:
    """Show quality and calibration on the test sets."""
    writer.heading("Quality and calibration")
    writer.table(tables.generalisation_table(rows, published))
    writer.table(tables.quality_table(rows))
    for data in rows.data_sets("clean"):
        _draw(writer, _RELIABILITY, rows, data)
    for table in (tables.draws_table(rows), tables.calibration_table(rows), tables.regression_table(rows, published)):
        writer.table(table)


def _shift(writer: ReportWriter, rows: Rows, published: Published) -> None:
    """Show results on shifted and foreign data and under attack."""
    writer.heading("Under shift, on foreign data, under attack")
    for data in data_in_order(data for figure in _SHIFT for name in figure.protocols for data in rows.data_sets(name)):
        for figure in _SHIFT:
            if any(rows.where(name, data=data) for name in figure.protocols):
                _draw(writer, figure, rows, data)
    for table in (tables.ood_table(rows, published), tables.entropy_table(rows, published), tables.scores_table(rows)):
        writer.table(table)


def _sources(writer: ReportWriter, runs: Sequence[ReportedRun], left_out: Mapping[str, str]) -> None:
    """Say where the numbers come from, and which data sets could not be loaded (name and reason)."""
    lines = []
    for data, variant, members in _cases(runs):
        parts = [part for run in members for name, part in run.provenance.items() if name != "made_with"]
        options = members[0].provenance["made_with"].get("options", {})
        lines.append(
            (
                f"{data_title(data)}, {variant.title}",
                _distinct(str(part.get("version")) for part in parts),
                _distinct(_commit(part) for part in parts),
                f"{options.get('draw')} T, {options.get('steps')} steps",
                _distinct(str(part.get("device")) for part in parts),
                f"{sum(part.get('wall_time_s', 0.0) for part in parts):.0f}",
            )
        )
    header = ("Data, model", "Version", "Commit", "Prediction", "Device", "Seconds")
    writer.heading("Where the numbers come from")
    writer.table(Table("", "", header, tuple(lines), words=(0, 1, 2, 3, 4), note="A star marks uncommitted changes."))
    for name, reason in left_out.items():
        writer.page.note(f"Figures that need inputs of {data_title(name)} are left out: {reason}", good=False)


def _draw(writer: ReportWriter, figure: _ImageFigure, rows: Rows, data: str) -> None:
    seeds = rows.seeds(figure.protocols[0], data)
    about_seeds = f"Mean and one standard deviation over {seeds} seeds." if seeds > 1 else "One seed."
    alt, caption = (text.format(data=data_title(data)) for text in (figure.alt, figure.caption))
    if figure.name.startswith("figure-") and data in data_names():
        caption = f"{figure.name.replace('-', ' ').capitalize()}, {caption}"
    draw = partial(figure.draw, rows=rows, data=data)
    writer.figure(figure.name, data, draw=draw, alt=alt, caption=f"{caption} {about_seeds}")


def _cases(runs: Sequence[ReportedRun]) -> Iterator[tuple[str, Variant, list[ReportedRun]]]:
    """Group the runs that differ only in their seed."""
    cases: dict[tuple[str, Variant], list[ReportedRun]] = {}
    for run in runs:
        cases.setdefault((run.data, run.variant), []).append(run)
    for data in data_in_order(data for data, _ in cases):
        for variant in in_order(v for d, v in cases if d == data):
            yield data, variant, cases[data, variant]


def _distinct(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _commit(provenance: Mapping[str, Any]) -> str:
    commit = provenance.get("git_commit")
    return MISSING if commit is None else f"{commit[:8]}{'*' if provenance.get('git_modified') else ''}"
