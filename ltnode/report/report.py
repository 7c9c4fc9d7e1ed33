"""``ltnode.report.build_report``: evaluated runs as one page, with vector files and tables beside it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ltnode.data import Dataset
from ltnode.data import load as load_data
from ltnode.errors import DataError, InputError
from ltnode.models import LatentTimeODE, Model
from ltnode.report import tables
from ltnode.report.aggregate import Rows
from ltnode.report.figure_schematic import figure_1_schematic, schematic_caption, schematic_of
from ltnode.report.figures_images import (
    figure_3_rotation,
    figure_4_shift_and_attack,
    figure_attacks,
    figure_corruptions,
    figure_reliability,
)
from ltnode.report.figures_models import (
    figure_2_synthetic,
    figure_5_posterior,
    figure_6_posterior,
    figure_posterior_over_training,
    prior_of,
)
from ltnode.report.naming import Variant, data_in_order, data_title, in_order
from ltnode.report.page import Page
from ltnode.report.published import Published
from ltnode.report.runs import ReportedRun, read_runs
from ltnode.report.style import LIGHT, Theme, save_figure, themed
from ltnode.training import Run
from ltnode.typing import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOG = logging.getLogger("ltnode")
_POSTERIOR_INPUTS = 512


def build_report(
    runs: Iterable[str | Path | Run],
    out: str | Path,
    *,
    datasets: Mapping[str, Dataset] | None = None,
    published: str | Path | Published | None = None,
    title: str = "What these models know, and what they do not",
) -> Path:
    """Make a report of evaluated runs.

    Writes ``index.html`` (one page that needs nothing else), ``figures/*.pdf`` and ``*.svg``, and ``tables/*.md``, ``*.tex`` and
    ``*.html``. Runs that differ in their seed alone are shown as mean and population standard deviation.

    Args:
        runs: Run folders that hold evaluation.json (`ltnode.evaluate(run, out=...)`), such files, or runs with a folder.
        out: Folder of the report; it is made.
        datasets: Data sets by name, for figures that need inputs; others are loaded by name, and where that fails the figures
            are left out and the page says so.
        published: The paper's values, or their TOML file; by default ``paper/published.toml`` where there is one.
        title: Heading of the page.

    Returns:
        The page.

    Raises:
        InputError: There are no runs, or one was never evaluated.
        MissingExtraError: matplotlib is not installed.
    """
    known = published if isinstance(published, Published) else Published.read(published)
    report = _Report(read_runs(runs), Path(out), dict(datasets or {}), known, title)
    return report.build()


@dataclass(frozen=True, eq=False)
class _Drawing:
    """A figure to be drawn: its file, its function, and its words."""

    stem: str
    draw: Callable[[Theme], Figure]
    alt: str
    caption: str


class _Report:
    """One call of `build_report`."""

    def __init__(
        self, runs: list[ReportedRun], out: Path, datasets: dict[str, Dataset], published: Published, title: str
    ) -> None:
        self.runs, self.out, self.datasets, self.published = runs, out, datasets, published
        self.rows = Rows(row for run in runs for row in run.rows)
        self.left_out: dict[str, str] = {}
        """Why the inputs of a data set could not be had."""
        count = len(runs)
        self.page = Page(
            title, f"{tables.model_names(self.rows)}: {count} trained model{'s' if count > 1 else ''}, evaluated and compared."
        )

    def build(self) -> Path:
        """Write everything."""
        self._overview()
        self._mechanism()
        self._quality()
        self._shift()
        self._posteriors()
        self._sources()
        return self.page.write(self.out / "index.html")

    # -- sections --------------------------------------------------------------------------------------------------------

    def _overview(self) -> None:
        self.page.heading("What was evaluated")
        lines = []
        for data, variant, members in self._cases():
            protocols = list(dict.fromkeys(row.protocol for run in members for row in run.rows))
            seeds = ", ".join(str(run.seed) for run in members if run.seed is not None)
            lines.append((data_title(data), variant.title, seeds or tables.MISSING, ", ".join(protocols)))
        self.page.table(("Data", "Model", "Seeds", "Protocols"), lines, words=(0, 1, 2, 3))

    def _cases(self) -> Iterator[tuple[str, Variant, list[ReportedRun]]]:
        """Runs that differ in their seed alone, together."""
        cases: dict[tuple[str, Variant], list[ReportedRun]] = {}
        for run in self.runs:
            cases.setdefault((run.data, run.variant), []).append(run)
        for data in data_in_order(data for data, _ in cases):
            for variant in in_order(v for d, v in cases if d == data):
                yield data, variant, cases[data, variant]

    def _mechanism(self) -> None:
        drawings = [d for run in self._first_runs() if (d := self._schematic(run)) is not None]
        synthetic = self._synthetic()
        if not drawings and synthetic is None:
            return
        self.page.heading("How a prediction is made")
        for drawing in [*drawings[:2], *([synthetic] if synthetic else [])]:
            self._figure(drawing)

    def _quality(self) -> None:
        if self.rows.where("clean"):
            self.page.heading("Quality and calibration")
            self._table(tables.generalisation_table(self.rows, self.published))
            self._table(tables.quality_table(self.rows))
            for data in self.rows.data_sets("clean"):
                alt = f"Reliability diagrams on {data_title(data)}: accuracy against confidence, one panel per model."
                caption = (
                    f"Reliability on {data_title(data)}: points on the dashed line are calibrated, below it overconfident; grey "
                    f"bars are the share of predictions. {self._seed_words('clean', data)}"
                )
                draw = partial(figure_reliability, rows=self.rows, data=data)
                self._figure(_Drawing(_file_name("reliability", data), draw, alt, caption))
            self._table(tables.draws_table(self.rows))
        self._table(tables.calibration_table(self.rows))
        self._table(tables.regression_table(self.rows, self.published))

    def _shift(self) -> None:
        shifted = data_in_order(
            data for protocol in ("rotation", "ood", "fgsm", "corruption", "pgd") for data in self.rows.data_sets(protocol)
        )
        if shifted:
            self.page.heading("Under shift, on foreign data, under attack")
        for data in shifted:
            name = data_title(data)
            if self.rows.where("rotation", data=data):
                caption = (
                    f"Figure 3, {name}: log-likelihood, Brier score and calibration error of rotated test images; accuracy and "
                    f"number of the predictions above a confidence. {self._seed_words('rotation', data)}"
                )
                draw = partial(figure_3_rotation, rows=self.rows, data=data)
                self._figure(
                    _Drawing(_file_name("figure-3", data), draw, f"Performance of all models on rotated {name}.", caption)
                )
            if any(self.rows.where(protocol, data=data) for protocol in ("rotation", "ood", "fgsm")):
                caption = (
                    f"Figure 4, {name}: error under rotation; accuracy on test and foreign images together after rejecting the "
                    "most uncertain; entropies of foreign images; error under FGSM in normalised (the paper) and in pixel units. "
                    f"{self._seed_words('ood', data)}"
                )
                draw = partial(figure_4_shift_and_attack, rows=self.rows, data=data)
                alt = f"Error under rotation, rejection, entropy histogram and FGSM of all models on {name}."
                self._figure(_Drawing(_file_name("figure-4", data), draw, alt, caption))
            self._beyond(data, name)
        self._table(tables.ood_table(self.rows, self.published))
        self._table(tables.entropy_table(self.rows, self.published))
        self._table(tables.scores_table(self.rows))

    def _beyond(self, data: str, name: str) -> None:
        if self.rows.where("corruption", data=data):
            draw = partial(figure_corruptions, rows=self.rows, data=data)
            caption = f"Corrupted {name}: error at five severities. {self._seed_words('corruption', data)}"
            self._figure(_Drawing(_file_name("corruptions", data), draw, f"Error of all models on corrupted {name}.", caption))
        if self.rows.where("pgd", data=data):
            draw = partial(figure_attacks, rows=self.rows, data=data)
            caption = f"Projected gradient attack on {name}, random restarts. {self._seed_words('pgd', data)}"
            self._figure(
                _Drawing(_file_name("attacks", data), draw, f"Error and entropy of all models under PGD on {name}.", caption)
            )

    def _posteriors(self) -> None:
        drawings = self._posterior_drawings()
        table = tables.posterior_table(self.rows)
        if drawings or table.rows:
            self.page.heading("Learnt end-times")
            for drawing in drawings:
                self._figure(drawing)
            self._table(table)

    def _sources(self) -> None:
        self.page.heading("Where the numbers come from")
        lines = []
        for data, variant, members in self._cases():
            parts = [part for run in members for name, part in run.provenance.items() if name != "made_with"]
            options = members[0].provenance["made_with"]["options"]
            lines.append(
                (
                    f"{data_title(data)}, {variant.title}",
                    _distinct(str(part.get("version")) for part in parts),
                    _distinct(_commit(part) for part in parts),
                    f"{options['draw']} T, {options['steps']} steps",
                    _distinct(str(part.get("device")) for part in parts),
                    f"{sum(part.get('wall_time_s', 0.0) for part in parts):.0f}",
                )
            )
        header = ("Data, model", "Version", "Commit", "Prediction", "Device", "Seconds")
        self.page.table(header, lines, words=(0, 1, 2, 3, 4))
        self.page.paragraph("A star marks a commit with changes that were not committed.")
        for name, reason in self.left_out.items():
            self.page.note(f"Figures that need inputs of {data_title(name)} are left out: {reason}", good=False)

    # -- figures from models ---------------------------------------------------------------------------------------------

    def _first_runs(self) -> list[ReportedRun]:
        """One run of each variant with a learnt end-time on each data set, the first seed."""
        first: dict[tuple[str, Variant], ReportedRun] = {}
        for run in sorted(self.runs, key=lambda run: -1 if run.seed is None else run.seed):
            if run.variant.model.startswith(("lt-node", "alt-node")):
                first.setdefault((run.data, run.variant), run)
        return list(first.values())

    def _schematic(self, run: ReportedRun) -> _Drawing | None:
        model, data = run.model(), self._dataset(run.data)
        if not isinstance(model, LatentTimeODE) or data is None:
            return None
        made = schematic_of(model, data, run.variant.model)
        alt = f"Trajectory, end-times and predictions of one test input of {data_title(run.data)}."
        stem = _file_name("figure-1", run.data, run.variant.model, run.variant.preset, run.variant.detail)
        return _Drawing(stem, partial(figure_1_schematic, made=made), alt, schematic_caption(made))

    def _synthetic(self) -> _Drawing | None:
        names = [data for data in self.rows.data_sets("regression") if data in ("gap", "synthetic")]
        data = self._dataset(names[0]) if names else None
        if data is None:
            return None
        models = self._models(names[0])
        caption = (
            "Figure 2: mean and bands of one and two standard deviations over the members on 1-D data with a gap, and the mean "
            "entropy E in (-0.5, 0.5)."
        )
        draw = partial(figure_2_synthetic, models=models, data=data)
        return _Drawing("figure-2", draw, "Predictions of every model on the 1-D data.", caption) if models else None

    def _posterior_drawings(self) -> list[_Drawing]:
        drawings = []
        for data in data_in_order(run.data for run in self.runs):
            name, models = data_title(data), self._models(data)
            inputs = self._inputs(data, models)
            priors = {prior_of(model) for variant, model in models.items() if variant in inputs or _is_global(model)}
            for number, prior, figure in (
                (5, (1.0, 0.01), figure_5_posterior),
                (6, (2.0, 0.5), figure_6_posterior),
            ):
                if prior in priors:
                    caption = f"Figure {number}, {name}: learnt q(T) beside the prior Gamma({prior[0]:g}, {prior[1]:g})."
                    draw = partial(figure, models=models, inputs=inputs)
                    alt = f"Posterior densities over the end-time on {name}."
                    drawings.append(_Drawing(_file_name(f"figure-{number}", data), draw, alt, caption))
            histories: dict[Variant, list[list[dict[str, object]]]] = {}
            for run in self.runs:
                if run.data == data and any("q50" in line.get("learnt", {}) for line in run.history):
                    histories.setdefault(run.variant, []).append(run.history)
            learnt = {variant: lines for variant, lines in histories.items() if variant.model.startswith(("lt-", "alt-"))}
            if learnt:
                caption = f"q(T) over training on {name}: median, and 5 to 95 %, one line per seed."
                draw = partial(figure_posterior_over_training, histories=learnt)
                alt = f"End-times against training steps on {name}."
                drawings.append(_Drawing(_file_name("posterior-over-training", data), draw, alt, caption))
        return drawings

    def _models(self, data: str) -> dict[Variant, Model]:
        """The first seed's model of every variant on a data set."""
        found: dict[Variant, Model] = {}
        for run in sorted(self.runs, key=lambda run: -1 if run.seed is None else run.seed):
            if run.data == data and run.variant not in found and (model := run.model()) is not None:
                found[run.variant] = model
        return {variant: found[variant] for variant in in_order(found)}

    def _inputs(self, data: str, models: Mapping[Variant, Model]) -> dict[Variant, Tensor]:
        """Test inputs for models whose posterior depends on them."""
        wanting = [v for v, m in models.items() if prior_of(m) is not None and not _is_global(m)]
        dataset = self._dataset(data) if wanting else None
        if dataset is None:
            return {}
        return {variant: dataset.prepare(dataset.test.x[:_POSTERIOR_INPUTS]) for variant in wanting}

    def _dataset(self, name: str) -> Dataset | None:
        if name in self.left_out:
            return None
        if name not in self.datasets:
            try:
                self.datasets[name] = load_data(name)
            except (DataError, InputError) as error:
                _LOG.warning("figures that need inputs of %s are left out: %s", name, error)
                self.left_out[name] = str(error)
                return None
        return self.datasets[name]

    # -- writing ---------------------------------------------------------------------------------------------------------

    def _figure(self, drawing: _Drawing) -> None:
        stem = self.out / "figures" / drawing.stem
        drawn: dict[bool, Figure] = {}

        def draw(theme: Theme) -> Figure:
            drawn[theme.dark] = drawing.draw(theme)
            return drawn[theme.dark]

        self.page.figure(save_figure(draw, stem, alt=drawing.alt, caption=drawing.caption))
        with themed(LIGHT):
            # The layout is that of the light drawing, which is half of the work.
            drawn[False].set_layout_engine("none")
            # No date in the file: the same figure has the same bytes.
            drawn[False].savefig(stem.with_name(f"{stem.name}.pdf"), metadata={"CreationDate": None})

    def _table(self, table: tables.Table) -> None:
        if not table.rows:
            return
        self.page.paragraph(f"{table.title}.")
        self.page.table(table.header, [[_unbroken(cell) for cell in row] for row in table.rows], words=table.words)
        if table.note:
            self.page.paragraph(table.note)
        folder = self.out / "tables"
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, text in (("md", table.markdown()), ("tex", table.latex()), ("html", table.html())):
            (folder / f"{table.name}.{suffix}").write_text(text, encoding="utf-8")

    def _seed_words(self, protocol: str, data: str) -> str:
        seeds = self.rows.seeds(protocol, data)
        return f"Mean and one standard deviation over {seeds} seeds." if seeds > 1 else "One seed."


def _file_name(*words: str | None) -> str:
    """Words that are there, in letters that every file system takes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(word for word in words if word)).strip("-")


def _distinct(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _commit(provenance: Mapping[str, Any]) -> str:
    commit = provenance.get("git_commit")
    return tables.MISSING if commit is None else f"{commit[:8]}{'*' if provenance.get('git_modified') else ''}"


def _unbroken(cell: str) -> str:
    """Numbers with their deviation, and names of models, stay on one line of a narrow column."""
    return cell.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}").replace("-NODE", "\N{NON-BREAKING HYPHEN}NODE")


def _is_global(model: Model) -> bool:
    return isinstance(model, LatentTimeODE) and not model.end_time.amortized
