"""What the explorer page shows: models, trajectories of changed inputs, rotation sweeps, regression curves."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence

import torch

from ltnode.data import load as load_data
from ltnode.endtime import FixedTime
from ltnode.errors import InputError
from ltnode.evaluation.attacks import fgsm
from ltnode.evaluation.shifts import CORRUPTIONS, rotate
from ltnode.models import LatentTimeODE
from ltnode.models.path_model import PathModel
from ltnode.report.naming import data_title, model_title
from ltnode.serve import answers
from ltnode.serve.decoding import RawBatch
from ltnode.serve.requests import Change, TrajectoryRequest
from ltnode.serve.samples import samples
from ltnode.serve.tables import describe_columns
from ltnode.trained import PredictionRow, TrainedModel, to_png
from ltnode.trained.explanation import explain_inputs, part_names
from ltnode.trained.pixels import pixel_bounds
from ltnode.typing import Float, Tensor

_DENSITY_POINTS = 201
_GENERATED = ("synthetic", "gap")
"""Generated regression data sets with one input: we can show their training points without any file."""


@torch.no_grad()
def describe_model(trained: TrainedModel) -> answers.ModelInfo:
    """Describe a model for /api/models."""
    model, point = trained.model, trained.operating_point
    info, posterior = answers.EndTimeInfo(), None
    if isinstance(model, LatentTimeODE):
        end_time = model.end_time
        facts = {} if end_time.amortized else model.describe()
        info = answers.EndTimeInfo.model_validate({"kind": end_time.kind, "window": end_time.window, "facts": facts})
        if not end_time.amortized:
            posterior = _posterior_density(model, None, _last_time(model, end_time.quantile([0.05, 0.95])))
    return answers.ModelInfo(
        name=trained.name,
        title=title(trained),
        task=trained.task,
        kind="image" if trained.is_image else "vector" if trained.schema is None else "table",
        shape=trained.shape,
        classes=trained.class_names,
        data=trained.data,
        end_time=info,
        posterior=posterior,
        operating_point=None if point is None else point.to_json(),
        familiarity=None
        if not trained.has_familiarity
        else answers.FamiliarityInfo(
            n_calibration=trained.n_calibration, false_alarm_rate=trained.false_alarm_rate, problem=trained.flag_problem
        ),
        samples=[
            answers.SampleInfo(id=sample.id, title=sample.title, label=sample.label if trained.data in sample.data else None)
            for sample in samples().values()
            if sample.shape == trained.shape
        ],
        columns=describe_columns(trained),
        target=None if trained.schema is None else trained.schema.target.name,
    )


def title(trained: TrainedModel) -> str:
    """Name of a model for people: kind and data set, such as "LT-NODE, CIFAR10"; else the name of its folder."""
    kind = (trained.model.spec or {}).get("model")
    if kind is None or trained.data is None:
        return trained.name
    suffix = ", as in the paper" if trained.name.endswith("-paper") else ""
    return f"{model_title(kind)}, {data_title(trained.data)}{suffix}"


def check_trajectory(trained: TrainedModel, change: Change) -> None:
    """Require a model with an end-time, and changes that make sense for its inputs."""
    if not isinstance(trained.model, LatentTimeODE):
        kind = type(trained.model).__name__
        raise InputError(f"{trained.name} is a {kind}, which has no end-time: a trajectory needs NODE, Uni-, LT- or ALT-NODE")
    active = [name for name in ("rotation", "noise", "epsilon") if getattr(change, name) > 0]
    if active and not trained.is_image:
        raise InputError(f"change.{active[0]} is for images, but {trained.name} takes vectors")
    if change.epsilon > 0 and trained.task != "classification":
        raise InputError(f"change.epsilon attacks a class, but {trained.name} is a regression model")


def trajectory(trained: TrainedModel, batch: RawBatch, request: TrajectoryRequest) -> answers.TrajectoryAnswer:
    """Predict one input at times from 0 to the end of the window, or to the last end-time if that is later.

    All predictions come from the dense output of one solve. The row is that of `TrainedModel.rows` for the changed input.
    """
    model, samples = trained.model, request.samples
    assert isinstance(model, LatentTimeODE)
    x = _change_input(trained, batch.raw, request.change, samples)
    prediction = trained.predict_inputs(x, samples)
    times = prediction.times.reshape(samples, -1)[:, 0].double()
    t = torch.linspace(0.0, _last_time(model, times), request.points, dtype=torch.float64)
    with torch.no_grad():
        outputs = model.outputs_at(model.solve(model.initial_state(x), t.to(x.device, x.dtype), "stored").states)[:, 0]
    classes = trained.task == "classification"
    return answers.TrajectoryAnswer(
        model=trained.name,
        t=t.tolist(),
        probs=outputs.softmax(-1).tolist() if classes else None,
        means=None if classes else outputs[:, 0].tolist(),
        posterior=_posterior_density(model, x, float(t[-1])),
        times=times.tolist(),
        prediction=answers.prediction_rows(trained.rows_of(prediction, x))[0],
        profile=_profile(trained, x),
        explanation=explain_inputs(trained, x)[0].to_json(part_names(trained))
        if request.explain and trained.has_familiarity
        else None,
        evaluations=prediction.stats.n_evaluations if prediction.stats else 0,
        image=_picture(trained, x),
        notes=batch.notes,
    )


def _profile(trained: TrainedModel, x: Float[Tensor, "1 *shape"]) -> answers.PathProfile | None:
    if not isinstance(trained.model, PathModel) or not trained.has_familiarity:
        return None
    times, distance = trained.model.path_profile(x)
    return answers.PathProfile(t=times.tolist(), distance=distance[:, 0].tolist())


def _change_input(
    trained: TrainedModel, raw: Float[Tensor, "1 *shape"], change: Change, samples: int
) -> Float[Tensor, "1 *shape"]:
    """Network input after rotation, noise and attack, in this order.

    Rotation and noise act on pixels in [0, 1] and are clipped. The attack (FGSM on the averaged prediction, against the
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
        low, high = pixel_bounds(trained.normalise)
        x = fgsm(lambda z: trained.model.log_probs(z, samples), x, label, change.epsilon, low, high).x
    return x


def _picture(trained: TrainedModel, x: Float[Tensor, "1 *shape"]) -> str | None:
    """The network input as a PNG in base64, denormalised and clipped; None for vectors and for 2 or more than 3 channels."""
    if not trained.is_image or trained.shape[0] not in (1, 3):
        return None
    pixels = x[0].detach().cpu().double()
    if trained.normalise is not None:
        mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (trained.normalise.mean, trained.normalise.std))
        pixels = pixels * std + mean
    return base64.b64encode(to_png((pixels.clamp(0, 1) * 255).round().to(torch.uint8))).decode("ascii")


@torch.no_grad()
def _posterior_density(model: LatentTimeODE, x: Float[Tensor, "1 *shape"] | None, t_end: float) -> answers.Density | None:
    """Density of the end-time on [0, t_end], for the input ``x`` if the posterior is amortized; None for a fixed end-time."""
    end_time = model.end_time
    if isinstance(end_time, FixedTime):
        return None
    t = torch.linspace(0.0, t_end, _DENSITY_POINTS, dtype=torch.float64)
    # The density of a Gamma distribution may be infinite at 0, so that we move the first point slightly.
    t[0] = t_end * 1e-3
    posterior = end_time(x if end_time.amortized else None)
    at = t.to(posterior.device, posterior.dtype)
    log_density = posterior.log_prob(at[:, None] if end_time.amortized else at).reshape(-1).double()
    return answers.Density(t=t.tolist(), density=log_density.exp().nan_to_num(0.0, posinf=0.0).tolist())


def _last_time(model: LatentTimeODE, times: Tensor) -> float:
    """End of the window, or the largest of ``times``, which may be later if the posterior is not truncated."""
    return max(float(model.end_time.window[1]), float(times.max()))


def check_sweep(models: Sequence[TrainedModel]) -> None:
    """Require that all models of a sweep are image classifiers with inputs of one shape."""
    for trained in models:
        if not trained.is_image or trained.task != "classification":
            raise InputError(f"a sweep needs image classifiers, but {trained.name} is not one")
        if trained.shape != models[0].shape:
            shapes = f"{trained.name} takes images of shape {trained.shape}, {models[0].name} of shape {models[0].shape}"
            raise InputError(f"{shapes}: sweep them separately")


def rotations(raw: Float[Tensor, "1 C H W"], angles: Sequence[float]) -> Float[Tensor, "_ C H W"]:
    """The unchanged image, followed by its rotation by each of the angles."""
    return torch.cat([raw, *(rotate(raw, angle) for angle in angles)])


def sweep_curve(trained: TrainedModel, rows: list[PredictionRow]) -> answers.SweepCurve:
    """Follow the class of the unchanged image over the angles; ``rows`` are the predictions of `rotations`."""
    upright, *rotated = rows
    return answers.SweepCurve.model_validate(
        {
            "model": trained.name,
            "probability": [(row.probs or ())[upright.label or 0] for row in rotated],
            "labels": [row.label for row in rotated],
            "entropy": [row.entropy for row in rotated],
            "epistemic": [row.epistemic for row in rotated],
            "familiarity": [row.familiarity for row in rotated],
            "unfamiliar": [row.unfamiliar for row in rotated],
        }
    )


def check_curve(trained: TrainedModel) -> None:
    """Require a regression model with one input."""
    if trained.task != "regression" or trained.shape != (1,):
        kind = "images" if trained.is_image else f"{trained.shape[0]} numbers"
        raise InputError(
            f"a curve needs a regression model of one number, but {trained.name} is a {trained.task} model of {kind}"
        )


def curve(trained: TrainedModel, points: int, samples: int) -> answers.CurveAnswer:
    """Mean and spread of a regression model over the range of its training data, extended by half of it on both sides."""
    training = _training_points(trained)
    if training is not None:
        low, high = min(training.x), max(training.x)
    elif trained.normalise is not None:
        mean, std = trained.normalise.mean[0], trained.normalise.std[0]
        low, high = mean - math.sqrt(3) * std, mean + math.sqrt(3) * std
    else:
        low, high = -1.0, 1.0
    margin = (high - low) / 2
    x = torch.linspace(low - margin, high + margin, points)
    prediction = trained.predict(x[:, None], samples)
    return answers.CurveAnswer(
        model=trained.name,
        x=x.tolist(),
        mean=prediction.mean.tolist(),
        std=prediction.std.tolist(),
        noise_std=float(prediction.noise_std.mean()),
        members=prediction.member_means.tolist(),
        points=training,
    )


def _training_points(trained: TrainedModel) -> answers.Points | None:
    """The training data of a model of one input, if they are generated; None otherwise."""
    if trained.data not in _GENERATED:
        return None
    data = load_data(trained.data)
    return answers.Points(x=data.train.x[:, 0].tolist(), y=data.train.y.reshape(-1).tolist())
