"""``ltnode.build``: the paper's models by name, for the paper's data sets or for one's own shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal, get_args

import torch
from torch import nn

from ltnode.checks import checked_count
from ltnode.endtime import AmortizedGammaTime, EndTime, FixedTime, GammaMixtureTime, GammaTime, UniformTime
from ltnode.errors import InputError, unknown_name
from ltnode.models import images, vectors
from ltnode.models.contract import Model, Task
from ltnode.models.ensemble import Ensemble
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.mc_dropout import DropoutODE
from ltnode.models.node_gp import GPOptions, NodeGP
from ltnode.models.options import ObjectiveOptions, SolverOptions
from ltnode.models.sde_net import ConvDiffusion, SDENet, SDEOptions, vector_diffusion
from ltnode.models.steer import SteerTime
from ltnode.objective import Gaussian, Likelihood, MeanSquare

Preset = Literal["default", "paper"]
PRESETS = ("default", "paper")
WINDOW = (0.0, 3.0)
PRIOR = (2.0, 0.5)


@dataclass(frozen=True)
class InputSpec:
    """What a network must know of its data: shape of one input, task, number of classes."""

    shape: tuple[int, ...]
    task: Task
    n_classes: int | None = None

    @property
    def is_image(self) -> bool:
        """Inputs are (C, H, W)."""
        return len(self.shape) == 3

    @property
    def n_outputs(self) -> int:
        """Width of the head: one logit per class, or one mean."""
        return self.n_classes if self.task == "classification" and self.n_classes else 1

    def __post_init__(self) -> None:
        shape = self.shape
        if not isinstance(shape, tuple) or len(shape) not in (1, 3) or not all(isinstance(n, int) and n >= 1 for n in shape):
            raise InputError(f"inputs must be vectors of shape (D,) or images (C, H, W), given as a tuple, not {shape!r}")
        if self.task not in get_args(Task):
            raise InputError(unknown_name("task", self.task, get_args(Task)))
        if self.task == "classification" and (self.n_classes is None or self.n_classes < 2):
            raise InputError(f"classification needs n_classes >= 2, not {self.n_classes}")
        if self.task == "regression" and self.n_classes is not None:
            raise InputError(f"regression has no classes, so n_classes must be None, not {self.n_classes}")


DATA: Mapping[str, InputSpec] = {
    "synthetic": InputSpec((1,), "regression"),
    "concentric": InputSpec((2,), "classification", 2),
    "reflection": InputSpec((1,), "regression"),
    "mnist": InputSpec((1, 28, 28), "classification", 10),
    "fashion-mnist": InputSpec((1, 28, 28), "classification", 10),
    "cifar10": InputSpec((3, 32, 32), "classification", 10),
    "svhn": InputSpec((3, 32, 32), "classification", 10),
}


@dataclass(frozen=True)
class Parts:
    """Networks of one model: stem, field, head, and the inference network where each input has its own end-time.

    An SDE-Net has a diffusion network as well; the head of a NODE-GP gives features.
    """

    stem: nn.Module
    field: nn.Module
    head: nn.Module
    encoder: nn.Module | None = None
    diffusion: nn.Module | None = None


def _vector_parts(spec: InputSpec, width: int, amortized: bool, augment: int) -> Parts:
    # A linear lift leaves the non-linear work to the ODE: members at different end-times are then different functions
    # wherever no data ties them together.
    stem = nn.Linear(spec.shape[0], width)
    nn.init.normal_(stem.weight, std=2 / math.sqrt(spec.shape[0]))
    nn.init.uniform_(stem.bias, -2.0, 2.0)
    return Parts(
        stem=stem,
        field=vectors.TimeMLP(width + augment, (width, width)),
        head=nn.Linear(width + augment, spec.n_outputs),
        encoder=vectors.mlp([spec.shape[0], width, 2]) if amortized else None,
    )


def _paper_vector_parts(spec: InputSpec, amortized: bool) -> Parts:
    if spec.shape != (1,) or spec.task != "regression":
        raise InputError("the paper's vector network is for 1-D regression; use preset='default' for other vectors")
    parts = Parts(vectors.paper_stem(), vectors.paper_field(), nn.Linear(50, 1), vectors.paper_encoder() if amortized else None)
    for part in (parts.stem, parts.field, parts.head, parts.encoder):
        if part is not None:
            vectors.init_paper_(part)
    return parts


def _image_parts(spec: InputSpec, width: int, amortized: bool, augment: int) -> Parts:
    channels, height, breadth = spec.shape
    if min(height, breadth) < 8:
        raise InputError(f"images must be at least 8x8 for the down-sampling block, not {height}x{breadth}")
    parts = Parts(
        images.down_sampling(channels, width),
        images.ConvField(width + augment),
        images.classifier(spec.n_outputs, width + augment),
        images.encoder(channels, width) if amortized else None,
    )
    for part in (parts.stem, parts.field, parts.head, parts.encoder):
        if part is not None:
            images.init_paper_(part)
    return parts


def _end_time(name: str, preset: Preset, encoder: nn.Module | None, change: Mapping[str, Any]) -> EndTime:
    """The end-time of a model by name, with some arguments of its constructor changed."""
    learnt: dict[str, Any] = {"prior": PRIOR, "window": WINDOW, "truncate": preset == "default"}
    make: Callable[..., EndTime]
    arguments: dict[str, Any]
    match name:
        case "node":
            make, arguments = FixedTime, {"t": 1.0}
        case "steer":
            make, arguments = SteerTime, {"t": 1.0, "spread": 0.5}
        case "uni-node":
            make, arguments = UniformTime, {"low": WINDOW[0], "high": WINDOW[1]}
        case "lt-node":
            make, arguments = GammaTime, {**learnt, "alpha": 1.0, "beta": 1.0}
        case "lt-node-mixture":
            make, arguments = GammaMixtureTime, {**learnt, "components": 3}
        case "alt-node":
            if encoder is None:
                raise InputError("alt-node needs an inference network: give parts an encoder that maps x to (B, 2)")
            make, arguments = partial(AmortizedGammaTime, encoder), learnt
        case _:
            raise AssertionError(name)
    for key in change:
        if key not in arguments:
            raise InputError(unknown_name(f"option of the end-time of {name}", key, arguments))
    # JSON has no tuples.
    arguments |= {key: tuple(value) if isinstance(value, list) else value for key, value in change.items()}
    return make(**arguments)


def _objective(name: str, spec: InputSpec, preset: Preset) -> ObjectiveOptions:
    """Objective of a model: the users' default, or the published experiment as far as it can be told."""
    # The paper's code weighs the KL by 0.1 for images, and its 1-D posteriors are those of 0.05 for LT-NODE.
    kl_weight = 0.1 if spec.is_image or name == "alt-node" else 0.05
    if name in ("node", "steer"):
        return ObjectiveOptions(samples=1)
    if preset == "default":
        return ObjectiveOptions(kl_weight=kl_weight)
    samples = 1 if name == "alt-node" else 10
    return ObjectiveOptions(weighting="density", kl_weight=kl_weight, samples=samples, scheme="iid")


def _build_latent_time(
    name: str,
    spec: InputSpec,
    preset: Preset,
    *,
    width: int | None = None,
    augment: int = 0,
    parts: Parts | None = None,
    end_time: EndTime | Mapping[str, Any] | None = None,
    objective: ObjectiveOptions | Mapping[str, Any] | None = None,
    solver: SolverOptions | Mapping[str, Any] | None = None,
) -> LatentTimeODE:
    amortized = name == "alt-node"
    width = width if width is None else checked_count("width", width)
    if parts is None:
        if spec.is_image:
            parts = _image_parts(spec, width or 64, amortized, augment)
        elif preset == "paper":
            if width is not None or augment:
                raise InputError("the paper's 1-D network has a fixed width and no augmentation; use preset='default'")
            parts = _paper_vector_parts(spec, amortized)
        else:
            parts = _vector_parts(spec, width or 32, amortized, augment)
    likelihood: Likelihood | None = None
    if spec.task == "regression":
        learns_noise = preset == "default" or name in ("lt-node", "alt-node", "lt-node-mixture")
        likelihood = Gaussian() if learns_noise else MeanSquare()
    base_solver = SolverOptions() if preset == "default" else SolverOptions(training="adaptive", clip_last=False)
    return LatentTimeODE(
        parts.stem,
        parts.field,
        parts.head,
        _end_time(name, preset, parts.encoder, end_time or {}) if end_time is None or isinstance(end_time, Mapping) else end_time,
        spec.task,
        likelihood=likelihood,
        solver=_override(base_solver, solver),
        objective=_override(_objective(name, spec, preset), objective),
        augment=augment,
    )


def _override(base: Any, change: Any) -> Any:
    """The options with some fields changed by a mapping, or replaced whole."""
    if change is None:
        return base
    if isinstance(change, type(base)):
        return change
    if not isinstance(change, Mapping):
        fields = ", ".join(base.__dataclass_fields__)
        raise InputError(f"expected {type(base).__name__}(...) or a mapping of its fields ({fields}), not {change!r}")
    valid = base.__dataclass_fields__
    for key in change:
        if key not in valid:
            raise InputError(unknown_name(f"option of {type(base).__name__}", key, valid))
    return replace(base, **change)


def _build_ensemble(
    name: str,
    spec: InputSpec,
    preset: Preset,
    *,
    members: int = 5,
    width: int | None = None,
    augment: int = 0,
    solver: SolverOptions | Mapping[str, Any] | None = None,
) -> Ensemble:
    count = checked_count("members", members)
    return Ensemble([_build_latent_time("node", spec, preset, width=width, augment=augment, solver=solver) for _ in range(count)])


def _build_dropout(
    name: str,
    spec: InputSpec,
    preset: Preset,
    *,
    rate: float = 0.1,
    width: int | None = None,
    augment: int = 0,
    parts: Parts | None = None,
    solver: SolverOptions | Mapping[str, Any] | None = None,
) -> DropoutODE:
    return DropoutODE(_build_latent_time("node", spec, preset, width=width, augment=augment, parts=parts, solver=solver), rate)


def _build_sde_net(
    name: str,
    spec: InputSpec,
    preset: Preset,
    *,
    width: int | None = None,
    parts: Parts | None = None,
    sde: SDEOptions | Mapping[str, Any] | None = None,
) -> SDENet:
    node = _build_latent_time("node", spec, preset, width=width, parts=parts)
    diffusion = None if parts is None else parts.diffusion
    if diffusion is None and parts is not None:
        raise InputError("an SDE-Net needs a diffusion network: give parts one that maps h(0) to a logit (B, 1)")
    if spec.is_image:
        # SDE-Net's own code: one set of values for grey images, another for colour.
        grey = spec.shape[0] == 1
        diffusion = diffusion or images.init_paper_(ConvDiffusion(width or 64, convolutions=2 if grey else 3))
        base = SDEOptions(sigma_train=20.0, sigma_test=500.0) if grey else SDEOptions(sigma_train=1.0, sigma_test=50.0)
    else:
        diffusion = diffusion or vector_diffusion(50 if preset == "paper" else width or 32)
        # The paper found one step of size 1 best.
        steps = 1 if preset == "paper" else 10
        base = SDEOptions(steps, 1.0 / steps, sigma_train=0.5, sigma_test=0.5)
    options = _override(base, sde)
    return SDENet(node.stem, node.field, node.head, diffusion, spec.task, likelihood=node.likelihood, sde=options)


def _build_node_gp(
    name: str,
    spec: InputSpec,
    preset: Preset,
    *,
    width: int | None = None,
    gp: GPOptions | Mapping[str, Any] | None = None,
    solver: SolverOptions | Mapping[str, Any] | None = None,
) -> NodeGP:
    node = _build_latent_time("node", spec, preset, width=width, solver=solver)
    stem, field = node.stem, node.field
    head: nn.Module = nn.Identity()
    if spec.is_image:
        features = width or 64
        head = images.pooled(features)
    elif preset == "paper":
        features = 50
        stem = vectors.init_paper_(vectors.linear_norm_relu([1, 50]))
        field = vectors.init_paper_(vectors.TimeConcat(vectors.linear_norm_relu([51, 100, 50])))
    else:
        features = width or 32
    options = _override(GPOptions(), gp)
    return NodeGP(stem, field, head, features, spec.n_outputs, spec.task, gp=options, solver=node.solver)


Builder = Callable[..., Model]
MODELS: dict[str, Builder] = {
    **dict.fromkeys(("node", "uni-node", "lt-node", "alt-node", "lt-node-mixture", "steer"), _build_latent_time),
    "sde-net": _build_sde_net,
    "node-gp": _build_node_gp,
    "ensemble": _build_ensemble,
    "mc-dropout": _build_dropout,
}


def input_spec(data: str | InputSpec | Any) -> InputSpec:
    """The `InputSpec` of a data set's name, of a `Dataset`, or itself."""
    if isinstance(data, InputSpec):
        return data
    if isinstance(data, str):
        if data not in DATA:
            raise InputError(unknown_name("data set", data, DATA))
        return DATA[data]
    try:
        return InputSpec(tuple(data.input_shape), data.task, data.n_classes)
    except AttributeError:
        raise InputError(f"data must be the name of a data set or a Dataset, not {type(data).__name__}") from None


def build(
    model: str, data: str | InputSpec | Any = "synthetic", preset: Preset = "default", seed: int | None = None, **options: Any
) -> Model:
    """Build a model by name.

    Args:
        model: ``node``, ``uni-node``, ``lt-node``, ``alt-node``, ``sde-net``, ``node-gp`` (the paper's six),
            ``lt-node-mixture``, ``ensemble``, ``mc-dropout``, ``steer``.
        data: ``synthetic``, ``mnist``, ``fashion-mnist``, ``cifar10``, ``svhn``, ...; a `Dataset`; or an `InputSpec`.
        preset: ``"default"``: what serves users best (posterior truncated to the window, normalised weights, no BatchNorm);
            ``"paper"``: the published experiment (density weights, no truncation, adaptive steps, random draws).
        seed: Seed of the initial weights; None uses torch's generator as it stands.
        **options: ``width``, ``augment``, ``objective`` and ``solver`` (options, or a mapping of changes), ``parts``,
            ``end_time`` (a distribution, or a mapping of changes such as ``{"prior": (1.0, 0.01)}``); for the models that
            have them ``sde``, ``gp``, ``members``, ``rate``.
    """
    if not isinstance(model, str) or model not in MODELS:
        raise InputError(unknown_name("model", model, MODELS))
    if preset not in PRESETS:
        raise InputError(unknown_name("preset", preset, PRESETS))
    spec = input_spec(data)
    valid = [name for name, p in signature(MODELS[model]).parameters.items() if p.kind is Parameter.KEYWORD_ONLY]
    for key in options:
        if key not in valid:
            raise InputError(unknown_name(f"option of {model}", key, valid))
    if seed is None:
        built = MODELS[model](model, spec, preset, **options)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            built = MODELS[model](model, spec, preset, **options)
    built.spec = _describe(model, spec, preset, options)
    return built


def _describe(model: str, spec: InputSpec, preset: str, options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """JSON description from which `build_from_spec` makes the same network; None when parts came from outside."""
    if options.get("parts") is not None or isinstance(options.get("end_time"), EndTime):
        return None

    def plain(value: Any) -> Any:
        return {k: getattr(value, k) for k in value.__dataclass_fields__} if hasattr(value, "__dataclass_fields__") else value

    return {
        "model": model,
        "input": {"shape": list(spec.shape), "task": spec.task, "n_classes": spec.n_classes},
        "preset": preset,
        "options": {key: plain(value) for key, value in options.items()},
    }


def build_from_spec(description: Mapping[str, Any]) -> Model:
    """The model that a saved description names."""
    shape: Sequence[int] = description["input"]["shape"]
    spec = InputSpec(tuple(shape), description["input"]["task"], description["input"]["n_classes"])
    return build(description["model"], spec, description["preset"], **description["options"])
