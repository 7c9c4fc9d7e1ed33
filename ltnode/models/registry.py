"""The table of models: for every name, the function that builds it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, get_args

import torch
from torch import nn

from ltnode.checks import checked_count
from ltnode.endtime import EndTime
from ltnode.errors import InputError, unknown_name
from ltnode.models import images, vectors
from ltnode.models.contract import Model, evaluating
from ltnode.models.ensemble import Ensemble
from ltnode.models.input_spec import InputSpec
from ltnode.models.latent_time import LatentTimeODE
from ltnode.models.mc_dropout import DropoutODE
from ltnode.models.networks import Parts, Stem, default_stem, image_parts, paper_vector_parts, vector_parts
from ltnode.models.node_gp import GPOptions, NodeGP
from ltnode.models.options import ObjectiveOptions, SolverOptions
from ltnode.models.presets import Preset, preset_end_time, preset_objective
from ltnode.models.sde_net import ConvDiffusion, SDENet, SDEOptions, vector_diffusion
from ltnode.models.units import head_in_units
from ltnode.objective import Gaussian, Likelihood, MeanSquare

LATENT_TIME_MODELS = ("node", "uni-node", "lt-node", "alt-node", "lt-node-mixture", "steer")
"""Models that consist of one network with an end-time."""
NOISES = ("constant", "varying")
"""Kinds of observation noise of a regression."""
Options = TypeVar("Options", ObjectiveOptions, SolverOptions, SDEOptions, GPOptions)


def _build_latent_time(
    name: str,
    spec: InputSpec,
    preset: Preset,
    *,
    width: int | None = None,
    augment: int = 0,
    stem: Stem | nn.Module | None = None,
    parts: Parts | None = None,
    end_time: EndTime | Mapping[str, Any] | None = None,
    objective: ObjectiveOptions | Mapping[str, Any] | None = None,
    solver: SolverOptions | Mapping[str, Any] | None = None,
    noise: str = "constant",
) -> LatentTimeODE:
    likelihood = _likelihood(name, spec, preset, noise)
    outputs = None if likelihood is None else likelihood.targets * likelihood.outputs_per_target
    if parts is None:
        parts = _default_parts(spec, preset, width, name == "alt-node", augment, outputs, stem)
        if noise == "varying" and isinstance(parts.head, nn.Linear):
            # Training starts with the same noise for all inputs.
            nn.init.zeros_(parts.head.weight[spec.n_targets :].detach())
            nn.init.zeros_(parts.head.bias[spec.n_targets :].detach())
    if end_time is None or isinstance(end_time, Mapping):
        end_time = preset_end_time(name, preset, parts.encoder, end_time or {})
    base_solver = SolverOptions() if preset == "default" else SolverOptions(training="adaptive", clip_last=False)
    return LatentTimeODE(
        parts.stem,
        parts.field,
        head_in_units(parts.head, spec),
        end_time,
        spec.task,
        likelihood=likelihood,
        solver=_override(base_solver, solver),
        objective=_override(preset_objective(name, spec, preset), objective),
        augment=augment,
    )


def _likelihood(name: str, spec: InputSpec, preset: Preset, noise: str) -> Likelihood | None:
    """Return the likelihood of a regression; None for labels."""
    if noise not in NOISES:
        raise InputError(unknown_name("noise", noise, NOISES))
    varies = noise == "varying"
    if spec.task == "classification":
        if varies:
            raise InputError("noise='varying' belongs to regression; the labels of a classification have no noise parameter")
        return None
    if preset == "default":
        return Gaussian(spec.scale, targets=spec.n_targets, input_dependent=varies, smallest_std=1e-4 * spec.scale)
    if varies or spec.n_targets > 1:
        raise InputError("the paper's regression has one target with constant noise; use preset='default' for others")
    learns_noise = name in ("lt-node", "alt-node", "lt-node-mixture")
    return Gaussian(spec.scale, smallest_std=1e-4 * spec.scale) if learns_noise else MeanSquare(spec.scale)


def _check_one_target(name: str, spec: InputSpec) -> None:
    if spec.n_targets > 1:
        raise InputError(f"{name} predicts one target, not {spec.n_targets}; use one of {', '.join(LATENT_TIME_MODELS)}")


def _default_parts(
    spec: InputSpec,
    preset: Preset,
    width: int | None,
    amortized: bool,
    augment: int,
    outputs: int | None,
    stem: Stem | nn.Module | None,
) -> Parts:
    width = width if width is None else checked_count("width", width)
    if isinstance(stem, nn.Module):
        return _parts_after(stem, spec, width, amortized, augment, outputs)
    if stem is not None and (stem not in get_args(Stem) or not spec.is_image):
        raise InputError(f"stem must be one of {', '.join(get_args(Stem))}, and is for images, not {stem!r}")
    if spec.is_image:
        return image_parts(spec, width or 64, amortized, augment, outputs, stem or default_stem(spec, preset))
    if preset == "default":
        return vector_parts(spec, width or 32, amortized, augment, outputs)
    if width is not None or augment:
        raise InputError("the paper's 1-D network has a fixed width and no augmentation; use preset='default'")
    return paper_vector_parts(spec, amortized)


def _parts_after(
    stem: nn.Module, spec: InputSpec, width: int | None, amortized: bool, augment: int, outputs: int | None
) -> Parts:
    """Return the networks that follow a stem of the user, whose weights stay as they are."""
    with torch.no_grad(), evaluating(stem):
        like = next(stem.parameters(), torch.zeros(()))
        state = stem(torch.zeros(2, *spec.shape, dtype=like.dtype, device=like.device))
    dimensions = 4 if spec.is_image else 2
    if not isinstance(state, torch.Tensor) or state.ndim != dimensions or len(state) != 2:
        given = tuple(state.shape) if isinstance(state, torch.Tensor) else type(state).__name__
        form = "(B, channels, height, width)" if spec.is_image else "(B, features)"
        raise InputError(f"a stem must map inputs (B, {', '.join(map(str, spec.shape))}) to states {form}, not {given}")
    if width is not None and width != state.shape[1]:
        raise InputError(f"width must be that of the stem, {state.shape[1]}, or left out, not {width}")
    make = image_parts if spec.is_image else vector_parts
    return replace(make(spec, state.shape[1], amortized, augment, outputs), stem=stem)


def _override(base: Options, change: Options | Mapping[str, Any] | None) -> Options:
    """Return the options with some fields replaced by those of a mapping, or ``change`` itself if it holds all options."""
    if change is None:
        return base
    if isinstance(change, type(base)):
        return change
    valid = base.__dataclass_fields__
    if not isinstance(change, Mapping):
        raise InputError(f"expected {type(base).__name__}(...) or a mapping of its fields ({', '.join(valid)}), not {change!r}")
    for key in change:
        if key not in valid:
            raise InputError(unknown_name(f"option of {type(base).__name__}", key, valid))
    return replace(base, **change)


def _build_ensemble(
    name: str,
    spec: InputSpec,
    preset: Preset,
    *,
    of: str = "node",
    members: int = 5,
    width: int | None = None,
    augment: int = 0,
    stem: Stem | nn.Module | None = None,
    end_time: Mapping[str, Any] | None = None,
    objective: ObjectiveOptions | Mapping[str, Any] | None = None,
    solver: SolverOptions | Mapping[str, Any] | None = None,
    noise: str = "constant",
) -> Ensemble:
    count = checked_count("members", members)
    if of not in LATENT_TIME_MODELS:
        raise InputError(unknown_name("model of an ensemble", of, LATENT_TIME_MODELS))
    if isinstance(end_time, EndTime):
        raise InputError(
            "the networks of an ensemble have end-times of their own: pass end_time as a mapping of changes, such as "
            "{'prior': (1.0, 0.01)}, or build the networks and use ltnode.models.Ensemble(networks)"
        )
    options: dict[str, Any] = {
        "width": width,
        "augment": augment,
        "stem": stem,
        "end_time": end_time,
        "objective": objective,
        "solver": solver,
        "noise": noise,
    }
    return Ensemble([_build_latent_time(of, spec, preset, **options) for _ in range(count)])


def _build_dropout(
    name: str,
    spec: InputSpec,
    preset: Preset,
    *,
    rate: float = 0.1,
    width: int | None = None,
    augment: int = 0,
    stem: Stem | nn.Module | None = None,
    parts: Parts | None = None,
    solver: SolverOptions | Mapping[str, Any] | None = None,
) -> DropoutODE:
    _check_one_target(name, spec)
    node = _build_latent_time("node", spec, preset, width=width, augment=augment, stem=stem, parts=parts, solver=solver)
    return DropoutODE(node, rate)


def _build_sde_net(
    name: str,
    spec: InputSpec,
    preset: Preset,
    *,
    width: int | None = None,
    stem: Stem | nn.Module | None = None,
    parts: Parts | None = None,
    sde: SDEOptions | Mapping[str, Any] | None = None,
) -> SDENet:
    _check_one_target(name, spec)
    node = _build_latent_time("node", spec, preset, width=width, stem=stem, parts=parts)
    diffusion = None if parts is None else parts.diffusion
    if diffusion is None and parts is not None:
        raise InputError("an SDE-Net needs a diffusion network: pass parts with one that maps h(0) to a logit (B, 1)")
    if spec.is_image:
        # The code of SDE-Net has one set of values for grey images and another for colour images.
        grey = spec.shape[0] == 1
        diffusion = diffusion or images.init_paper_(ConvDiffusion(width or 64, convolutions=2 if grey else 3))
        base = SDEOptions(sigma_train=20.0, sigma_test=500.0) if grey else SDEOptions(sigma_train=1.0, sigma_test=50.0)
    else:
        diffusion = diffusion or vector_diffusion(50 if preset == "paper" else width or 32)
        # The paper reports that one step of size 1 worked best.
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
    stem: Stem | nn.Module | None = None,
    gp: GPOptions | Mapping[str, Any] | None = None,
    solver: SolverOptions | Mapping[str, Any] | None = None,
) -> NodeGP:
    _check_one_target(name, spec)
    node = _build_latent_time("node", spec, preset, width=width, stem=stem, solver=solver)
    first, field = node.stem, node.field
    head: nn.Module = nn.Identity()
    if spec.is_image:
        features = width or 64
        head = images.pooled(features)
    elif preset == "paper":
        features = 50
        first = vectors.init_paper_(vectors.linear_norm_relu([1, 50]))
        field = vectors.init_paper_(vectors.TimeConcat(vectors.linear_norm_relu([51, 100, 50])))
    else:
        features = width or 32
    options = _override(GPOptions(), gp)
    units = spec.target or (0.0, 1.0)
    return NodeGP(first, field, head, features, spec.n_outputs, spec.task, gp=options, solver=node.solver, units=units)


Builder = Callable[..., Model]
"""``(name, spec, preset, **options) -> model``; the keyword-only parameters are the options of the model."""

MODELS: dict[str, Builder] = {
    **dict.fromkeys(LATENT_TIME_MODELS, _build_latent_time),
    "sde-net": _build_sde_net,
    "node-gp": _build_node_gp,
    "ensemble": _build_ensemble,
    "mc-dropout": _build_dropout,
}
