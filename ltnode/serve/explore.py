"""What the explorer shows: a changed input, the prediction at every end-time, the posterior, a regression curve."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import torch

from ltnode.data import load as load_data
from ltnode.endtime import FixedTime
from ltnode.errors import InputError
from ltnode.evaluation.attacks import fgsm
from ltnode.evaluation.shifts import CORRUPTIONS, rotate
from ltnode.models import LatentTimeODE
from ltnode.serve.samples import samples_of
from ltnode.serve.schemas import Change
from ltnode.trained import PredictionRow, TrainedModel, to_png
from ltnode.typing import Float, Tensor

_DENSITY_POINTS = 201
_GENERATED = ("synthetic", "gap")
"""Regression data of one input that are made, not read: a run on them can show its training points."""


@torch.no_grad()
def describe_model(trained: TrainedModel) -> dict[str, Any]:
    """What /api/models says about a model."""
    model = trained.model
    end_time: dict[str, Any] = {"kind": "none", "window": None, "facts": {}}
    posterior = None
    if isinstance(model, LatentTimeODE):
        own = model.end_time
        facts = {} if own.amortized else model.describe()
        end_time = {"kind": own.kind, "window": list(own.window), "facts": facts}
        if not own.amortized:
            posterior = posterior_density(model, None, _last_time(model, own.quantile([0.05, 0.95])))
    point = trained.operating_point
    return {
        "name": trained.name,
        "task": trained.task,
        "kind": "image" if trained.is_image else "vector",
        "shape": list(trained.shape),
        "classes": list(trained.class_names),
        "data": trained.data,
        "end_time": end_time,
        "posterior": posterior,
        "operating_point": None if point is None else point.to_json(),
        "samples": [
            {"id": sample.name, "title": sample.title, "label": sample.label_for(trained.data)}
            for sample in samples_of(trained.shape)
        ],
    }


def check_latent_time(trained: TrainedModel) -> LatentTimeODE:
    """The model, if it is one whose ODE can be stopped anywhere.

    Raises:
        InputError: It is of another kind.
    """
    if not isinstance(trained.model, LatentTimeODE):
        kind = type(trained.model).__name__
        raise InputError(f"{trained.name} is a {kind}, which has no end-time: a trajectory needs NODE, Uni-, LT- or ALT-NODE")
    return trained.model


def check_change(trained: TrainedModel, change: Change) -> None:
    """Changes must mean something for the model's inputs.

    Raises:
        InputError: Images are turned, disturbed and attacked; vectors and regression models are not.
    """
    asked = [name for name in ("rotation", "noise", "epsilon") if getattr(change, name) > 0]
    if asked and not trained.is_image:
        raise InputError(f"change.{asked[0]} is for images; {trained.name} takes vectors")
    if change.epsilon > 0 and trained.task != "classification":
        raise InputError(f"change.epsilon attacks a class; {trained.name} is a regression model")


def changed_input(
    trained: TrainedModel, raw: Float[Tensor, "1 *shape"], change: Change, samples: int
) -> Float[Tensor, "1 *shape"]:
    """Network input after rotation, noise and attack, in this order.

    Rotation and noise act on pixels in [0, 1], which are clipped; the attack (FGSM on the averaged prediction, against the
    class predicted so far) acts on the normalised input and stays within the range of real pixels.
    """
    if change.rotation:
        raw = rotate(raw, change.rotation)
    if change.noise:
        generator = torch.Generator().manual_seed(change.seed)
        raw = CORRUPTIONS["gaussian-noise"].apply(raw, change.noise, generator).clamp(0, 1)
    x = trained.prepare(raw)
    if change.epsilon:
        label = trained.predict_inputs(x, samples).labels
        low, high = _pixel_range(trained)
        x = fgsm(lambda z: trained.model.log_probs(z, samples), x, label, change.epsilon, low, high).x
    return x


def _pixel_range(trained: TrainedModel) -> tuple[list[float], list[float]]:
    """Smallest and largest normalised pixel of each channel."""
    constants = trained.normalise
    if constants is None:
        return [0.0] * trained.shape[0], [1.0] * trained.shape[0]
    pairs = list(zip(constants.mean, constants.std, strict=True))
    return [(0.0 - mean) / std for mean, std in pairs], [(1.0 - mean) / std for mean, std in pairs]


def picture(trained: TrainedModel, x: Float[Tensor, "1 *shape"]) -> str | None:
    """The network input as a PNG in base64, denormalised and clipped; None for vectors and other than 1 or 3 channels."""
    if not trained.is_image or trained.shape[0] not in (1, 3):
        return None
    pixels = x[0].detach().cpu().double()
    if trained.normalise is not None:
        mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (trained.normalise.mean, trained.normalise.std))
        pixels = pixels * std + mean
    return base64.b64encode(to_png((pixels.clamp(0, 1) * 255).round().to(torch.uint8))).decode("ascii")


def trajectory(
    trained: TrainedModel, raw: Float[Tensor, "1 *shape"], change: Change, points: int, samples: int
) -> dict[str, Any]:
    """The prediction at ``points`` times from 0 to the end of the window, or to the last end-time where that is later.

    All of them come from one solve by its dense output. The row is that of `TrainedModel.rows` for the changed input.
    """
    model = check_latent_time(trained)
    x = changed_input(trained, raw, change, samples)
    prediction = trained.predict_inputs(x, samples)
    times = prediction.times.reshape(samples, -1)[:, 0].double()
    t = torch.linspace(0.0, _last_time(model, times), points, dtype=torch.float64)
    with torch.no_grad():
        outputs = model.outputs_at(model.solve(model.initial_state(x), t.to(x.device, x.dtype), "stored").states)[:, 0]
    classes = trained.task == "classification"
    return {
        "model": trained.name,
        "t": t.tolist(),
        "probs": outputs.softmax(-1).tolist() if classes else None,
        "means": None if classes else outputs[:, 0].tolist(),
        "posterior": posterior_density(model, x, float(t[-1])),
        "times": times.tolist(),
        "prediction": trained.rows_of(prediction, x)[0].to_json(),
        "evaluations": prediction.stats.n_evaluations if prediction.stats else 0,
        "image": picture(trained, x),
    }


@torch.no_grad()
def posterior_density(model: LatentTimeODE, x: Float[Tensor, "1 *shape"] | None, t_end: float) -> dict[str, list[float]] | None:
    """Density of the end-time on [0, t_end], of one input where each has its own; None for a fixed end-time."""
    end_time = model.end_time
    if isinstance(end_time, FixedTime):
        return None
    t = torch.linspace(0.0, t_end, _DENSITY_POINTS, dtype=torch.float64)
    # At 0 the density of a Gamma distribution may be infinite: the first point shows it just beside.
    t[0] = t_end * 1e-3
    own = end_time(x if end_time.amortized else None)
    at = t.to(own.device, own.dtype)
    log_density = own.log_prob(at[:, None] if end_time.amortized else at).reshape(-1).double()
    return {"t": t.tolist(), "density": log_density.exp().nan_to_num(0.0, posinf=0.0).tolist()}


def _last_time(model: LatentTimeODE, times: Tensor) -> float:
    """End of the window, or the last of some end-times where that is later, as it may be without truncation."""
    return max(float(model.end_time.window[1]), float(times.max()))


def check_sweep(trained: TrainedModel, first: TrainedModel) -> None:
    """A sweep needs classifiers of images of one shape.

    Raises:
        InputError: One is of another kind.
    """
    if not trained.is_image or trained.task != "classification":
        raise InputError(f"a sweep turns images and follows a class; {trained.name} is no classifier of images")
    if trained.shape != first.shape:
        raise InputError(f"{trained.name} takes images of shape {trained.shape}, {first.name} of {first.shape}: sweep them apart")


def turned(raw: Float[Tensor, "1 C H W"], angles: Sequence[float]) -> Float[Tensor, "_ C H W"]:
    """The image as it is, and turned by each of the angles."""
    return torch.cat([raw, *(rotate(raw, angle) for angle in angles)])


def sweep_curve(trained: TrainedModel, rows: Sequence[PredictionRow]) -> dict[str, Any]:
    """One model over the angles.

    Args:
        trained: The model.
        rows: Its predictions of the image as it is and of every turned one.
    """
    upright, *at_angles = [row.to_json() for row in rows]
    return {
        "model": trained.name,
        "probability": [row["probs"][upright["label"]] for row in at_angles],
        "labels": [row["label"] for row in at_angles],
        **{key: [row[key] for row in at_angles] for key in ("entropy", "epistemic", "ood")},
    }


def curve(trained: TrainedModel, points: int, samples: int) -> dict[str, Any]:
    """Mean and spread of a regression model of one input over the range of its training data and half as much beside it.

    Raises:
        InputError: The model is no such model.
    """
    check_curve(trained)
    known = training_points(trained)
    if known is not None:
        low, high = float(known[0].min()), float(known[0].max())
    elif trained.normalise is not None:
        mean, std = trained.normalise.mean[0], trained.normalise.std[0]
        low, high = mean - math.sqrt(3) * std, mean + math.sqrt(3) * std
    else:
        low, high = -1.0, 1.0
    beside = (high - low) / 2
    x = torch.linspace(low - beside, high + beside, points)
    prediction = trained.predict(x[:, None], samples)
    return {
        "model": trained.name,
        "x": x.tolist(),
        "mean": prediction.mean.tolist(),
        "std": prediction.std.tolist(),
        "noise_std": float(prediction.noise_std),
        "members": prediction.member_means.tolist(),
        "points": None if known is None else {"x": known[0].tolist(), "y": known[1].tolist()},
    }


def check_curve(trained: TrainedModel) -> None:
    """A curve needs a regression model of one input.

    Raises:
        InputError: It is of another kind.
    """
    if trained.task != "regression" or trained.shape != (1,):
        kind = "images" if trained.is_image else f"{trained.shape[0]} numbers"
        raise InputError(f"a curve needs a regression model of one number; {trained.name} is a {trained.task} model of {kind}")


def training_points(trained: TrainedModel) -> tuple[Tensor, Tensor] | None:
    """The training data (N,), (N,) of a regression model of one input, where they are generated; None otherwise."""
    if trained.data not in _GENERATED:
        return None
    data = load_data(trained.data)
    if data.task != "regression" or tuple(data.input_shape) != (1,):
        return None
    return data.train.x[:, 0], data.train.y.reshape(-1)
