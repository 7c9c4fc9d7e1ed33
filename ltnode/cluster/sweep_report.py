"""The report of a sweep: what was best, what mattered, and how the trainings went."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ltnode.cluster.observed import Observed
from ltnode.cluster.spec import Choices, Range, SweepSpec
from ltnode.cluster.sweep import SweepResult, Trial
from ltnode.report.page import Page
from ltnode.report.style import Theme, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORT = "report.html"
_ROWS = 50
"""Points in the table of the page; trials.csv has all."""
_CURVES = 200
"""Trainings in the figure of the curves: the best ones."""
_EMPHASISED = 5
_WIDTH = 9.6


def write_report(spec: SweepSpec, result: SweepResult, out: Path) -> Path:
    """Write ``report.html`` and its figures for a finished sweep; returns the path.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    statuses = [trial.status for trial in result.trials]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    lead = f"{spec.n_points} points, {len(result.trials)} trainings ({counts}). Held-out log-likelihood selects, never test data."
    page = Page(f"Sweep of {spec.model} on {', '.join(spec.data)}", lead)
    for data in spec.data:
        _section(page, spec, result, data, out)
    _importance(page, result)
    failed = [trial for trial in result.trials if trial.status not in ("complete", "pruned")]
    if failed:
        page.heading("Trainings that failed")
        page.table(("training", "status", "why"), [(t.name, t.status, t.message) for t in failed[:_ROWS]], words=(0, 1, 2))
    return page.write(out / REPORT)


def ranked_points(result: SweepResult, data: str) -> list[tuple[Trial, float]]:
    """The complete points on a data set, best first: one of their trainings, and the mean over seeds."""
    first = {trial.point: trial for trial in reversed(result.trials) if trial.data == data}
    scores = [(first[point], score) for point, score in result.scores(data).items() if score is not None]
    return sorted(scores, key=lambda entry: -entry[1])


def value_text(value: Any) -> str:
    """A searched value in a table."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _section(page: Page, spec: SweepSpec, result: SweepResult, data: str, out: Path) -> None:
    best, ranked = result.best(data), ranked_points(result, data)
    page.heading(f"Results on {data}")
    if best is None:
        page.note("No point has all its trainings complete.", good=False)
        return
    score = next(score for trial, score in ranked if trial.point == best.point)
    chosen = ", ".join(f"{key} = {value_text(value)}" for key, value in best.values.items()) or "the preset"
    page.note(
        f"Best: {chosen}. Held-out log-likelihood {score:.4f}, the mean of {len(spec.seeds)} seed(s); the run is {best.name}.",
        good=True,
    )
    page.code(f'import ltnode\n\nmodel = ltnode.load("{(out / best.name).as_posix()}")')
    page.figure(_curves(result, data, out))
    if spec.search:
        page.figure(_values(spec, result, data, out))
    keys = list(spec.search)
    rows = [
        (str(place), str(trial.point), *(value_text(trial.values[key]) for key in keys), f"{score:.4f}")
        for place, (trial, score) in enumerate(ranked[:_ROWS], 1)
    ]
    page.table(("rank", "point", *keys, "held-out log-likelihood"), rows)
    if len(ranked) > _ROWS:
        page.paragraph(f"The {_ROWS} best of {len(ranked)} points; `trials.csv` has all trainings.")


def _importance(page: Page, result: SweepResult) -> None:
    if not result.importance:
        return
    page.heading("Importance")
    page.paragraph("Share of the differences in held-out log-likelihood that each key explains (PED-ANOVA of Optuna).")
    page.table(("key", "importance"), [(key, f"{share:.3f}") for key, share in result.importance.items()])


def _curves(result: SweepResult, data: str, out: Path) -> Any:
    complete = [trial for trial in result.trials if trial.data == data and trial.log_likelihood is not None]
    order = sorted(complete, key=lambda trial: -(trial.log_likelihood or -math.inf))[:_CURVES]
    curves = {}
    for trial in order:
        observed = Observed(out / trial.name)
        observed.read()
        curves[trial.name] = sorted(observed.curve.items())

    def draw(theme: Theme) -> Figure:
        from matplotlib.ticker import MaxNLocator

        figure = new_figure(_WIDTH, 3.6)
        axes: Axes = figure.subplots()
        for place, (name, curve) in reversed(list(enumerate(curves.items()))):
            strong = place < _EMPHASISED
            steps, values = ([pair[side] for pair in curve] for side in (0, 1))
            style: dict[str, Any] = {"lw": 1.6, "label": name} if strong else {"lw": 0.6, "alpha": 0.35, "color": theme.text}
            axes.plot(steps, values, marker="o" if len(curve) < 3 else None, ms=3, **style)
        axes.set(xlabel="step", ylabel="held-out log-likelihood")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if curves:
            axes.legend(fontsize="small", frameon=False)
        return figure

    caption = f"Held-out log-likelihood during training, of the {len(curves)} best trainings; the best {_EMPHASISED} have names."
    return save_figure(draw, out / "figures" / f"curves-{Path(data).stem}", alt="Curves of the trainings", caption=caption)


def _label_values(axes: Any, space: Range | Choices) -> None:
    """Ticks at the values of a list, in its order, or at round numbers of a range, few enough that they do not touch."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if not isinstance(space, Range):
        axes.set_xticks(range(len(space)), [value_text(value) for value in space])
        return
    if space.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if space.high <= 100 * space.low else (1.0,), numticks=6))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=space.whole))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: value_text(value)))


def _values(spec: SweepSpec, result: SweepResult, data: str, out: Path) -> Any:
    ranked = ranked_points(result, data)
    keys = list(spec.search)
    columns = min(3, len(keys))
    lines = -(-len(keys) // columns)

    def draw(theme: Theme) -> Figure:
        figure = new_figure(_WIDTH, 2.8 * lines)
        grid = figure.subplots(lines, columns, squeeze=False, sharey=True)
        for place, axes in enumerate(grid.flat):
            if place >= len(keys):
                axes.set_axis_off()
                continue
            key, space = keys[place], spec.search[keys[place]]
            values = [trial.values[key] for trial, _ in ranked]
            x = values if isinstance(space, Range) else [space.index(value) for value in values]
            axes.scatter(x, [score for _, score in ranked], s=12, alpha=0.7)
            _label_values(axes, space)
            axes.set(xlabel=key, ylabel="held-out log-likelihood" if place % columns == 0 else "")
        return figure

    caption = "Every complete point: its searched values, and its held-out log-likelihood as the mean over seeds."
    return save_figure(
        draw, out / "figures" / f"values-{Path(data).stem}", alt="Value against each searched key", caption=caption
    )
