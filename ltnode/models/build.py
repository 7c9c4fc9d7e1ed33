"""``ltnode.build``: models by name, for the built-in data sets or for inputs of any shape."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from ltnode.endtime import EndTime
from ltnode.errors import InputError, unknown_name
from ltnode.models.contract import Model
from ltnode.models.input_spec import InputSpec, input_spec
from ltnode.models.networks import default_stem
from ltnode.models.presets import PRESETS, Preset
from ltnode.models.registry import MODELS


def build(
    model: str, data: str | InputSpec | Any = "synthetic", preset: Preset = "default", seed: int | None = None, **options: Any
) -> Model:
    """Build a model by name.

    Args:
        model: ``node``, ``uni-node``, ``lt-node``, ``alt-node``, ``sde-net``, ``node-gp`` (the paper's six),
            ``lt-node-mixture``, ``ensemble``, ``mc-dropout``, ``steer``.
        data: ``synthetic``, ``mnist``, ``fashion-mnist``, ``cifar10``, ``svhn``, ...; a `Dataset`; or an `InputSpec`.
        preset: ``"default"``: recommended for users (posterior truncated to the window, normalised weights, no BatchNorm);
            ``"paper"``: the published experiment (density weights, no truncation, adaptive steps, random draws).
        seed: Seed of the initial weights; None draws them from the global generator of torch.
        **options: ``width``, ``augment``, ``stem`` (``"paper"`` or ``"deep"``, the default for images of more than 64 pixels, or
            a module of your own, such as a pretrained one, whose weights are kept), ``objective`` and ``solver`` (options, or a
            mapping of changes), ``parts``, ``end_time`` (a distribution, or a mapping of changes such as
            ``{"prior": (1.0, 0.01)}``), ``noise`` of a regression (``"constant"``, or ``"varying"`` with the input); for the
            models that have them ``sde``, ``gp``, ``rate``; for an ensemble ``members`` (5) and ``of``, the model that it
            consists of (``node``).
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
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        built = MODELS[model](model, spec, preset, **options)
    if default_stem(spec, preset) != "paper" and options.get("parts") is None:
        options.setdefault("stem", default_stem(spec, preset))
    built.spec = _describe(model, spec, preset, options)
    return built


def build_from_spec(description: Mapping[str, Any]) -> Model:
    """Build the model of a saved description, `Model.spec`."""
    given, options = description["input"], dict(description["options"])
    target = given.get("target")
    scale = None if target is None else tuple(target)
    spec = InputSpec(tuple(given["shape"]), given["task"], given["n_classes"], given.get("n_targets", 1), scale)
    if default_stem(spec, description["preset"]) != "paper":
        options.setdefault("stem", "paper")  # models that were saved before there was another one
    return build(description["model"], spec, description["preset"], **options)


def _describe(model: str, spec: InputSpec, preset: str, options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Describe a model as JSON for `build_from_spec`; None when it has parts that the user provided."""
    own_stem = isinstance(options.get("stem"), nn.Module)
    if options.get("parts") is not None or own_stem or isinstance(options.get("end_time"), EndTime):
        return None

    def plain(value: Any) -> Any:
        return {k: getattr(value, k) for k in value.__dataclass_fields__} if hasattr(value, "__dataclass_fields__") else value

    plain_options = {key: plain(value) for key, value in options.items()}
    return {"model": model, "input": spec.to_json(), "preset": preset, "options": plain_options}
