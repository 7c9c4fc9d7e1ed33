"""The table of hypotheses on why our numbers differ from the paper's: run, outcome, and one line of numbers for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ltnode.report.table import markdown_table
from paper.reproduce.causes.again import read_again
from paper.reproduce.causes.cause import read_causes
from paper.reproduce.causes.numbers import compared
from paper.reproduce.causes.outcome import Compared, Effect
from paper.reproduce.claims.all_claims import one_dimensional_results
from paper.reproduce.claims.numbers import ImageNumbers
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.results import ImageResult

_HEADER = ("what differs", "hypothesis", "outcome", "in numbers", "command")
_TEXT = """\
## Why numbers differ

Each hypothesis is tested by a run of its own, which never replaces a row of the paper, by evaluating a stored network in another
way (`ltnode reproduce again`), or by another reading of the records. A change *explains* a difference if at most a quarter of it
is left, and explains it *in part* if at most three quarters are left; it is *undecided* if the change is at most two standard
deviations over our seeds. The hypotheses are in `causes.toml`.
"""


def read_compared(paper: PaperFolder, results: Sequence[ImageResult]) -> list[Compared]:
    """All hypotheses with what was measured."""
    numbers = ImageNumbers(results), ImageNumbers(read_again(paper.results)), one_dimensional_results(paper.results)
    return compared(read_causes(paper.causes), *numbers, paper.published())


def causes_section(found: Sequence[Compared]) -> str:
    """The section in Markdown; empty without hypotheses."""
    if not found:
        return ""
    rows = [[one.what, one.cause.hypothesis, one.effect.value, one.line, f"`{one.cause.command}`"] for one in found]
    counts = Counter(one.effect for one in found)
    summary = "; ".join(f"{effect.value}: {counts[effect]}" for effect in Effect if counts[effect])
    open_ones = "; ".join(unexplained(found))
    rest = f"\nAll hypotheses on these were tested, and none explains them: {open_ones}.\n" if open_ones else ""
    return f"{_TEXT}\n{len(found)} hypotheses. {summary[0].upper()}{summary[1:]}.\n\n{markdown_table(_HEADER, rows)}{rest}"


def unexplained(found: Sequence[Compared]) -> list[str]:
    """The differences that none of their hypotheses explains, even in part, although all of them were tested."""
    effects: dict[str, set[Effect]] = {}
    for one in found:
        effects.setdefault(one.what, set()).add(one.effect)
    return [what for what, seen in effects.items() if seen <= {Effect.NO}]
