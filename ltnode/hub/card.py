"""The model card of a repository: metadata that the Hugging Face Hub reads, and a page for people."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ltnode.evaluation.results import ResultRow, read_rows
from ltnode.report.runs import EVALUATION
from ltnode.training.run_config import KINDS, read_run_config

_METRICS = {
    "error": ("accuracy", "Accuracy"),
    "ece": ("ece", "Expected calibration error"),
    "brier": ("brier_score", "Brier score"),
}
"""Headline metrics of the protocol ``clean``, with the identifiers of the Hub; the others have their own names."""


def card(folder: Path, repository: str, license: str | None = None) -> str:
    """Return the README.md of a run folder with metadata before it; a folder without one gets a page of its own.

    A file that has metadata already is returned as it is.

    Raises:
        CheckpointError: The folder is no run folder, or a file in it is damaged.
    """
    config = read_run_config(folder, kinds=KINDS)
    spec, data = config.get("model") or {}, config.get("data") or {}
    given = spec.get("input") or {}
    kind, task = spec.get("model") or "custom", given.get("task") or "unknown"
    rows = _headlines(folder)
    file = folder / "README.md"
    page = file.read_text(encoding="utf-8") if file.is_file() else _page(repository, config["kind"], kind, given, data, rows)
    if page.startswith("---\n"):
        return page
    images = len(given.get("shape") or ()) == 3
    metadata: dict[str, Any] = {
        "library_name": "ltnode",
        **({"license": license} if license else {}),
        "pipeline_tag": f"{'image' if images else 'tabular'}-{task}",
        "tags": ["ltnode", "neural-ode", "uncertainty", kind],
    }
    if rows:
        metric = [{"type": name, "name": title, "value": value} for name, title, value in _values(rows)]
        where = {"task": {"type": metadata["pipeline_tag"]}, "dataset": {"name": rows[0].data, "type": rows[0].data}}
        metadata["model-index"] = [{"name": repository.split("/")[1], "results": [{**where, "metrics": metric}]}]
    # JSON values are YAML values, and cannot end the block whatever is in them.
    front = "".join(f"{key}: {json.dumps(value)}\n" for key, value in metadata.items())
    return f"---\n{front}---\n{page}"


def _headlines(folder: Path) -> list[ResultRow]:
    """The numbers of `ltnode evaluate` on the unchanged test set; empty if the run was not evaluated."""
    file = folder / EVALUATION
    rows = read_rows(file) if file.is_file() else []
    plain = [row for row in rows if row.protocol in ("clean", "regression") and not row.setting]
    return [row for row in plain if isinstance(row.value, float) and math.isfinite(row.value)]


def _values(rows: list[ResultRow]) -> list[tuple[str, str, float]]:
    values = []
    for row in rows:
        name, title = _METRICS.get(row.metric, (row.metric, row.metric.replace("_", " ").capitalize()))
        values.append((name, title, 1 - row.number if row.metric == "error" else row.number))
    return values


def _page(
    repository: str, folder_kind: str, kind: str, given: dict[str, Any], data: dict[str, Any], rows: list[ResultRow]
) -> str:
    shape = " x ".join(str(n) for n in given.get("shape") or ()) or "unknown"
    trained_on = f"Trained on {data['name']}. " if data.get("name") else ""
    use = (
        "model.predict(X), model.predict_uncertainty(X)"
        if folder_kind == "estimator"
        else "model.rows(inputs): prediction, uncertainty, familiarity"
    )
    numbers = "".join(
        f"| {title} | {value:.4f} | {row.n} |\n" for row, (_, title, value) in zip(rows, _values(rows), strict=True)
    )
    results = f"\n## Results\n\n| on test examples | value | examples |\n|---|---|---|\n{numbers}" if rows else ""
    return f"""# {repository.split("/")[1]}

A neural ODE of the kind `{kind}` with uncertainty from one solve. {trained_on}Inputs have the shape {shape}.

```python
import ltnode

model = ltnode.from_pretrained("{repository}")  # pip install 'ltnode[hub]'
# {use}
```
{results}
## Limits

The uncertainty and the rate of false alarms hold for inputs from the source of the training data. Every input gets an answer;
whether it is familiar is a separate number. `config.json` says how the model was trained.
"""
