"""The first page of ``paper/README.md``: what holds, what does not, and why."""

from __future__ import annotations

from collections.abc import Sequence

from paper.reproduce.causes.outcome import Compared, Effect
from paper.reproduce.claims.all_claims import outcome_counts
from paper.reproduce.claims.verdict import JudgedClaim, Outcome
from paper.reproduce.pages.causes import unexplained
from paper.reproduce.pages.statements import FAILS, HOLDS, Statement, set_title, statements

HOLDS_FIGURE, DIFFERS_FIGURE, WHY_FIGURE = "holds", "differs", "why"
"""Names of the figures, which `paper.reproduce.pages.summary_figures` draws."""

_LEAD = """\
# The paper on the real data

*[Latent Time Neural Ordinary Differential Equations](https://arxiv.org/abs/2112.12728)* (AAAI 2022) prints {claims} numbers and
statements that can be checked. We trained its models with its settings: {reproduced} are reproduced, {not_reproduced} are not,
{reversed} come out the other way round{missing}. {one_seed}

This first page says what holds, what does not and why. After it come the paper's tables and figures with our numbers, how we
judge, and every claim with its command.
"""
ABOVE_ALL = 2.0
"""Above every share."""
_ALTERNATIVES = {
    HOLDS_FIGURE: "For every statement of the paper and every data set: how many of its claims are reproduced",
    DIFFERS_FIGURE: "Distance of our numbers to the printed ones in tolerances, for test error, detection and entropy",
    WHY_FIGURE: "How much of each difference is left under the hypothesis that explains most of it",
}


def front_page(judged: Sequence[JudgedClaim], causes: Sequence[Compared], figures: Sequence[str]) -> str:
    """The page in Markdown.

    Args:
        judged: All claims.
        causes: Hypotheses on why numbers differ.
        figures: Files that exist, relative to the page.
    """
    made = statements(judged)
    parts = [
        _lead(judged),
        "## What holds",
        _picture(HOLDS_FIGURE, figures),
        _by_set(made),
        _list("At least four of five claims of a statement are reproduced on these sets:", made, HOLDS, ABOVE_ALL),
        "## What does not",
        _picture(DIFFERS_FIGURE, figures),
        _list("Less than half of the claims are reproduced on these sets:", made, 0.0, FAILS),
        "## Why",
        _picture(WHY_FIGURE, figures),
        _why(causes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _lead(judged: Sequence[JudgedClaim]) -> str:
    paper = [entry for entry in judged if entry.claim.paper is not None]
    counts = outcome_counts(paper)
    single = sum(entry.verdict.rests_on_one_seed for entry in paper)
    missing = counts[Outcome.MISSING]
    return _LEAD.format(
        claims=len(paper),
        reproduced=counts[Outcome.REPRODUCED],
        not_reproduced=counts[Outcome.NOT_REPRODUCED],
        reversed=counts[Outcome.REVERSED],
        missing=f", and {missing} wait for runs" if missing else "",
        one_seed=f"{single} verdicts still rest on a single seed." if single else "Every verdict rests on several seeds.",
    ).rstrip()


def _picture(name: str, figures: Sequence[str]) -> str:
    file = f"figures/{name}.svg"
    return f"![{_ALTERNATIVES[name]}]({file})" if file in figures else ""


def _by_set(found: Sequence[Statement]) -> str:
    """How many claims are reproduced on every image set."""
    totals: dict[str, list[int]] = {}
    for statement in found:
        for data, share in statement.by_data.items():
            counts = totals.setdefault(data, [0, 0])
            counts[0] += share.reproduced
            counts[1] += share.claims
    words = [f"{set_title(data)} {done} of {claims}" for data, (done, claims) in totals.items()]
    return f"Reproduced claims: {', '.join(words)}." if words else ""


def _list(title: str, found: Sequence[Statement], low: float, high: float) -> str:
    entries = [f"- {line}" for statement in found if (line := statement.line(low, high))]
    return f"{title}\n\n" + "\n".join(entries) if entries else ""


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _why(causes: Sequence[Compared]) -> str:
    """What the hypotheses said, in a few lines; the table follows later on the page."""
    tested = [one for one in causes if one.effect is not Effect.NOT_RUN]
    if not tested:
        return ""
    helpful = [one for one in tested if one.effect in (Effect.EXPLAINS, Effect.IN_PART)]
    entries = [f"- **{one.what}** ({one.line}). {_capital(one.cause.hypothesis)}: this {one.effect.value}." for one in helpful]
    open_ones = unexplained(causes)
    if open_ones:
        entries.append(f"- **Unexplained**, although all hypotheses on it were tested: {'; '.join(open_ones)}.")
    count = f"{len(tested)} of {len(causes)} hypotheses are tested; {len(helpful)} explain a difference, or a part of it:"
    return f"{count}\n\n" + "\n".join(entries) + "\n\nAll of them are [in a table below](#why-numbers-differ)."
