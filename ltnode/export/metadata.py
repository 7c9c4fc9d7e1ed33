"""What an exported file says about itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ltnode._version import __version__
from ltnode.data import Normalisation
from ltnode.export.program import DeployedModel, Grid
from ltnode.models import Model
from ltnode.training.saving import portable_spec

_OUTPUTS = {
    "classification": "probs (B, C), entropy (B), aleatoric (B), epistemic (B), member_probs (S, B, C)",
    "regression": "mean (B), std (B), noise_std (B), member_means (S, B)",
}


def description(
    model: Model,
    deployed: DeployedModel,
    grid: Grid,
    shape: Sequence[int],
    normalise: Normalisation | None,
    class_names: Sequence[str] | None,
    operating_point: Mapping[str, Any] | None,
) -> dict[str, str]:
    """Names and values, lists and mappings as JSON; nothing about where or when the file was made."""
    plans = deployed.plans()
    network, plan = plans[0]
    spec = portable_spec(model)
    layout = "B, C, H, W" if len(shape) == 3 else "B, D"
    scale = "as the network takes it"
    if deployed.prepare.input_type == "uint8":
        scale = "pixels 0..255"
    elif normalise is not None:
        scale = "pixels 0..1" if len(shape) == 3 else "raw values"
    found = {
        "version": __version__,
        "model": type(model).__name__ if spec is None else str(spec["model"]),
        "task": model.task,
        "input": f"x ({layout}), {deployed.prepare.input_type}, {scale}",
        "input_shape": json.dumps(list(shape)),
        "normalise": json.dumps(None if normalise is None else {"mean": normalise.mean, "std": normalise.std}),
        "outputs": f"{_OUTPUTS[model.task]}, times ({'S' if plan.times is not None else 'S, B'}), error_ratio (B)",
        "samples": str(sum(own.samples for _, own in plans)),
        "end_time": network.end_time.kind,
        "method": network.solver.method,
        "grid": f"{grid} equal steps" if isinstance(grid, int) else grid,
        "solver_tolerance": json.dumps({"rtol": network.solver.rtol, "atol": network.solver.atol}),
    }
    if plan.times is not None:
        found["times"] = json.dumps([time for _, own in plans if own.times is not None for time in own.times.tolist()])
    if plan.edges is not None:
        found["edges"] = json.dumps([list(own.edges or ()) for _, own in plans] if len(plans) > 1 else list(plan.edges))
    if class_names is not None:
        found["class_names"] = json.dumps(list(class_names))
    if operating_point is not None:
        found["operating_point"] = json.dumps(dict(operating_point), sort_keys=True)
    if spec is not None:
        found["config_sha256"] = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    return found
