"""What the paper says about the 1-D experiment and the motivating tasks, beside what we found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ltnode.report.naming import model_title
from ltnode.report.published import Printed, Published
from paper.reproduce.claims.evidence import Claim, judged, versus
from paper.reproduce.claims.judge import MISSING, Judgement, Measured, Verdict, judge_best, judge_number, judge_order
from paper.reproduce.motivating import tasks as motivating
from paper.reproduce.one_dimensional import selection
from paper.reproduce.one_dimensional.synthetic import ITERATIONS, has_full_length, read_results

SECTION = "1-D regression"
ENTROPY_TOLERANCE, POSTERIOR_TOLERANCE, SAME_POSTERIOR, STAGNANT = 0.25, 0.1, 0.3, 1.2
"""E in nats; a parameter of q; two posteriors that count as one; growth of a spread that counts as none."""
_NEAR, _FAR = (1.0, 1.25), (1.75, 2.0)
"""|x| just outside of the data, and as far away as the paper's figure goes."""
_PRIORS = {"lt-node": (2.0, 0.5), "lt-node-prior-1-0.01": (1.0, 0.01)}

Results = Mapping[str, Sequence[Mapping[str, Any]]]


def synthetic_claims(folder: Path, published: Published) -> list[Claim]:
    """All claims about 1-D data.

    Args:
        folder: Of the result files.
        published: What the paper prints.
    """
    everything = _read(folder, "synthetic-*.json")
    results = [r for r in everything if has_full_length(r)]
    by_name = {name: [r for r in results if r["variant"] == name] for name in dict.fromkeys(r["variant"] for r in results)}
    selected = [r for r in _read(folder, "selection-*.json") if r.get("iterations") == ITERATIONS]
    tasks = [r for r in _read(folder, "motivating-*.json") if r.get("steps") == motivating.STEPS]
    return [
        *_entropies(by_name, published),
        *_posteriors(by_name, published),
        *_fits(by_name),
        _stagnation(by_name),
        _selection(by_name, selected),
        *_motivating(tasks),
    ]


def _read(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return read_results(folder, sorted(path.stem for path in folder.glob(pattern)))[0]


def _command(*models: str) -> str:
    return f"ltnode reproduce synthetic --models {','.join(models)}"


def _entropies(results: Results, published: Published) -> Iterator[Claim]:
    printed = {name: float(value) for name, value in published.synthetic.get("entropy", {}).items()}
    found = {name: _measured(results, name, lambda r: r["entropy"]["model"]["mean"]) for name in printed}
    for name, value in printed.items():
        sets = [number for r in results.get(name, ()) for number in r["entropy"]["model"]["sets"]]
        ours, verdict = found[name], MISSING
        if ours is not None:
            # Another set of end-times gives another E: its deviation over sets stands for the one that the paper leaves out.
            verdict = judge_number(ours, Printed(value, Measured(tuple(sets)).std), ENTROPY_TOLERANCE)
        shown = "" if ours is None else f"{ours.mean:.2f} ± {Measured(tuple(sets)).std:.2f} over sets of T"
        text = f"{model_title(name)}: mean entropy E in (-0.5, 0.5), in nats"
        yield judged(f"synthetic-entropy.{name}", SECTION, text, _command(name), f"{value:g}", shown, [ours], verdict)
    others = {model_title(name): number for name, number in found.items() if name != "lt-node"}
    verdict = judge_best(found.get("lt-node"), others, True, beats="with more")
    text = "LT-NODE has the largest E"
    yield judged("synthetic-order", SECTION, text, _command(*printed), "claimed", versus(found, 2), found.values(), verdict)


def _posteriors(results: Results, published: Published) -> Iterator[Claim]:
    learnt = {tuple(entry["prior"]): entry["learnt"] for entry in published.synthetic.get("posterior", ())}
    found: dict[str, tuple[Measured, Measured]] = {}
    for name, prior in _PRIORS.items():
        alpha, beta = (_measured(results, name, lambda r, key=key: r["posterior"][key]) for key in ("alpha", "beta"))
        paper = learnt.get(prior)
        text = f"LT-NODE with prior Gamma({prior[0]:g}, {prior[1]:g}): learnt posterior"
        shown, verdict = "", MISSING
        if alpha is not None and beta is not None and paper is not None:
            found[name] = (alpha, beta)
            shown = f"Gamma({alpha.text(2)}, {beta.text(2)})"
            parts = [judge_number(n, Printed(p, 0.0), POSTERIOR_TOLERANCE) for n, p in zip((alpha, beta), paper, strict=True)]
            good = all(part.verdict is Verdict.REPRODUCED for part in parts)
            verdict = Judgement(Verdict.REPRODUCED if good else Verdict.NOT_REPRODUCED, alpha.seeds == 1)
        stated = "–" if paper is None else f"Gamma({paper[0]:g}, {paper[1]:g})"
        yield judged(f"synthetic-posterior.{name}", SECTION, text, _command(name), stated, shown, [alpha], verdict)
    shown, verdict, numbers = "", MISSING, []
    if len(found) == len(_PRIORS):
        one, other = found.values()
        distance = max(abs(a.mean - b.mean) for a, b in zip(one, other, strict=True))
        shown, numbers = f"largest difference of a parameter {distance:.2f}", [one[0], other[0]]
        one_seed = min(one[0].seeds, other[0].seeds) == 1
        verdict = Judgement(Verdict.REPRODUCED if distance <= SAME_POSTERIOR else Verdict.NOT_REPRODUCED, one_seed)
    text = f"both priors give the same posterior (parameters within {SAME_POSTERIOR:g})"
    yield judged("synthetic-priors", SECTION, text, _command(*_PRIORS), "claimed", shown, numbers, verdict)


def _fits(results: Results) -> Iterator[Claim]:
    rmse = {
        name: _measured(results, name, lambda r: r["fit"]["eval"]["rmse"])
        for name in ("lt-node", "alt-node", "uni-node", "node-gp", "sde-net")
    }
    pair = {name: rmse[name] for name in ("alt-node", "lt-node")}
    verdict = judge_order(pair["alt-node"], pair["lt-node"], False)
    text = "ALT-NODE fits the data better than LT-NODE (RMSE)"
    yield judged("synthetic-fit-alt", SECTION, text, _command(*pair), "claimed", versus(pair, 3), pair.values(), verdict)
    others = {model_title(name): number for name, number in rmse.items() if name != "uni-node"}
    verdict = judge_best(rmse["uni-node"], others, True, beats="with a worse fit")
    text = "Uni-NODE fits the data worse than the other models (RMSE)"
    yield judged("synthetic-fit-uni", SECTION, text, _command(*rmse), "claimed", versus(rmse, 3), rmse.values(), verdict)


def _stagnation(results: Results) -> Claim:
    growth = _measured(results, "sde-net", lambda r: _growth(r["curve"]))
    verdict, shown = MISSING, ""
    if growth is not None:
        good = growth.mean <= STAGNANT
        verdict = Judgement(Verdict.REPRODUCED if good else Verdict.NOT_REPRODUCED, growth.seeds == 1)
        shown = f"std at |x| in [1.75, 2] is {growth.text(2)} times that in [1, 1.25]"
    text = f"SDE-Net's spread does not grow away from the data (at most {STAGNANT:g} times)"
    return judged("synthetic-stagnation", SECTION, text, _command("sde-net"), "claimed", shown, [growth], verdict)


def _growth(curve: Mapping[str, Sequence[float]]) -> float:
    def mean(bounds: tuple[float, float]) -> float:
        inside = [s for x, s in zip(curve["x"], curve["std"], strict=True) if bounds[0] <= abs(x) <= bounds[1]]
        return math.fsum(inside) / len(inside)

    return mean(_FAR) / max(mean(_NEAR), 1e-12)


def _selection(results: Results, selected: Sequence[Mapping[str, Any]]) -> Claim:
    text = "small end-times do best in validation, and q(T) has its mass there"
    made = "ltnode reproduce synthetic --models lt-node,node"
    seeds = {r["seed"] for r in selected}
    complete = [s for s in sorted(seeds) if {r["time"] for r in selected if r["seed"] == s} >= set(selection.TIMES)]
    posteriors = {r["seed"]: r["posterior"] for r in results.get("lt-node", ()) if r["seed"] in complete}
    if not posteriors:
        return judged("synthetic-selection", SECTION, text, made, "claimed", "", [], MISSING)
    found = [
        selection.judge([dict(r) for r in selected if r["seed"] == seed], q["alpha"], q["beta"]) for seed, q in posteriors.items()
    ]
    supported = all(verdict.text.startswith("supported") for verdict in found)
    verdict = Judgement(Verdict.REPRODUCED if supported else Verdict.NOT_REPRODUCED, len(found) == 1)
    shown = "; ".join(dict.fromkeys(verdict.text for verdict in found))
    best = Measured(tuple(verdict.best_time for verdict in found))
    return judged("synthetic-selection", SECTION, text, made, "claimed", shown, [best], verdict)


def _motivating(results: Sequence[Mapping[str, Any]]) -> Iterator[Claim]:
    for task in motivating.TASKS:
        shown, verdict, numbers = "", MISSING, []
        mine = [r for r in results if r["task"] == task]
        solved = {name: [bool(r["solved"]) for r in mine if r["model"] == name] for name in ("node", "alt-node")}
        if all(solved.values()):
            good = all(solved["alt-node"]) and not any(solved["node"])
            shown = "; ".join(f"{model_title(name)} solves it on {sum(s)} of {len(s)} seeds" for name, s in solved.items())
            numbers = [Measured(tuple(float(flag) for flag in flags)) for flags in solved.values()]
            one_seed = min(len(flags) for flags in solved.values()) == 1
            verdict = Judgement(Verdict.REPRODUCED if good else Verdict.NOT_REPRODUCED, one_seed)
        text = f"{task}: end-times that depend on the input solve what a common one does not"
        made = "ltnode reproduce motivating --seeds 0-2"
        yield judged(f"motivating.{task}", "Motivating tasks", text, made, "claimed", shown, numbers, verdict)


def _measured(results: Results, name: str, read: Any) -> Measured | None:
    values = tuple(float(read(result)) for result in results.get(name, ()))
    return Measured(values) if values else None
