"""``paper/README.md``: every claim of the paper with our numbers, the verdict and the likely reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ltnode.report.table import markdown_table
from paper.reproduce.claims.all_claims import outcome_counts
from paper.reproduce.claims.claim import Section
from paper.reproduce.claims.verdict import JudgedClaim, Outcome, Verdict
from paper.reproduce.pages.remarks import Remarks

VERDICT_HEADER = ("claim", "paper", "ours", "seeds", "verdict", "why")
_INTRODUCTION = """\
# The paper on the real data

Every number and every statement of the paper that a figure or a text supports, beside what this repository found. This page is
made by `ltnode reproduce claims` from `results/` (one small file per run), `published.toml` (what the paper prints) and
`remarks.toml` (reasons, by hand); `ltnode reproduce images` makes the results, and `ltnode reproduce images --list` shows what is
missing. Commands run from a clone. Ours are means ± population standard deviations over seeds, as in the paper.

**Verdicts.** A printed number is *reproduced* within a tolerance that was fixed beforehand (test error: MNIST .002,
Fashion-MNIST .008, CIFAR10 .01, SVHN .006; detection 1 percentage point; entropy .1 nats; E .25 nats; parameters of a
posterior .1) or within two deviations, the paper's and ours together, ours counted as at most the paper's (this limit
came later, when one seed failed and so widened what was allowed; it can only turn *reproduced* into *not*). An order is
*reproduced* where the gap exceeds the spread over seeds, *reversed* where it does so the other way, *not reproduced* in
between; against several models it must hold for each. Where there is one seed only, the paper's deviation stands for the
unknown one, and the verdict is marked.
*Missing*: the runs are still to be done.
"""


def claims_page(judged: Sequence[JudgedClaim], remarks: Remarks, figures: Sequence[str] = ()) -> str:
    """The page in Markdown.

    Args:
        judged: All claims.
        remarks: Remarks by claim.
        figures: Files to show, relative to the page.
    """
    parts = [_INTRODUCTION, _summary(judged)]
    for section in _sections(judged):
        entries = [entry for entry in judged if entry.claim.section is section]
        rows = [[*row, f"`{entry.claim.command}`"] for row, entry in zip(verdict_rows(entries, remarks), entries, strict=True)]
        parts.append(f"## {section.title}\n\n{markdown_table((*VERDICT_HEADER, 'command'), rows)}")
    if figures:
        shown = "\n\n".join(f"![{Path(name).stem}]({name})" for name in figures)
        parts.append(f"## Figures\n\nRuns of one variant are drawn as mean and one standard deviation over seeds.\n\n{shown}\n")
    return "\n".join(parts)


def verdict_rows(judged: Sequence[JudgedClaim], remarks: Remarks) -> list[list[str]]:
    """Claims as rows of a table below `VERDICT_HEADER`."""
    return [_row(entry, remarks.by_claim.get(entry.claim.key, "")) for entry in judged]


def _row(entry: JudgedClaim, remark: str) -> list[str]:
    claim, verdict = entry.claim, entry.verdict
    why = ". ".join(words[0].upper() + words[1:] for words in (verdict.reason, remark) if words)
    paper = "not in the paper" if claim.paper is None else claim.paper
    return [claim.text, paper, entry.evidence.text or "–", _seeds_text(verdict), verdict_text(verdict), why]


def verdict_text(verdict: Verdict) -> str:
    """The outcome, marked if it rests on one seed."""
    return f"{verdict.outcome.value} (one seed)" if verdict.rests_on_one_seed else verdict.outcome.value


def _seeds_text(verdict: Verdict) -> str:
    fewest, most = verdict.seeds
    return "–" if most == 0 else str(most) if fewest == most else f"{fewest} to {most}"


def _sections(judged: Sequence[JudgedClaim]) -> list[Section]:
    return list(dict.fromkeys(entry.claim.section for entry in judged))


def _summary(judged: Sequence[JudgedClaim]) -> str:
    """A table that counts the outcomes in every section of claims of the paper."""
    rows = []
    for section in _sections([entry for entry in judged if entry.claim.paper is not None]):
        counts = outcome_counts(entry for entry in judged if entry.claim.section is section)
        rows.append([section.title, *(str(counts[outcome]) for outcome in Outcome)])
    total = outcome_counts(judged)
    rows.append(["**all**", *(f"**{total[outcome]}**" for outcome in Outcome)])
    return markdown_table(("", *(outcome.value for outcome in Outcome)), rows)
