"""Figure 1: how a prediction is made, drawn from a trained model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ltnode.data import Dataset
from ltnode.models import LatentTimeODE
from ltnode.report.figures_1d import Posterior, posterior_panel
from ltnode.report.naming import model_title
from ltnode.report.posteriors import posterior_of
from ltnode.report.style import Theme, new_figure, panel_title
from ltnode.typing import Float, Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DENSE = 80
_SAMPLES = 10
_SHOWN_CLASSES = 4


@dataclass(frozen=True, eq=False)
class Trace:
    """The state and the prediction at some times.

    Attributes:
        t: The times.
        path: States, projected on the two main directions of the trajectory.
        outputs: Predictions: probabilities of some classes, or the mean.
    """

    t: Float[Tensor, " n"]
    path: Float[Tensor, "n 2"]
    outputs: Float[Tensor, "n K"]


@dataclass(frozen=True, eq=False)
class Schematic:
    """How one prediction is made, for `figure_1_schematic`.

    Attributes:
        model: Name of the model.
        image: Input image (C, H, W) in [0, 1]; None for vectors.
        label: What the input is.
        dense: The trajectory at closely spaced times.
        sampled: The trajectory at the end-times of the prediction, which is the mean of the outputs there.
        share: Share of the trajectory's variance that the projection shows.
        posterior: Densities q(T) and p(T); None for a model without a learnt end-time.
        names: Names of the outputs.
        classes: Whether the outputs are probabilities.
    """

    model: str
    image: Tensor | None
    label: str
    dense: Trace
    sampled: Trace
    share: float
    posterior: Posterior | None
    names: tuple[str, ...]
    classes: bool


@torch.no_grad()
def schematic_of(model: LatentTimeODE, data: Dataset, name: str) -> Schematic:
    """Solve for the first test input, at closely spaced times and at the end-times of a prediction.

    Args:
        model: A trained model.
        data: Its data set.
        name: Name of the model.
    """
    model.eval()
    reference = next(model.parameters())
    raw = data.test.x[:1]
    x = data.prepare(raw.to(reference.device)).to(reference.dtype)
    times = model.prediction_times(x, _SAMPLES).reshape(_SAMPLES, -1)[:, 0].sort().values
    end = max(float(times.max()), float(model.end_time.window[1]))
    dense = torch.linspace(0.0, end, _DENSE, dtype=x.dtype, device=x.device)
    states = model.solve(model.initial_state(x), torch.cat([dense, times.to(x.dtype)]), "stored").states
    path, share = _projected(states[:, 0])
    outputs, classes = model.outputs_at(states)[:, 0], model.task == "classification"
    if classes:
        outputs = outputs.softmax(-1)
    shown = outputs[_DENSE:].mean(0).topk(min(_SHOWN_CLASSES, outputs.shape[1])).indices
    outputs = outputs[:, shown].cpu().float()
    return Schematic(
        model=name,
        image=_picture(raw) if data.is_image else None,
        label=_class_name(data, int(data.test.y[0])) if classes else f"x = {float(raw.flatten()[0]):.2f}",
        dense=Trace(dense.cpu(), path[:_DENSE], outputs[:_DENSE]),
        sampled=Trace(times.cpu().float(), path[_DENSE:], outputs[_DENSE:]),
        share=share,
        posterior=posterior_of(model, name, "", {"one input": x}),
        names=tuple(_class_name(data, k) for k in shown.tolist()) if classes else ("mean",),
        classes=classes,
    )


def _projected(states: Float[Tensor, "m ..."]) -> tuple[Float[Tensor, "m 2"], float]:
    """Project states on the two main directions of the dense part, and return the share of its variance that they explain."""
    flat = states.flatten(1).double()
    centred = flat - flat[:_DENSE].mean(0)
    _, singular, directions = torch.linalg.svd(centred[:_DENSE], full_matrices=False)
    projected = (centred @ directions[:2].T).cpu()
    if projected.shape[1] < 2:
        projected = torch.nn.functional.pad(projected, (0, 2 - projected.shape[1]))
    return projected.float(), float(singular[:2].square().sum() / singular.square().sum())


def figure_1_schematic(theme: Theme, made: Schematic) -> Figure:
    """Draw the trajectory, q(T) with the sampled times, the predictions at these times, and their average."""
    figure = new_figure(9.6, 4.4)
    layout = figure.add_gridspec(2, 3, width_ratios=(1.0, 1.5, 0.8))
    if made.image is not None:
        _input_panel(figure.add_subplot(layout[0, 0]), made.image)
    _trajectory_panel(figure.add_subplot(layout[:, 0] if made.image is None else layout[1, 0]), theme, made)
    above = figure.add_subplot(layout[0, 1])
    below = figure.add_subplot(layout[1, 1], sharex=above)
    _times_panel(above, theme, made)
    _outputs_panel(below, theme, made)
    _average_panel(figure.add_subplot(layout[:, 2]), theme, made)
    return figure


def _input_panel(axes: Axes, image: Tensor) -> None:
    picture = image.permute(1, 2, 0).numpy()
    axes.imshow(picture.squeeze(-1) if picture.shape[-1] == 1 else picture, cmap="gray", vmin=0, vmax=1)
    axes.set_axis_off()
    panel_title(axes, "Input")


def _trajectory_panel(axes: Axes, theme: Theme, made: Schematic) -> None:
    colour, path, ends = theme.of_model(made.model), made.dense.path.numpy(), made.sampled.path.numpy()
    axes.plot(path[:, 0], path[:, 1], color=colour, lw=1.8)
    axes.plot(path[:1, 0], path[:1, 1], marker="s", ms=6, color=theme.text, ls="none", label="h(0)")
    axes.plot(ends[:, 0], ends[:, 1], marker="o", ms=5, color=colour, mec=theme.background, ls="none", label="h(Tₛ)")
    axes.margins(0.18)
    axes.set_xlabel("first main direction of h(t)")
    axes.set_ylabel("second")
    axes.legend(loc="best")
    panel_title(axes, "Trajectory", f"{100 * made.share:.0f} % of its variance")


def _times_panel(axes: Axes, theme: Theme, made: Schematic) -> None:
    if made.posterior is not None:
        posterior_panel(axes, theme, made.posterior)
        axes.legend(loc="upper right", frameon=True, facecolor=theme.background, edgecolor="none", framealpha=0.85)
        axes.set_xlabel("")
    for moment in made.sampled.t.tolist():
        axes.axvline(moment, color=theme.of_model(made.model), lw=0.9, alpha=0.6)
    axes.set_xlim(0, float(made.dense.t[-1]))
    axes.tick_params(labelbottom=False)
    panel_title(axes, "Sampled end-times Tₛ", f"S = {len(made.sampled.t)}")


def _outputs_panel(axes: Axes, theme: Theme, made: Schematic) -> None:
    for moment in made.sampled.t.tolist():
        axes.axvline(moment, color=theme.of_model(made.model), lw=0.9, alpha=0.25)
    for k, name in enumerate(made.names):
        colour = theme.hues[k % len(theme.hues)]
        axes.plot(made.dense.t.numpy(), made.dense.outputs[:, k].numpy(), color=colour, label=name)
        dots: dict[str, Any] = {"marker": "o", "ms": 4, "ls": "none", "color": colour, "mec": theme.background}
        axes.plot(made.sampled.t.numpy(), made.sampled.outputs[:, k].numpy(), **dots)
    axes.set_xlabel("end-time T")
    axes.set_ylabel("probability" if made.classes else "prediction")
    if made.classes:
        axes.set_ylim(-0.03, 1.03)
    panel_title(axes, "Prediction at every end-time")


def _average_panel(axes: Axes, theme: Theme, made: Schematic) -> None:
    positions, members = list(range(len(made.names))), made.sampled.outputs
    colours = [theme.hues[k % len(theme.hues)] for k in positions]
    axes.barh(positions, members.mean(0).numpy(), color=colours, height=0.62, alpha=0.85)
    for k in positions:
        axes.plot(members[:, k].numpy(), [k] * len(members), marker="|", ms=11, ls="none", color=theme.text, alpha=0.6)
    axes.set_yticks(positions, made.names)
    axes.invert_yaxis()
    axes.set_xlabel("probability" if made.classes else "prediction")
    if made.classes:
        axes.set_xlim(0, 1.02)
    panel_title(axes, "Average", f"truth: {made.label}" if made.classes else made.label)


def schematic_caption(made: Schematic, *, numbered: bool = True) -> str:
    """Caption of Figure 1, with or without the number that it has for the data sets of the paper."""
    drawn = "Figure 1, drawn" if numbered else "Drawn"
    return (
        f"{drawn} from a trained {model_title(made.model)}: one solve gives the trajectory h(t) of a test input (left, "
        f"projected). Each of {len(made.sampled.t)} end-times from q(T) (top) gives a prediction (bottom), and their average is "
        "the final prediction (right; strokes mark the single predictions)."
    )


def _picture(raw: Tensor) -> Tensor:
    image = raw[0].cpu()
    return image.float() / 255 if image.dtype == torch.uint8 else image.float().clamp(0, 1)


def _class_name(data: Dataset, k: int) -> str:
    return data.class_names[k] if data.class_names is not None else f"class {k}"
