"""The figures and the page of the demo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ltnode.data import Dataset, gap_grid
from ltnode.demo.gaussian_process import GaussianProcess
from ltnode.demo.results import HEADER, WORDS, Row, cells, verdicts
from ltnode.demo.training import POINTS, STEPS, TOLERANCE
from ltnode.errors import is_installed
from ltnode.models import Model
from ltnode.report.figures_1d import Curve, Outline, posterior_figure, prediction_figure
from ltnode.report.gap import REGIONS, in_gap, truth
from ltnode.report.page import Page
from ltnode.report.posteriors import posterior_of, times_along
from ltnode.report.style import SavedFigure, save_figure

NO_FIGURES = "There are no figures, because matplotlib is not installed: `pip install 'ltnode[plot]'`, then `ltnode demo` again."
_MODELS = (
    "NODE, Uni-NODE, LT-NODE and ALT-NODE are the same network: the input becomes a state, the state follows a learnt "
    "differential equation until the end-time T, and the prediction is read from the state at T. They differ only in T. NODE has "
    "a single T and so a single answer everywhere. Uni-NODE draws T from a uniform distribution. LT-NODE learns a distribution "
    "q(T), and ALT-NODE learns one for every input, q(T | x). Ten end-times of one solve give ten answers. Where the path of an "
    "input leaves those of the training data, a Gaussian process on the path takes over: it has learnt how far and how fast the "
    "targets vary."
)
_COLUMNS = (
    "Fit RMSE: error of the mean on the training data, whose noise has a standard deviation of 0.1. Truth in ±2 std: share of x "
    "in [-2, 2] at which the true function lies within two standard deviations of the mean, noise included. On data: mean "
    "standard deviation in the two intervals with data, relative to the noise. Off data: mean standard deviation elsewhere, "
    "relative to that of a Gaussian process with an RBF kernel on x, which maximises the evidence. Field calls: evaluations of "
    "the field for a prediction of 800 inputs with ten end-times, from one solve."
)


def setting_text(steps: int = STEPS) -> str:
    """How the demo differs from the paper's experiment."""
    return (
        f"This is not the paper's setting: the demo uses the default network (width 32, no BatchNorm), Adam, a solver tolerance "
        f"of {TOLERANCE:g} and {steps} steps on {POINTS} points; the paper has larger networks with BatchNorm, SGD, 1e-2 and "
        "3000 steps on 1500 points (`ltnode reproduce synthetic`)."
    )


def draw_figures(
    folder: Path, trained: Mapping[str, Model], rows: Sequence[Row], data: Dataset, process: GaussianProcess
) -> list[SavedFigure]:
    """Draw the predictions and, if there are any, the learnt end-times; without matplotlib, draw nothing."""
    if not is_installed("matplotlib"):
        return []
    grid = gap_grid()
    curves = []
    for row in rows:
        predicted = trained[row.model].predict(grid)
        detail = f"truth in ±2 std at {row.coverage:.0%} of x"
        curves.append(Curve(row.model, row.title, grid[:, 0], predicted.mean, predicted.total_std, detail))
    points = (data.train.x[:, 0], data.train.y)
    outline = Outline("±2 std of a Gaussian process", *process.predict(grid))
    figures = [
        save_figure(
            lambda theme: prediction_figure(
                theme, curves, points, regions=REGIONS, truth=truth(grid), outline=outline, spread="std with noise"
            ),
            folder / "predictions",
            alt="Predictive mean and bands of one and two standard deviations of each model on data with a gap, and the band of "
            "a Gaussian process",
            caption="Data exist only in the shaded intervals. Bands include the observation noise. The thin lines enclose two "
            "standard deviations of a Gaussian process on x.",
        )
    ]
    groups = {"the data": data.train.x, "the gap": grid[in_gap(grid)]}
    found = [posterior_of(trained[row.model], row.model, f"{row.title}: q(T)", groups) for row in rows]
    along = [times_along(trained[row.model], row.model, f"{row.title}: T against x", grid) for row in rows]
    posteriors, times = [q for q in found if q is not None], [t for t in along if t is not None]
    if posteriors:
        figures.append(
            save_figure(
                lambda theme: posterior_figure(theme, posteriors, times),
                folder / "posterior",
                alt="Learnt densities of the end-time T, and the prior",
                caption="The learnt density q(T) of the end-time and the prior p(T), both on the training window. ALT-NODE has "
                "one density for every input.",
            )
        )
    return figures


def write_page(
    out: Path, rows: Sequence[Row], figures: Sequence[SavedFigure], setting: Mapping[str, Any], provenance: Mapping[str, Any]
) -> Path:
    """Write the page; returns its path.

    The last row is that of the Gaussian process. The first figure shows the predictions, the second one (if any) the end-times;
    without figures, the page says how to get them.
    """
    page = Page(
        "Neural ODEs that know what they do not know",
        "Models trained on data with a gap in the middle. A good model follows the data, and is uncertain where there are none.",
    )
    if figures:
        page.figure(figures[0])
    else:
        page.paragraph(NO_FIGURES)
    page.paragraph(_MODELS)
    for good, sentence in verdicts(rows):
        page.note(sentence, good=good)
    page.heading("In numbers")
    page.table(HEADER, [cells(row) for row in rows], words=WORDS)
    page.paragraph(_COLUMNS)
    if len(figures) > 1:
        page.heading("The learnt end-time")
        page.figure(figures[1])
    page.heading("How this was made")
    page.paragraph(setting_text(setting["steps"]))
    page.paragraph("The trained models are in `runs`; each can be loaded with one line:")
    page.code(_example(out / "runs" / rows[-2].model))
    commit = provenance.get("git_commit")
    version = f"ltnode {provenance['version']}{f', commit {commit[:10]}' if commit else ''}"
    page.paragraph(f"{version}, seed {setting['seed']}, torch {provenance['torch']}, {provenance['device']}.")
    return page.write(out / "index.html")


def _example(run: Path) -> str:
    return (
        f'import ltnode, torch\n\nmodel = ltnode.load("{run.as_posix()}")\n'
        "p = model.predict(torch.tensor([[0.0], [0.8]]))   # in the gap, on the data\n"
        "p.mean, p.std, p.noise_std"
    )
