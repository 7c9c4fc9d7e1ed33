"""End-time and objective of every latent-time model under the presets ``"default"`` and ``"paper"``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from torch import nn

from ltnode.endtime import AmortizedGammaTime, EndTime, FixedTime, GammaMixtureTime, GammaTime, UniformTime
from ltnode.errors import InputError, unknown_name
from ltnode.models.input_spec import InputSpec
from ltnode.models.options import ObjectiveOptions
from ltnode.models.steer import SteerTime

Preset = Literal["default", "paper"]
PRESETS = ("default", "paper")
_WINDOW = (0.0, 3.0)
_PRIOR = (2.0, 0.5)


def preset_end_time(name: str, preset: Preset, encoder: nn.Module | None, change: Mapping[str, Any]) -> EndTime:
    """Make the end-time of a model; ``change`` holds arguments of its constructor that replace those of the preset."""
    learnt: dict[str, Any] = {"prior": _PRIOR, "window": _WINDOW, "truncate": preset == "default"}
    make: Callable[..., EndTime]
    arguments: dict[str, Any]
    match name:
        case "node":
            make, arguments = FixedTime, {"t": 1.0}
        case "steer":
            make, arguments = SteerTime, {"t": 1.0, "spread": 0.5}
        case "uni-node":
            make, arguments = UniformTime, {"low": _WINDOW[0], "high": _WINDOW[1]}
        case "lt-node":
            make, arguments = GammaTime, {**learnt, "alpha": 1.0, "beta": 1.0}
        case "lt-node-mixture":
            make, arguments = GammaMixtureTime, {**learnt, "components": 3}
        case "alt-node":
            if encoder is None:
                raise InputError("alt-node needs an inference network: pass parts with an encoder that maps x to (B, 2)")
            make, arguments = partial(AmortizedGammaTime, encoder), learnt
        case _:
            raise AssertionError(name)
    for key in change:
        if key not in arguments:
            raise InputError(unknown_name(f"option of the end-time of {name}", key, arguments))
    # A description that went through JSON has lists in place of tuples.
    arguments |= {key: tuple(value) if isinstance(value, list) else value for key, value in change.items()}
    return make(**arguments)


def preset_objective(name: str, spec: InputSpec, preset: Preset) -> ObjectiveOptions:
    """Return the objective of a model: the default for users, or that of the published experiment as far as it is known."""
    # The paper's code weights the KL by 0.1 for images; its 1-D posteriors of LT-NODE are those of a weight of 0.05.
    kl_weight = 0.1 if spec.is_image or name == "alt-node" else 0.05
    if name in ("node", "steer"):
        return ObjectiveOptions(samples=1)
    if preset == "default":
        return ObjectiveOptions(kl_weight=kl_weight)
    samples = 1 if name == "alt-node" else 10
    return ObjectiveOptions(weighting="density", kl_weight=kl_weight, samples=samples, scheme="iid")
