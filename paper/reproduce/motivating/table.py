"""The results of the motivating tasks as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ltnode.report.aggregate import Measured
from paper.reproduce.motivating.tasks import MODELS, SUCCESS, TASKS, main_score

HEADER = ("task", "model", "test error", "", "evaluations", "solved")
WORDS = (0, 1, 3)
NOTE = "A task counts as solved if " + ", ".join(
    f"{task}: RMSE at most {bound:g}" if task == "reflection" else f"{task}: error at most {100 * bound:g} %"
    for task, bound in SUCCESS.items()
)


def summary_rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """One row per task and model: mean ± population standard deviation of the test score over seeds."""
    groups = [[r for r in results if (r["task"], r["model"]) == (task, model)] for task in TASKS for model in MODELS]
    return [_row(group) for group in groups if group]


def _row(group: Sequence[Mapping[str, Any]]) -> list[str]:
    task = group[0]["task"]
    score = Measured(tuple(main_score(task, r["scores"]) for r in group))
    shown, detail = f"RMSE {score.mean:.3f} ± {score.std:.3f}", ""
    if task != "reflection":
        likelihood = Measured(tuple(r["scores"]["log_likelihood"] for r in group)).mean
        shown, detail = f"{100 * score.mean:.2f} ± {100 * score.std:.2f} %", f"log-likelihood {likelihood:.3f}"
    calls = sorted(r["evaluations"] for r in group)
    evaluations = str(calls[0]) if calls[0] == calls[-1] else f"{calls[0]} to {calls[-1]}"
    solved = f"{sum(r['solved'] for r in group)} of {len(group)} seeds"
    return [task, MODELS[group[0]["model"]], shown, detail, evaluations, solved]
