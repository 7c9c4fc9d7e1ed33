"""The metadata of an exported file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ltnode._version import __version__
from ltnode.data import Normalisation
from ltnode.export.program import DeployedModel, Grid, Preparation
from ltnode.export.table_encoding import described_columns
from ltnode.models import Model
from ltnode.models.familiar_model import FamiliarModel
from ltnode.tables import Schema
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
    schema: Schema | None = None,
) -> dict[str, str]:
    """Describe model, inputs, outputs and steps, with lists and mappings as JSON, but neither place nor time of the export."""
    plans = deployed.plans()
    network, plan = plans[0]
    spec = portable_spec(model)
    n_calibration = model.n_calibration if isinstance(model, FamiliarModel) else 0
    known = (", distance (B)" if network.has_familiarity else "") + (", familiarity (B)" if n_calibration else "")
    facts = {
        "version": __version__,
        "model": type(model).__name__ if spec is None else str(spec["model"]),
        "task": model.task,
        "input": _input(deployed.prepare, shape),
        "input_shape": json.dumps(list(shape) if schema is None else [len(schema.columns)]),
        "normalise": json.dumps(None if normalise is None else {"mean": normalise.mean, "std": normalise.std}),
        "outputs": f"{_OUTPUTS[model.task]}{known}, times ({'S' if plan.times is not None else 'S, B'}), error_ratio (B)",
        "samples": str(sum(each.samples for _, each in plans)),
        "end_time": network.end_time.kind,
        "method": network.solver.method,
        "grid": f"{grid} equal steps" if isinstance(grid, int) else grid,
        "solver_tolerance": json.dumps({"rtol": network.solver.rtol, "atol": network.solver.atol}),
    }
    if plan.times is not None:
        facts["times"] = json.dumps([time for _, each in plans if each.times is not None for time in each.times.tolist()])
    if plan.edges is not None:
        facts["edges"] = json.dumps([list(each.edges or ()) for _, each in plans] if len(plans) > 1 else list(plan.edges))
    if schema is not None:
        facts["columns"] = json.dumps(described_columns(schema))
        facts["target"] = schema.target.name
    if n_calibration:
        facts["n_calibration"] = str(n_calibration)
    if class_names is not None:
        facts["class_names"] = json.dumps(list(class_names))
    if operating_point is not None:
        facts["operating_point"] = json.dumps(dict(operating_point), sort_keys=True)
    if spec is not None:
        facts["config_sha256"] = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()
    return facts


def _input(prepare: Preparation, shape: Sequence[int]) -> str:
    layout, scale = ("B, C, H, W", "pixels 0..1") if len(shape) == 3 else ("B, D", "raw values")
    if prepare.encoding is not None:
        layout, scale = "B, columns", "one number per column of the table, NaN where a cell is missing"
    elif prepare.input_type == "uint8":
        scale = "pixels 0..255"
    elif prepare.mean is None:
        scale = "network input"
    return f"x ({layout}), {prepare.input_type}, {scale}"
