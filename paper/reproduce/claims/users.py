"""The question that users ask, which the paper does not: is the default posterior better than no posterior?"""

from __future__ import annotations

from ltnode.report.aggregate import Measured
from ltnode.report.naming import data_title, model_title
from paper.reproduce.claims.claim import Best, Claim, Overall, Section
from paper.reproduce.claims.evidence import Evidence
from paper.reproduce.claims.judge import judge, judged
from paper.reproduce.claims.numbers import FOREIGN, PROPOSED, ImageNumbers, Read
from paper.reproduce.claims.verdict import JudgedClaim, Outcome
from paper.reproduce.images.grid import STANDARD
from paper.reproduce.published import PaperValues

RIVALS = ("node", "uni-node")
_WORDS = {
    Outcome.REPRODUCED: "better than",
    Outcome.REVERSED: "worse than",
    Outcome.NOT_REPRODUCED: "within the spread of",
    Outcome.MISSING: "missing against",
}
_SCORES = {Outcome.REPRODUCED: 1.0, Outcome.NOT_REPRODUCED: 0.0, Outcome.REVERSED: -1.0}


def users_question(numbers: ImageNumbers, published: PaperValues) -> list[JudgedClaim]:
    """Judge whether the default posterior beats Uni-NODE and NODE on unchanged, on rotated and against foreign images.

    Args:
        numbers: Our results.
        published: The paper's values; its deviations of the error are used for a single seed.
    """
    return [_answer(numbers, published, data, model) for data in FOREIGN for model in PROPOSED]


def _answer(numbers: ImageNumbers, published: PaperValues, data: str, model: str) -> JudgedClaim:
    scores: dict[str, Measured | None] = {}
    seeds: list[int] = []
    parts = []
    for title, (read, higher) in _measures(numbers, data).items():
        ours = numbers.measured(read, data, model, "default")
        words = []
        for rival in RIVALS:
            theirs = numbers.measured(read, data, rival)
            printed = {"ours": published.error(data, model), "theirs": published.error(data, rival)} if title == "error" else {}
            verdict = judge(Best("ours", higher, printed), Evidence({"ours": ours, "theirs": theirs}, ""))
            outcome = Outcome(verdict.outcome)
            scores[f"{title}, {rival}"] = None if outcome is Outcome.MISSING else Measured((_SCORES[outcome],))
            seeds += [number.seeds for number in (ours, theirs) if number is not None]
            words.append(f"{_WORDS[outcome]} {model_title(rival)}" + ("" if theirs is None else f" {theirs.text(3)}"))
        parts.append(f"{title}: missing" if ours is None else f"{title} {ours.text(3)}: {', '.join(words)}")
    text = f"{data_title(data)}: does {model_title(model)} with the default posterior beat NODE and Uni-NODE?"
    made = f"ltnode reproduce images --data {data} --models {','.join(RIVALS)},{model} --variants {STANDARD}"
    claim = Claim(f"users.{data}.{model}", Section.USERS, text, Overall(), made, paper=None)
    return judged(claim, Evidence(scores, "; ".join(parts), seed_counts=tuple(seeds)))


def _measures(numbers: ImageNumbers, data: str) -> dict[str, tuple[Read, bool]]:
    """Readers by title, each with whether larger values are better."""
    return {
        "error": (numbers.number("clean", "error"), False),
        "LL": (numbers.number("clean", "log_likelihood"), True),
        "ECE": (numbers.number("clean", "ece"), False),
        "rotated LL": (numbers.mean_along("rotation", "log_likelihood", "angle"), True),
        "AUROC": (numbers.number("ood", "auroc", ood=FOREIGN[data], score="max_probability"), True),
    }
