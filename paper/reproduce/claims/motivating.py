"""Claims about the tasks that motivate input-dependent end-times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ltnode.report.aggregate import Measured
from ltnode.report.naming import model_title
from paper.reproduce.claims.claim import Always, Claim, Section
from paper.reproduce.claims.evidence import Evidence
from paper.reproduce.claims.judge import judged
from paper.reproduce.claims.verdict import JudgedClaim
from paper.reproduce.motivating.tasks import TASKS


def motivating_claims(results: Sequence[Mapping[str, Any]]) -> Iterator[JudgedClaim]:
    """Judge, for each task, whether ALT-NODE solves it and NODE does not, on every seed.

    Args:
        results: One recorded result per task, model and seed.
    """
    for task in TASKS:
        solved = {
            model: tuple(bool(r["solved"]) for r in results if r["task"] == task and r["model"] == model)
            for model in ("node", "alt-node")
        }
        text = f"{task}: end-times that depend on the input solve what a common one does not"
        claim = Claim(f"motivating.{task}", Section.MOTIVATING, text, Always(), "ltnode reproduce motivating")
        numbers = {
            "NODE fails": tuple(float(not flag) for flag in solved["node"]),
            "ALT-NODE succeeds": tuple(float(flag) for flag in solved["alt-node"]),
        }
        shown = "; ".join(
            f"{model_title(model)} solves it on {sum(flags)} of {len(flags)} seeds" for model, flags in solved.items() if flags
        )
        yield judged(claim, Evidence({name: Measured(flags) if flags else None for name, flags in numbers.items()}, shown))
