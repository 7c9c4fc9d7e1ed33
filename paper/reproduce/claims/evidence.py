"""The numbers that claims are judged by: results of all seeds, asked for by data set, model, preset and variant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ltnode.evaluation import ResultRow
from ltnode.report.naming import model_title
from ltnode.report.published import Printed
from paper.reproduce.claims.judge import Judgement, Measured, judge_best, judge_order
from paper.reproduce.images.grid import STANDARD
from paper.reproduce.images.results import ImageResult

BASELINES = ("node", "sde-net", "node-gp", "uni-node")
PROPOSED = ("lt-node", "alt-node")
MODELS = (*BASELINES, *PROPOSED)
FOREIGN = {"cifar10": "svhn", "svhn": "cifar10"}
"""The pairs of data sets of the paper's experiments with foreign data."""

Read = Callable[[ImageResult], float | None]
"""A number of one result; None where it is not there."""


@dataclass(frozen=True)
class Claim:
    """One line of the comparison with the paper.

    Attributes:
        key: For remarks, such as ``error.cifar10.lt-node``.
        section: Under which heading it stands.
        text: What is claimed.
        command: What makes our number.
        paper: What the paper says, as text.
        ours: What we found, as text.
        seeds: How many seeds are behind it, as text.
        verdict: As text.
        detail: What decided.
    """

    key: str
    section: str
    text: str
    command: str
    paper: str
    ours: str
    seeds: str
    verdict: str
    detail: str = ""


def judged(
    key: str, section: str, text: str, made: str, paper: str, ours: str, numbers: Iterable[Measured | None], verdict: Judgement
) -> Claim:
    """A claim with its verdict; seeds are those of the numbers behind it."""
    return Claim(key, section, text, made, paper, ours or "–", seed_text(numbers), verdict.text, verdict.detail)


def seed_text(numbers: Iterable[Measured | None]) -> str:
    """How many seeds are behind numbers."""
    counts = sorted({found.seeds for found in numbers if found is not None})
    return "–" if not counts else str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


class Evidence:
    """Results of the image experiments, to be asked for.

    Args:
        results: Of any cells.
    """

    def __init__(self, results: Sequence[ImageResult]) -> None:
        self.results = list(results)
        self._rows: dict[tuple[int, str, str], list[ResultRow]] = {}
        for result in self.results:
            for row in result.rows():
                if "statistic" not in row.setting:
                    self._rows.setdefault((id(result), row.protocol, row.metric), []).append(row)

    def of(self, data: str, model: str, preset: str = "paper", variant: str = "") -> list[ImageResult]:
        """Results of all seeds of a cell, by seed."""
        found = [r for r in self.results if (r.data, r.model, r.preset, r.variant) == (data, model, preset, variant)]
        return sorted(found, key=lambda result: result.seed)

    def measured(self, read: Read, data: str, model: str, preset: str = "paper", variant: str = "") -> Measured | None:
        """A number over the seeds that have it; None where none has."""
        values = [read(result) for result in self.of(data, model, preset, variant)]
        known = tuple(value for value in values if value is not None and not math.isnan(value))
        return Measured(known) if known else None

    def number(self, protocol: str, metric: str, **setting: Any) -> Read:
        """Reads one number of a protocol."""

        def read(result: ImageResult) -> float | None:
            found = self._where(result, protocol, metric, setting)
            return found[0].number if found else None

        return read

    def mean_along(self, protocol: str, metric: str, along: str, at: Callable[[float], bool], **setting: Any) -> Read:
        """Reads the mean of a number over the angles or strengths that pass a test."""

        def read(result: ImageResult) -> float | None:
            found = self._where(result, protocol, metric, setting)
            values = [row.number for row in found if along in row.setting and at(float(row.setting[along]))]
            return math.fsum(values) / len(values) if values else None

        return read

    def at(self, protocol: str, metric: str, x: float, **setting: Any) -> Read:
        """Reads a curve at the abscissa nearest to x."""

        def read(result: ImageResult) -> float | None:
            found = self._where(result, protocol, metric, setting)
            if not found:
                return None
            abscissae: Sequence[float] = found[0].extra["x"]
            return found[0].curve[min(range(len(abscissae)), key=lambda k: abs(abscissae[k] - x))]

        return read

    def cost(self, protocol: str, measure: str) -> Read:
        """Reads what the predictions of a protocol cost: ``evaluations`` or ``seconds_per_1000``."""

        def read(result: ImageResult) -> float | None:
            cost = result.protocols.get(protocol, {}).get("cost") or {}
            value = cost.get(measure)
            return None if value is None else float(value)

        return read

    def _where(self, result: ImageResult, protocol: str, metric: str, setting: Mapping[str, Any]) -> list[ResultRow]:
        found = self._rows.get((id(result), protocol, metric), ())
        return [row for row in found if all(row.setting.get(key) == value for key, value in setting.items())]


def command(data: str, models: Sequence[str], preset: str = "paper", variant: str = STANDARD) -> str:
    """The command that fills a claim's numbers."""
    return f"ltnode reproduce images --data {data} --models {','.join(models)} --presets {preset} --variants {variant}"


def in_percent(read: Read) -> Read:
    """Reads a share as percent."""

    def scaled(result: ImageResult) -> float | None:
        value = read(result)
        return None if value is None else 100 * value

    return scaled


def number_claim(
    key: str, section: str, text: str, made: str, printed: Printed, ours: Measured | None, digits: int, verdict: Judgement
) -> Claim:
    """A number that the paper prints."""
    paper = f"{printed.mean:.{digits}f} ± {printed.std:.{digits}f}"
    shown = "" if ours is None else ours.text(digits + 1 if digits == 3 and ours.mean < 1 else digits)
    return judged(key, section, text, made, paper, shown, [ours], verdict)


def best_claim(
    evidence: Evidence,
    key: str,
    section: str,
    text: str,
    read: Read,
    data: str,
    model: str,
    higher: bool,
    digits: int,
    printed: Mapping[str, Printed | None] | None = None,
    others: Sequence[str] = BASELINES,
) -> Claim:
    """That a model is better than each of some others in a number; see `judge_best`."""
    found = {name: evidence.measured(read, data, name) for name in (model, *others)}
    named = {model_title(name): value for name, value in (printed or {}).items()}
    rivals = {model_title(name): found[name] for name in others}
    verdict = judge_best(found[model], rivals, higher, named, model_title(model))
    return judged(key, section, text, command(data, list(found)), "claimed", versus(found, digits), found.values(), verdict)


def pair_claim(
    evidence: Evidence,
    key: str,
    section: str,
    text: str,
    read: Read,
    data: str,
    pair: tuple[str, str],
    higher: bool,
    digits: int,
    printed: Mapping[str, Printed | None] | None = None,
) -> Claim:
    """That the first of two models is better in a number; see `judge_order`."""
    better, worse = (evidence.measured(read, data, name) for name in pair)
    known = printed or {}
    verdict = judge_order(better, worse, higher, (known.get(pair[0]), known.get(pair[1])))
    shown = versus(dict(zip(pair, (better, worse), strict=True)), digits)
    return judged(key, section, text, command(data, pair), "claimed", shown, [better, worse], verdict)


def versus(numbers: Mapping[str, Measured | None], digits: int) -> str:
    """Models with their numbers, those that have one."""
    return ", ".join(f"{model_title(name)} {number.text(digits)}" for name, number in numbers.items() if number is not None)
