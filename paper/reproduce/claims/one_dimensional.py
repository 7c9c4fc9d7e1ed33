"""Claims about the regression experiment on one-dimensional data with a gap."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ltnode.report.aggregate import Measured
from ltnode.report.naming import model_title
from paper.reproduce.claims.claim import CLAIMED, Always, AtMost, Best, Claim, Near, Section, Statement
from paper.reproduce.claims.evidence import Evidence, of_models
from paper.reproduce.claims.judge import judged
from paper.reproduce.claims.verdict import JudgedClaim
from paper.reproduce.one_dimensional.selection import TIMES, Support, compare
from paper.reproduce.published import PaperValues, Printed

ENTROPY_TOLERANCE = 0.25
"""Largest difference from a published entropy E, in nats, that counts as the same."""
POSTERIOR_TOLERANCE, SAME_POSTERIOR = 0.1, 0.3
"""Largest difference of a parameter: from a published posterior, and between two posteriors that count as the same."""
STAGNANT = 1.2
"""Largest growth of a spread that counts as no growth."""
_NEAR, _FAR = (1.0, 1.25), (1.75, 2.0)
"""|x| just outside of the data, and as far away as the paper's figure goes."""
_PRIORS = {"lt-node": (2.0, 0.5), "lt-node-prior-1-0.01": (1.0, 0.01)}

Result = Mapping[str, Any]


@dataclass(frozen=True)
class OneDimensionalResults:
    """Recorded results of the experiment.

    Attributes:
        trained: One result per model and seed.
        selected: One result per end-time and seed of the model selection.
    """

    trained: Sequence[Result]
    selected: Sequence[Result]

    def measured(self, name: str, read: Callable[[Result], float]) -> Measured | None:
        """Read a number from every seed of a model; returns None if there is none."""
        values = tuple(float(read(result)) for result in self.trained if result["variant"] == name)
        return Measured(values) if values else None


def one_dimensional_claims(results: OneDimensionalResults, published: PaperValues) -> list[JudgedClaim]:
    """Judge all claims about the experiment."""
    return [
        *_entropies(results, published),
        *_posteriors(results, published),
        _same_posterior(results),
        *_fits(results),
        _stagnation(results),
        _selection(results),
    ]


def _claim(key: str, text: str, statement: Statement, models: Sequence[str], paper: str = CLAIMED) -> Claim:
    made = f"ltnode reproduce synthetic --models {','.join(models)}"
    return Claim(f"synthetic-{key}", Section.ONE_DIMENSIONAL, text, statement, made, paper)


def _entropies(results: OneDimensionalResults, published: PaperValues) -> Iterator[JudgedClaim]:
    printed = published.gap_entropies
    found = {name: results.measured(name, lambda r: r["entropy"]["model"]["mean"]) for name in printed}
    for name, value in printed.items():
        ours = found[name]
        # Another set of end-times gives another E. The paper prints no deviation, so that over our sets is used.
        sets = [number for r in results.trained if r["variant"] == name for number in r["entropy"]["model"]["sets"]]
        std = Measured(tuple(sets)).std if sets else 0.0
        text = f"{model_title(name)}: mean entropy E in (-0.5, 0.5), in nats"
        claim = _claim(
            f"entropy.{name}", text, Near({name: Printed(value, std, seeds=0)}, ENTROPY_TOLERANCE), [name], f"{value:g}"
        )
        yield judged(claim, Evidence({name: ours}, "" if ours is None else f"{ours.mean:.2f} ± {std:.2f} over sets of T"))
    if "lt-node" in printed:
        claim = _claim("order", "LT-NODE has the largest E", Best("LT-NODE", higher=True, word="larger"), list(printed))
        yield judged(claim, of_models(found, 2))


def _posteriors(results: OneDimensionalResults, published: PaperValues) -> Iterator[JudgedClaim]:
    for name, prior in _PRIORS.items():
        paper = published.learnt_posterior(prior)
        if paper is None:
            continue
        numbers = _posterior(results, name)
        near = Near({key: Printed(value, 0.0, seeds=0) for key, value in zip(numbers, paper, strict=True)}, POSTERIOR_TOLERANCE)
        text = f"LT-NODE with prior Gamma({prior[0]:g}, {prior[1]:g}): learnt posterior"
        claim = _claim(f"posterior.{name}", text, near, [name], f"Gamma({paper[0]:g}, {paper[1]:g})")
        shown = ", ".join(number.text(2) for number in numbers.values() if number is not None)
        yield judged(claim, Evidence(numbers, f"Gamma({shown})" if shown else ""))


def _same_posterior(results: OneDimensionalResults) -> JudgedClaim:
    first, second = (_posterior(results, name) for name in _PRIORS)
    pairs = [(a, b) for a, b in zip(first.values(), second.values(), strict=True) if a is not None and b is not None]
    text = f"both priors give the same posterior (parameters within {SAME_POSTERIOR:g})"
    claim = _claim("priors", text, AtMost(SAME_POSTERIOR), list(_PRIORS))
    if not pairs:
        return judged(claim, Evidence({"difference": None}, ""))
    difference = max(abs(a.mean - b.mean) for a, b in pairs)
    shown = f"largest difference of a parameter {difference:.2f}"
    counts = tuple(number.seeds for pair in pairs for number in pair)
    return judged(claim, Evidence({"difference": Measured((difference,))}, shown, seed_counts=counts))


def _posterior(results: OneDimensionalResults, name: str) -> dict[str, Measured | None]:
    return {
        "alpha": results.measured(name, lambda r: r["posterior"]["alpha"]),
        "beta": results.measured(name, lambda r: r["posterior"]["beta"]),
    }


def _fits(results: OneDimensionalResults) -> Iterator[JudgedClaim]:
    models = ("lt-node", "alt-node", "uni-node", "node-gp", "sde-net")
    rmse = {name: results.measured(name, lambda r: r["fit"]["eval"]["rmse"]) for name in models}
    pair = {name: rmse[name] for name in ("alt-node", "lt-node")}
    text = "ALT-NODE fits the data better than LT-NODE (RMSE)"
    yield judged(_claim("fit-alt", text, Best("ALT-NODE", higher=False), list(pair)), of_models(pair, 3))
    text = "Uni-NODE fits the data worse than the other models (RMSE)"
    worst = Best("Uni-NODE", higher=True, word="worse")
    yield judged(_claim("fit-uni", text, worst, models), of_models(rmse, 3))


def _stagnation(results: OneDimensionalResults) -> JudgedClaim:
    growth = results.measured("sde-net", lambda r: _growth(r["curve"]))
    text = f"SDE-Net's spread does not grow away from the data (at most {STAGNANT:g} times)"
    shown = "" if growth is None else f"std at |x| in [1.75, 2] is {growth.text(2)} times that in [1, 1.25]"
    return judged(_claim("stagnation", text, AtMost(STAGNANT), ["sde-net"]), Evidence({"growth": growth}, shown))


def _growth(curve: Mapping[str, Sequence[float]]) -> float:
    def mean(bounds: tuple[float, float]) -> float:
        inside = [s for x, s in zip(curve["x"], curve["std"], strict=True) if bounds[0] <= abs(x) <= bounds[1]]
        return math.fsum(inside) / len(inside)

    return mean(_FAR) / max(mean(_NEAR), 1e-12)


def _selection(results: OneDimensionalResults) -> JudgedClaim:
    text = "small end-times do best in validation, and q(T) has its mass there"
    claim = _claim("selection", text, Always(), ["lt-node", "node"])
    found = []
    for trained in results.trained:
        errors = [r for r in results.selected if r["seed"] == trained["seed"]]
        if trained["variant"] == "lt-node" and {r["time"] for r in errors} >= set(TIMES):
            found.append(compare(errors, trained["posterior"]["alpha"], trained["posterior"]["beta"]))
    flags = tuple(float(selection.support is Support.SUPPORTED) for selection in found)
    shown = "; ".join(dict.fromkeys(selection.text for selection in found))
    return judged(claim, Evidence({"supported": Measured(flags) if flags else None}, shown))
