"""The question of our users: is the default posterior better than no posterior?"""

from __future__ import annotations

from collections.abc import Mapping

from ltnode.report.naming import data_title, model_title
from ltnode.report.published import Printed, Published
from paper.reproduce.claims.evidence import FOREIGN, PROPOSED, Claim, Evidence, Read, seed_text
from paper.reproduce.claims.judge import MISSING, Judgement, Measured, Verdict, judge_order, judge_users
from paper.reproduce.images.grid import STANDARD

SECTION = "The users' question"
RIVALS = ("node", "uni-node")
_WORDS = {
    Verdict.REPRODUCED: "better than",
    Verdict.REVERSED: "worse than",
    Verdict.NOT_REPRODUCED: "within the spread of",
    Verdict.MISSING: "missing against",
}


def users_question(evidence: Evidence, published: Published) -> list[Claim]:
    """Whether the default posterior is better than Uni-NODE and NODE: on clean, on rotated and against foreign images.

    Args:
        evidence: Our results.
        published: What the paper prints; its deviations of the error stand for those of a single seed.
    """
    return [_answer(evidence, published, data, model) for data in FOREIGN for model in PROPOSED]


def _answer(evidence: Evidence, published: Published, data: str, model: str) -> Claim:
    measures: Mapping[str, tuple[Read, bool]] = {
        "error": (evidence.number("clean", "error"), False),
        "LL": (evidence.number("clean", "log_likelihood"), True),
        "ECE": (evidence.number("clean", "ece"), False),
        "rotated LL": (evidence.mean_along("rotation", "log_likelihood", "angle", lambda angle: angle > 0), True),
        "AUROC": (evidence.number("ood", "auroc", ood=FOREIGN[data], score="max_probability"), True),
    }
    verdicts: list[Judgement] = []
    numbers: list[Measured | None] = []
    shown = []
    for title, (read, higher) in measures.items():
        mine = evidence.measured(read, data, model, "default")
        numbers.append(mine)
        if mine is None:
            verdicts.append(MISSING)
            shown.append(f"{title}: missing")
            continue
        words = []
        for rival in RIVALS:
            theirs = evidence.measured(read, data, rival)
            verdict = judge_order(mine, theirs, higher, _printed(published, data, model, rival, title))
            verdicts.append(verdict)
            numbers.append(theirs)
            value = "" if theirs is None else f" {theirs.text(3)}"
            words.append(f"{_WORDS[verdict.verdict]} {model_title(rival)}{value}")
        shown.append(f"{title} {mine.text(3)}: {', '.join(words)}")
    answer, one_seed = judge_users(verdicts)
    if one_seed and answer != Verdict.MISSING.value:
        answer += " (one seed)"
    text = f"{data_title(data)}: does {model_title(model)} with the default posterior beat NODE and Uni-NODE?"
    made = f"ltnode reproduce images --data {data} --models {','.join(RIVALS)},{model} --variants {STANDARD}"
    found = "; ".join(shown)
    return Claim(f"users.{data}.{model}", SECTION, text, made, "not in the paper", found, seed_text(numbers), answer)


def _printed(published: Published, data: str, model: str, rival: str, title: str) -> tuple[Printed | None, Printed | None]:
    return (published.error(data, model), published.error(data, rival)) if title == "error" else (None, None)
