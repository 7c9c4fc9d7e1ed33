"""Sections made of trained models: how a prediction is made, and which end-times were learnt."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ltnode.data import Dataset
from ltnode.data import load as load_data
from ltnode.data import names as data_names
from ltnode.errors import CheckpointError, DataError, InputError
from ltnode.models import LatentTimeODE, Model
from ltnode.report import figures_models, tables
from ltnode.report.aggregate import Rows
from ltnode.report.figure_schematic import figure_1_schematic, schematic_caption, schematic_of
from ltnode.report.figures_1d import Posterior, posterior_figure
from ltnode.report.naming import Variant, data_in_order, data_title, in_order
from ltnode.report.posteriors import learnt_time, posterior_of, prior_of
from ltnode.report.runs import ReportedRun
from ltnode.report.writer import ReportWriter
from ltnode.trained import TrainedModel
from ltnode.training.run_config import CONFIG

_LOG = logging.getLogger("ltnode")
_POSTERIOR_INPUTS = 512
"""Number of test inputs over which q(T | x) is averaged."""
_SCHEMATICS = 2
"""Largest number of schematics on a page; further ones would look alike."""
_LATENT = ("lt-node", "alt-node")
"""Beginnings of the names of models with a learnt end-time."""
_FIGURE_OF_PRIOR = {(1.0, 0.01): 5, (2.0, 0.5): 6}
"""Numbers of the paper's figures of posteriors, by prior."""


class Inputs:
    """The data sets that figures need, loaded on first use.

    Args:
        datasets: Data sets by name that need not be loaded.
        runs: A run folder for every data set, which knows where data of the user are.
    """

    def __init__(self, datasets: Mapping[str, Dataset], runs: Mapping[str, Path]) -> None:
        self._datasets, self._runs = dict(datasets), runs
        self.left_out: dict[str, str] = {}
        """Names of data sets that could not be loaded, with the reason."""

    def get(self, name: str) -> Dataset | None:
        """Return a data set; None if it cannot be loaded."""
        if name not in self._datasets and name not in self.left_out:
            try:
                own = name not in data_names() and (self._runs[name] / CONFIG).exists()
                self._datasets[name] = TrainedModel.open(self._runs[name]).dataset() if own else load_data(name)
            except (CheckpointError, DataError, InputError) as error:
                _LOG.warning("figures that need inputs of %s are left out: %s", name, error)
                self.left_out[name] = str(error)
        return self._datasets.get(name)


def mechanism(writer: ReportWriter, runs: Sequence[ReportedRun], rows: Rows, inputs: Inputs) -> None:
    """Show how a prediction is made: one trajectory, and predictions along a line."""
    writer.heading("How a prediction is made")
    first: dict[tuple[str, Variant], ReportedRun] = {}
    for run in _by_seed(runs):
        if run.variant.model.startswith(_LATENT):
            first.setdefault((run.data, run.variant), run)
    drawn = 0
    for run in first.values():
        if drawn < _SCHEMATICS and _schematic(writer, run, inputs):
            drawn += 1
    name = next((data for data in rows.data_sets("regression") if data in ("gap", "synthetic")), "")
    data, models = (inputs.get(name), _models(runs, name)) if name else (None, {})
    if data is not None and models:
        writer.figure(
            "figure-2",
            draw=partial(figures_models.figure_2_synthetic, models=models, data=data),
            alt="Predictions of every model on the 1-D data.",
            caption="Figure 2: mean and bands of one and two standard deviations over the members on 1-D data with a gap, and "
            "the mean entropy E in (-0.5, 0.5).",
        )


def _schematic(writer: ReportWriter, run: ReportedRun, inputs: Inputs) -> bool:
    """Draw how one prediction of a run is made; returns False if its model or its data are not available."""
    model, data, variant = run.model(), inputs.get(run.data), run.variant
    if not isinstance(model, LatentTimeODE) or data is None:
        return False
    made = schematic_of(model, data, variant.model)
    writer.figure(
        *("figure-1", run.data, variant.model, variant.preset, variant.detail),
        draw=partial(figure_1_schematic, made=made),
        alt=f"Trajectory, end-times and predictions of one test input of {data_title(run.data)}.",
        caption=schematic_caption(made, numbered=run.data in data_names()),
    )
    return True


def posteriors(writer: ReportWriter, runs: Sequence[ReportedRun], rows: Rows, inputs: Inputs) -> None:
    """Show the learnt end-times."""
    writer.heading("Learnt end-times")
    for data in data_in_order(run.data for run in runs):
        _densities(writer, runs, data, inputs)
        _during_training(writer, runs, data)
    writer.table(tables.posterior_table(rows))


def _densities(writer: ReportWriter, runs: Sequence[ReportedRun], data: str, inputs: Inputs) -> None:
    """Draw one figure of posteriors for each prior."""
    by_prior: dict[tuple[float, float], list[Posterior]] = {}
    for variant, model in _models(runs, data).items():
        prior, end_time = prior_of(model), learnt_time(model)
        dataset = inputs.get(data) if end_time is not None and end_time.amortized else None
        groups = {} if dataset is None else {"test inputs": dataset.prepare(dataset.test.x[:_POSTERIOR_INPUTS])}
        posterior = posterior_of(model, variant.model, variant.title, groups)
        if prior is not None and posterior is not None:
            by_prior.setdefault(prior, []).append(posterior)
    for prior, found in sorted(by_prior.items()):
        number, title = _FIGURE_OF_PRIOR.get(prior) if data in data_names() else None, data_title(data)
        writer.figure(
            *(f"posterior-{prior[0]:g}-{prior[1]:g}" if number is None else f"figure-{number}", data),
            draw=partial(posterior_figure, posteriors=found, width=figures_models.PAGE_WIDTH),
            alt=f"Posterior densities over the end-time on {title}.",
            caption=("" if number is None else f"Figure {number}, ")
            + f"{title}: learnt q(T) and the prior Gamma({prior[0]:g}, {prior[1]:g}).",
        )


def _during_training(writer: ReportWriter, runs: Sequence[ReportedRun], data: str) -> None:
    logs: dict[Variant, list[figures_models.Log]] = {}
    for run in runs:
        log = [line for line in run.history if "q50" in line.get("learnt", {})]
        if run.data == data and run.variant.model.startswith(_LATENT) and log:
            logs.setdefault(run.variant, []).append(log)
    if logs:
        writer.figure(
            *("posterior-over-training", data),
            draw=partial(figures_models.figure_posterior_over_training, logs=logs),
            alt=f"End-times against training steps on {data_title(data)}.",
            caption=f"q(T) during training on {data_title(data)}: median, and 5 to 95 %, one line per seed.",
        )


def _by_seed(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    return sorted(runs, key=lambda run: -1 if run.seed is None else run.seed)


def _models(runs: Sequence[ReportedRun], data: str) -> dict[Variant, Model]:
    """The model of the first seed of every variant on a data set."""
    found: dict[Variant, Model] = {}
    for run in _by_seed(runs):
        if run.data == data and run.variant not in found and (model := run.model()) is not None:
            found[run.variant] = model
    return {variant: found[variant] for variant in in_order(found)}
