"""Figure 1: how a prediction is made, drawn from a trained model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ltnode.data import Dataset
from ltnode.models import LatentTimeODE
from ltnode.report.figures_models import mean_density
from ltnode.report.naming import model_title
from ltnode.report.style import Theme, new_figure, panel_title
from ltnode.typing import Float, Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DENSE = 80
_SHOWN_CLASSES = 4


@dataclass(frozen=True, eq=False)
class Schematic:
    """How one prediction comes about, for `figure_1_schematic`.

    Attributes:
        model: Name of the model.
        image: Raw input image (C, H, W) in [0, 1]; None for vectors.
        label: What the input is.
        t: (n,) times along the trajectory.
        path: (n, 2) the trajectory, projected on its two main directions.
        share: Share of the trajectory's variance that the projection shows.
        density: (n,) q(T) at the times; None for a model without a density.
        prior: (n,) p(T); None where there is none.
        times: (S,) the sampled end-times.
        at_times: (S, 2) the trajectory there.
        outputs: (n, K) what is predicted at every time: probabilities of K classes, or the one mean.
        members: (S, K) the same at the sampled end-times.
        average: (K,) their mean, the prediction.
        names: Of the K outputs.
        classes: Whether the outputs are probabilities.
    """

    model: str
    image: Tensor | None
    label: str
    t: Float[Tensor, " n"]
    path: Float[Tensor, "n 2"]
    share: float
    density: Float[Tensor, " n"] | None
    prior: Float[Tensor, " n"] | None
    times: Float[Tensor, " S"]
    at_times: Float[Tensor, "S 2"]
    outputs: Float[Tensor, "n K"]
    members: Float[Tensor, "S K"]
    average: Float[Tensor, " K"]
    names: tuple[str, ...]
    classes: bool


@torch.no_grad()
def schematic_of(model: LatentTimeODE, data: Dataset, name: str, index: int = 0, samples: int = 10) -> Schematic:
    """Solve one test input along all times, and at the end-times of a prediction.

    Args:
        model: A trained model.
        data: Its data set.
        name: Name of the model.
        index: Of the test input.
        samples: End-times S.
    """
    model.eval()
    reference = next(model.parameters())
    raw = data.test.x[index : index + 1]
    x = data.prepare(raw.to(reference.device)).to(reference.dtype)
    times = model.prediction_times(x, samples).reshape(samples, -1)[:, 0].sort().values
    end = max(float(times.max()), float(model.end_time.window[1]))
    dense = torch.linspace(0.0, end, _DENSE, dtype=x.dtype, device=x.device)
    states = model.solve(model.initial_state(x), torch.cat([dense, times.to(x.dtype)]), "stored").states
    outputs = model.outputs_at(states)[:, 0]
    if model.task == "classification":
        outputs = outputs.softmax(-1)
    flat = states[:, 0].flatten(1).double()
    centred = flat - flat[:_DENSE].mean(0)
    _, singular, directions = torch.linalg.svd(centred[:_DENSE], full_matrices=False)
    projected = (centred @ directions[:2].T).cpu()
    if projected.shape[1] < 2:
        projected = torch.nn.functional.pad(projected, (0, 2 - projected.shape[1]))
    shown = outputs[_DENSE:].mean(0).topk(min(_SHOWN_CLASSES, outputs.shape[1])).indices
    density, prior = _densities(model, x, dense)
    target = data.test.y[index]
    return Schematic(
        model=name,
        image=_picture(raw) if data.is_image else None,
        label=_class_name(data, int(target)) if model.task == "classification" else f"x = {float(raw.flatten()[0]):.2f}",
        t=dense.cpu(),
        path=projected[:_DENSE].float(),
        share=float(singular[:2].square().sum() / singular.square().sum()),
        density=density,
        prior=prior,
        times=times.cpu().float(),
        at_times=projected[_DENSE:].float(),
        outputs=outputs[:_DENSE, shown].cpu().float(),
        members=outputs[_DENSE:, shown].cpu().float(),
        average=outputs[_DENSE:, shown].mean(0).cpu().float(),
        names=tuple(_class_name(data, k) for k in shown.tolist()) if model.task == "classification" else ("mean",),
        classes=model.task == "classification",
    )


def figure_1_schematic(theme: Theme, made: Schematic) -> Figure:
    """Figure 1 from a trained run: trajectory, q(T) with the sampled times, predictions there, and their average."""
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
    colour = theme.of_model(made.model)
    axes.plot(made.path[:, 0].numpy(), made.path[:, 1].numpy(), color=colour, lw=1.8)
    axes.plot(made.path[:1, 0].numpy(), made.path[:1, 1].numpy(), marker="s", ms=6, color=theme.text, ls="none", label="h(0)")
    axes.plot(
        made.at_times[:, 0].numpy(),
        made.at_times[:, 1].numpy(),
        marker="o",
        ms=5,
        color=colour,
        mec=theme.background,
        ls="none",
        label="h(Tₛ)",
    )
    axes.margins(0.18)
    axes.set_xlabel("first main direction of h(t)")
    axes.set_ylabel("second")
    axes.legend(loc="best")
    panel_title(axes, "Trajectory", f"{100 * made.share:.0f} % of its variance")


def _times_panel(axes: Axes, theme: Theme, made: Schematic) -> None:
    colour = theme.of_model(made.model)
    if made.prior is not None:
        axes.plot(made.t.numpy(), made.prior.numpy(), color=theme.faint, ls=(0, (4, 3)), label="prior p(T)")
    if made.density is not None:
        axes.fill_between(made.t.numpy(), 0, made.density.numpy(), color=colour, alpha=0.16, lw=0)
        axes.plot(made.t.numpy(), made.density.numpy(), color=colour, label="posterior q(T)")
        finite = made.density[torch.isfinite(made.density)]
        axes.set_ylim(0, 1.3 * float(finite.quantile(0.995)))
        axes.set_ylabel("density")
        axes.legend(loc="upper right", frameon=True, facecolor=theme.background, edgecolor="none", framealpha=0.85)
    else:
        axes.set_yticks([])
    for moment in made.times.tolist():
        axes.axvline(moment, color=colour, lw=0.9, alpha=0.6)
    axes.set_xlim(0, float(made.t[-1]))
    axes.tick_params(labelbottom=False)
    panel_title(axes, "Sampled end-times Tₛ", f"S = {len(made.times)}")


def _outputs_panel(axes: Axes, theme: Theme, made: Schematic) -> None:
    for moment in made.times.tolist():
        axes.axvline(moment, color=theme.of_model(made.model), lw=0.9, alpha=0.25)
    for k, name in enumerate(made.names):
        colour = theme.hues[k % len(theme.hues)]
        axes.plot(made.t.numpy(), made.outputs[:, k].numpy(), color=colour, label=name)
        axes.plot(made.times.numpy(), made.members[:, k].numpy(), marker="o", ms=4, ls="none", color=colour, mec=theme.background)
    axes.set_xlabel("end-time T")
    axes.set_ylabel("probability" if made.classes else "prediction")
    if made.classes:
        axes.set_ylim(-0.03, 1.03)
    panel_title(axes, "Prediction at every end-time")


def _average_panel(axes: Axes, theme: Theme, made: Schematic) -> None:
    positions = list(range(len(made.names)))
    colours = [theme.hues[k % len(theme.hues)] for k in positions]
    axes.barh(positions, made.average.numpy(), color=colours, height=0.62, alpha=0.85)
    for k in positions:
        axes.plot(made.members[:, k].numpy(), [k] * len(made.times), marker="|", ms=11, ls="none", color=theme.text, alpha=0.6)
    axes.set_yticks(positions, made.names)
    axes.invert_yaxis()
    axes.set_xlabel("probability" if made.classes else "prediction")
    if made.classes:
        axes.set_xlim(0, 1.02)
    panel_title(axes, "Average", f"truth: {made.label}" if made.classes else made.label)


def schematic_caption(made: Schematic) -> str:
    """The line under Figure 1."""
    return (
        f"Figure 1, drawn from a trained {model_title(made.model)}: one solve gives the trajectory h(t) of a test input (left, "
        f"projected); {len(made.times)} end-times from q(T) (above) give as many predictions (below), and their average is the "
        "prediction (right; strokes are the single ones)."
    )


def _densities(model: LatentTimeODE, x: Tensor, t: Tensor) -> tuple[Tensor | None, Tensor | None]:
    end_time = model.end_time
    if not end_time.learnable:
        return None, None
    q: Any = end_time(x if end_time.amortized else None)
    # A little inside: densities may be infinite at 0, and drop to 0 at the end of the window.
    inner = t.clamp(float(t[-1]) * 1e-3, float(t[-1]) * (1 - 1e-6))
    return mean_density(q, inner), mean_density(q.prior, inner)


def _picture(raw: Tensor) -> Tensor:
    image = raw[0].cpu()
    return image.float() / 255 if image.dtype == torch.uint8 else image.float().clamp(0, 1)


def _class_name(data: Dataset, k: int) -> str:
    return data.class_names[k] if data.class_names is not None else f"class {k}"
