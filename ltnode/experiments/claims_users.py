"""The question of our users: is the default posterior better than no posterior?"""

from __future__ import annotations

from collections.abc import Mapping

from ltnode.experiments.claims_evidence import FOREIGN, PROPOSED, Claim, Evidence, Read, seed_text, versus
from ltnode.experiments.claims_rules import Verdict, judge_best, judge_users
from ltnode.experiments.images_grid import STANDARD
from ltnode.report.naming import data_title, model_title

SECTION = "The users' question"


def users_question(evidence: Evidence) -> list[Claim]:
    """Whether the default posterior is better than Uni-NODE and NODE: on clean, on rotated and against foreign images."""
    claims = []
    for data, other in FOREIGN.items():
        measures: Mapping[str, tuple[Read, bool]] = {
            "error": (evidence.number("clean", "error"), False),
            "LL": (evidence.number("clean", "log_likelihood"), True),
            "ECE": (evidence.number("clean", "ece"), False),
            "rotated LL": (evidence.mean_along("rotation", "log_likelihood", "angle", lambda angle: angle > 0), True),
            "AUROC": (evidence.number("ood", "auroc", ood=other, score="max_probability"), True),
        }
        for model in PROPOSED:
            verdicts, numbers, shown = [], [], []
            for title, (read, higher) in measures.items():
                mine = evidence.measured(read, data, model, "default")
                theirs = {name: evidence.measured(read, data, name) for name in ("node", "uni-node")}
                verdict = judge_best(mine, {model_title(name): number for name, number in theirs.items()}, higher)
                word = {Verdict.REPRODUCED: "better", Verdict.REVERSED: "worse", Verdict.MISSING: "missing"}
                verdicts.append(verdict)
                numbers += [mine, *theirs.values()]
                values = "" if mine is None else f" ({versus({model: mine, **theirs}, 3)})"
                shown.append(f"{title}: {word.get(verdict.verdict, 'within the spread')}{values}")
            answer, one_seed = judge_users(verdicts)
            if one_seed and answer != Verdict.MISSING.value:
                answer += " (one seed)"
            made = f"ltnode reproduce images --data {data} --models node,uni-node,{model} --variants {STANDARD}"
            text = f"{data_title(data)}: does {model_title(model)} with the default posterior beat NODE and Uni-NODE?"
            key = f"users.{data}.{model}"
            claims.append(
                Claim(key, "The users' question", text, made, "not in the paper", "; ".join(shown), seed_text(numbers), answer)
            )
    return claims
