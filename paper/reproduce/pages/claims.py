"""The page that compares every claim of the paper with our results: claim, command, paper, ours, verdict, likely reason.

Reasons are written by hand in ``paper/remarks.toml``: a table ``[remarks]`` with the key of a claim and a sentence; ``zoo`` is a
note under the table of the zoo.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ltnode.errors import ConfigError, unknown_name
from ltnode.report.markdown import markdown_table
from ltnode.report.published import Published
from paper.reproduce.claims.evidence import Claim, Evidence
from paper.reproduce.claims.images import image_claims
from paper.reproduce.claims.judge import Verdict
from paper.reproduce.claims.one_dimensional import synthetic_claims
from paper.reproduce.claims.users import users_question
from paper.reproduce.images.results import ImageResult

HEADER = ("claim", "paper", "ours", "seeds", "verdict", "why", "command")
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


def all_claims(results: Sequence[ImageResult], folder: Path, published: Published) -> list[Claim]:
    """Every claim, judged.

    Args:
        results: Of the image experiments.
        folder: Of the result files of the other experiments.
        published: What the paper prints.
    """
    evidence = Evidence(results)
    return [*users_question(evidence, published), *image_claims(evidence, published), *synthetic_claims(folder, published)]


def read_remarks(path: Path, claims: Sequence[Claim]) -> dict[str, str]:
    """Reasons by the key of their claim; none where there is no file.

    Raises:
        ConfigError: The file is not TOML, or a key is that of no claim.
    """
    remarks = _remarks(path).get("remarks", {})
    keys = {claim.key for claim in claims}
    for key, sentence in remarks.items():
        if key not in keys:
            raise ConfigError(f"{path}: {unknown_name('claim', key, keys)}")
        if not isinstance(sentence, str):
            raise ConfigError(f"{path}: the remark on {key} must be a text, not {sentence!r}")
    return dict(remarks)


def zoo_note(path: Path) -> str:
    """What the remarks say about the zoo; empty where they say nothing."""
    return str(_remarks(path).get("zoo", ""))


def _remarks(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the remarks in {path}: {error}") from error


def claims_page(claims: Sequence[Claim], remarks: Mapping[str, str], figures: Sequence[str] = ()) -> str:
    """The page in Markdown.

    Args:
        claims: Judged.
        remarks: Reasons by key.
        figures: Files to show, relative to the page.
    """
    sections = dict.fromkeys(claim.section for claim in claims)
    parts = [_INTRODUCTION, _summary(claims)]
    for section in sections:
        rows = [_row(claim, remarks.get(claim.key, "")) for claim in claims if claim.section == section]
        parts.append(f"## {section}\n\n{markdown_table(HEADER, rows)}")
    if figures:
        shown = "\n\n".join(f"![{Path(name).stem}]({name})" for name in figures)
        parts.append(f"## Figures\n\nRuns of one variant are drawn as mean and one standard deviation over seeds.\n\n{shown}\n")
    return "\n".join(parts)


def verdict_counts(claims: Sequence[Claim]) -> Counter[Verdict]:
    """How many claims of the paper have which verdict."""
    return Counter(kind for claim in claims if (kind := _kind(claim)) is not None)


def _summary(claims: Sequence[Claim]) -> str:
    sections = dict.fromkeys(claim.section for claim in claims if _kind(claim) is not None)
    rows = []
    for section in sections:
        counts = verdict_counts([claim for claim in claims if claim.section == section])
        rows.append([section, *(str(counts[verdict]) for verdict in Verdict)])
    total = verdict_counts(claims)
    rows.append(["**all**", *(f"**{total[verdict]}**" for verdict in Verdict)])
    return markdown_table(("", *(verdict.value for verdict in Verdict)), rows)


def _kind(claim: Claim) -> Verdict | None:
    word = claim.verdict.removesuffix(" (one seed)")
    return Verdict(word) if word in set(Verdict) and claim.paper != "not in the paper" else None


def _row(claim: Claim, remark: str) -> list[str]:
    why = ". ".join(words[0].upper() + words[1:] for words in (claim.detail, remark) if words)
    return [claim.text, claim.paper, claim.ours, claim.seeds, claim.verdict, why, f"`{claim.command}`"]
