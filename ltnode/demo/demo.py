"""``ltnode demo``: four models on data with a gap, in under three minutes; what they predict there, and whether they know it.

The setting is the users' default, not the paper's: small networks without BatchNorm, Adam, fewer points, posteriors truncated to
the training window.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ltnode import metrics
from ltnode.data import Dataset, gap_data, gap_grid
from ltnode.demo.gap import REGIONS, gamma_text, in_gap, learnt, posterior_of, times_along, truth
from ltnode.demo.training import POINTS, STEPS, TOLERANCE, Watch, one_thread, train_models
from ltnode.endtime import AmortizedGammaTime, FixedTime, GammaTime, UniformTime
from ltnode.errors import InputError, unknown_name
from ltnode.files import read_json, remove_folder, write_json
from ltnode.models import MODELS, Model
from ltnode.report.figures_1d import Curve, posterior_figure, prediction_figure
from ltnode.report.naming import model_title
from ltnode.report.page import Page
from ltnode.report.style import SavedFigure, save_figure
from ltnode.training import load

DEFAULT_MODELS = ("node", "uni-node", "lt-node", "alt-node")
CHECKED = ("lt-node", "alt-node")
"""Models that must fit the data and be unsure in the gap."""
LARGEST_RMSE = 0.12
SMALLEST_RATIO = 2.0


@dataclass(frozen=True)
class Row:
    """What the demo found about one model.

    Attributes:
        model: Its name.
        title: What tables call it.
        rmse: Of the mean on the training data; the noise in them is 0.1.
        std_data: Mean standard deviation of the members at the training inputs.
        std_gap: The same on the grid points between -0.5 and 0.5.
        end_time: Its distribution of T, in words.
        tail: P(T > 3); the mean over the training inputs where every input has its own T.
        evaluations: Calls of the field for one prediction of 800 inputs with 10 end-times.
        seconds: Training time.
        misses: What it should do and does not; empty for models that are not checked.
    """

    model: str
    title: str
    rmse: float
    std_data: float
    std_gap: float
    end_time: str
    tail: float | None
    evaluations: int | None
    seconds: float
    misses: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """How many times larger the standard deviation is in the gap; None for a model without spread."""
        return self.std_gap / self.std_data if self.std_data > 0 else None


@dataclass(frozen=True)
class DemoResult:
    """What the demo wrote.

    Attributes:
        rows: One per model.
        page: The HTML page.
        figures: The figures on it.
        seconds: Wall time of everything.
    """

    rows: tuple[Row, ...]
    page: Path
    figures: tuple[SavedFigure, ...]
    seconds: float


def run_demo(
    out: Path,
    models: Sequence[str] = DEFAULT_MODELS,
    *,
    seed: int = 0,
    steps: int = STEPS,
    jobs: int | None = None,
    watch: Watch | None = None,
) -> DemoResult:
    """Train the models, look at them, write runs, figures, results.json and index.html.

    Args:
        out: The folder; runs that an earlier demo left in it are replaced.
        models: Names for `ltnode.build`.
        seed: Of data, weights and end-times.
        steps: Training steps.
        jobs: Models trained at the same time, each in a process of its own; by default 2 where there are two cores.
        watch: Told about the progress when there are several jobs; with one, training shows its own bar.
    """
    for name in models:
        if name not in MODELS:
            raise InputError(unknown_name("model", name, MODELS))
    began = time.monotonic()
    jobs = min(2, _cores(), len(models)) if jobs is None else jobs
    folders = {name: out / "runs" / name for name in models}
    for folder in folders.values():
        if (folder / "config.json").exists():
            remove_folder(folder)
    train_models(folders, seed, steps, jobs, watch)
    data = gap_data(POINTS, seed)
    with one_thread():
        trained = {name: load(folder) for name, folder in folders.items()}
        rows = tuple(look(model, name, data, _seconds(folders[name])) for name, model in trained.items())
        figures = _draw(out, trained, rows, data)
    provenance = _results(next(iter(folders.values())))["provenance"]
    setting = {"points": POINTS, "steps": steps, "seed": seed, "preset": "default", "optimizer": "adam"}
    write_json(
        out / "results.json",
        {"setting": setting, "rows": [{**asdict(row), "misses": list(row.misses)} for row in rows], "provenance": provenance},
    )
    page = _write_page(out, rows, figures, setting, provenance)
    return DemoResult(rows, page, figures, time.monotonic() - began)


def _cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def look(model: Model, name: str, data: Dataset, seconds: float) -> Row:
    """Measure one trained model."""
    grid = gap_grid()
    on_data, along = model.predict(data.train.x), model.predict(grid)
    rmse = metrics.rmse(on_data.mean, data.train.y)
    std_data, std_gap = float(on_data.std.mean()), float(along.std[in_gap(grid)].mean())
    misses = []
    if name in CHECKED:
        if not rmse <= LARGEST_RMSE:
            misses.append(f"training RMSE {rmse:.3f} is above {LARGEST_RMSE:g}")
        if not std_gap >= SMALLEST_RATIO * std_data or std_gap == 0:
            misses.append(f"std in the gap {std_gap:.3f} is below {SMALLEST_RATIO:g} times that on the data, {std_data:.3f}")
    words, tail = _end_time(model, data)
    evaluations = along.stats.n_evaluations if along.stats else None
    return Row(name, model_title(name), rmse, std_data, std_gap, words, tail, evaluations, seconds, tuple(misses))


@torch.no_grad()
def _end_time(model: Model, data: Dataset) -> tuple[str, float | None]:
    """The end-time in words, and P(T > 3)."""
    end_time: Any = getattr(model, "end_time", None)
    if end_time is None:
        return "–", None
    x = data.train.x if end_time.amortized else None
    tail = float(end_time.tail(3.0, x).mean())
    if isinstance(end_time, FixedTime):
        return f"T = {end_time.window[1]:g}", tail
    if isinstance(end_time, UniformTime):
        return f"uniform on ({end_time.window[0]:g}, {end_time.window[1]:g})", tail
    if isinstance(end_time, GammaTime):
        return gamma_text(end_time), tail
    if isinstance(end_time, AmortizedGammaTime):
        grid = gap_grid()
        gap = float(end_time(grid[in_gap(grid)]).mean.mean())
        return f"per input; mean T {float(end_time(x).mean.mean()):.2f} on the data, {gap:.2f} in the gap", tail
    return f"mean T {float(end_time(x).mean.mean()):.2f}", tail


def _results(folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = read_json(folder / "results.json", lambda value: isinstance(value, dict), "a run folder")
    return results


def _seconds(folder: Path) -> float:
    return float(_results(folder)["provenance"]["wall_time_s"])


# -- figures and page ------------------------------------------------------------------------------------------------------------


def _draw(out: Path, trained: dict[str, Model], rows: Sequence[Row], data: Dataset) -> tuple[SavedFigure, ...]:
    grid = gap_grid()
    curves = []
    for row in rows:
        predicted = trained[row.model].predict(grid)
        detail = "one end-time, no spread" if row.ratio is None else f"std in the gap {row.ratio:.1f} × that on the data"
        curves.append(Curve(row.model, row.title, grid[:, 0], predicted.mean, predicted.std, detail))
    points = (data.train.x[:, 0], data.train.y)
    figures = [
        save_figure(
            lambda theme: prediction_figure(theme, curves, points, regions=REGIONS, truth=truth(grid)),
            out / "figures" / "predictions",
            alt="Predictive mean and bands of one and two standard deviations of each model on data with a gap",
            caption="Data exist only in the shaded intervals. Bands are the spread over end-times, without observation noise.",
        )
    ]
    groups = {"the data": data.train.x, "the gap": grid[in_gap(grid)]}
    with_posterior = {name: model for name, model in trained.items() if learnt(model) is not None}
    posteriors = [q for name, model in with_posterior.items() if (q := posterior_of(model, name, groups))]
    along = [times for name, model in with_posterior.items() if (times := times_along(model, name, grid))]
    if posteriors:
        figures.append(
            save_figure(
                lambda theme: posterior_figure(theme, posteriors, along),
                out / "figures" / "posterior",
                alt="Learnt densities of the end-time T beside the prior",
                caption="What was learnt about the end-time: density q(T) beside the prior p(T), both on the training window. "
                "ALT-NODE has one density for every input.",
            )
        )
    return tuple(figures)


HEADER = ("model", "fit\nRMSE", "std on\ndata", "std in\ngap", "ratio", "end-time T", "P(T\n> 3)", "field\ncalls", "time,\ns")
WORDS = (0, 5)


def cells(row: Row) -> list[str]:
    """A row of the table, as texts under `HEADER`."""
    return [
        row.title,
        f"{row.rmse:.3f}",
        f"{row.std_data:.3f}" if row.ratio is not None else "–",
        f"{row.std_gap:.3f}" if row.ratio is not None else "–",
        "–" if row.ratio is None else f"{row.ratio:.1f}",
        row.end_time,
        "–" if row.tail is None else f"{row.tail:.2f}",
        "–" if row.evaluations is None else str(row.evaluations),
        f"{row.seconds:.0f}",
    ]


def setting_text(steps: int = STEPS) -> str:
    """What distinguishes the demo from the paper's experiment."""
    return (
        f"This is not the paper's setting: the demo uses the default network (width 32, no BatchNorm), Adam, a solver tolerance "
        f"of {TOLERANCE:g} and {steps} steps on {POINTS} points; the paper has larger networks with BatchNorm, SGD, 1e-2 and "
        "3000 steps on 1500 points (`ltnode reproduce synthetic`)."
    )


def verdicts(rows: Sequence[Row]) -> list[tuple[bool, str]]:
    """For every model that is checked: whether it does what it should, and the sentence that says so."""
    said = []
    for row in rows:
        if row.misses:
            said.append((False, f"{row.title} misses: {'; '.join(row.misses)}."))
        elif row.model in CHECKED:
            fit_text = f"fits the data (RMSE {row.rmse:.3f}, at most {LARGEST_RMSE:g})"
            said.append(
                (True, f"{row.title} {fit_text} and is {_times(row)} less sure in the gap (at least {SMALLEST_RATIO:g} times).")
            )
    return said


def _times(row: Row) -> str:
    return "infinitely" if row.ratio is None else f"{row.ratio:.1f} times"


def _write_page(
    out: Path, rows: Sequence[Row], figures: Sequence[SavedFigure], setting: dict[str, Any], provenance: dict[str, Any]
) -> Path:
    page = Page(
        "Neural ODEs that know what they do not know",
        "Models trained on data with a hole in the middle. A good one follows the data where there are some, "
        "and is unsure where there are none.",
    )
    page.figure(figures[0])
    page.paragraph(
        "NODE, Uni-NODE, LT-NODE and ALT-NODE are the same network: the input becomes a state, the state follows a learnt "
        "differential equation until the end-time T, and the state at T is read out. They differ in T alone. NODE has one T, so "
        "it has one answer everywhere. Uni-NODE draws T from a uniform distribution. LT-NODE learns a distribution q(T), and "
        "ALT-NODE one for every input, q(T | x). Ten end-times of one solve give ten answers: where data tie them together they "
        "agree, elsewhere they part."
    )
    for good, sentence in verdicts(rows):
        page.note(sentence, good=good)
    page.heading("In numbers")
    page.table(HEADER, [cells(row) for row in rows], words=WORDS)
    page.paragraph(
        "Fit RMSE: error of the mean on the training data, whose noise is 0.1. Std: spread of the members, averaged over the "
        "training inputs and over -0.5 < x < 0.5. Field calls: evaluations of the field for a prediction of 800 inputs with "
        "ten end-times, from one solve. P(T > 3) is 0 because the default keeps T inside of the times that training covers."
    )
    if len(figures) > 1:
        page.heading("The learnt end-time")
        page.figure(figures[1])
    page.heading("How this was made")
    page.paragraph(setting_text(setting["steps"]))
    page.paragraph("The trained models are in `runs`; each loads with one line:")
    page.code(
        "import ltnode, torch\n\n"
        f'model = ltnode.load("{(out / "runs" / rows[-1].model).as_posix()}")\n'
        "p = model.predict(torch.tensor([[0.0], [0.8]]))   # in the gap, on the data\n"
        "p.mean, p.std, p.noise_std"
    )
    commit = provenance.get("git_commit")
    page.paragraph(
        f"ltnode {provenance['version']}{f', commit {commit[:10]}' if commit else ''}, seed {setting['seed']}, "
        f"torch {provenance['torch']}, {provenance['device']}."
    )
    return page.write(out / "index.html")
