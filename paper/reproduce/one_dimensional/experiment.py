"""The paper's 1-D experiment: train one model, measure it and record the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ltnode.data import gap_data
from ltnode.training import fit
from paper.reproduce.one_dimensional.measure import measure
from paper.reproduce.one_dimensional.variants import ITERATIONS, POINTS, Variant
from paper.reproduce.records import shortened, write_result


def reproduce(variant: Variant, seed: int, out: Path, runs: Path, iterations: int = ITERATIONS) -> dict[str, Any]:
    """Train one model, or continue its training, measure it, and write the result as JSON.

    An interrupted run continues from its last checkpoint and ends with the same bits; a finished one is only measured.

    Args:
        variant: The model.
        seed: Seed of the weights and end-times; the data are the same for every seed.
        out: Folder of the results.
        runs: Folder of the run folders.
        iterations: Training steps; the paper makes 3,000.
    """
    data = gap_data(POINTS)
    stem = result_name(variant.name, seed, iterations)
    config = variant.config(seed, iterations)
    run = fit(variant.build(seed), data, config, runs / stem, resume=True)
    result = {
        "experiment": "synthetic",
        "variant": variant.name,
        "title": variant.title,
        "model": variant.model,
        "prior": None if variant.prior is None else list(variant.prior),
        "seed": seed,
        "iterations": config.epochs,
        **measure(run.model, data),
        "provenance": run.results["provenance"],
    }
    write_result(out, stem, result)
    return result


def result_name(variant: str, seed: int, iterations: int, experiment: str = "synthetic") -> str:
    """Name of a run folder and of its result file."""
    return f"{experiment}-{variant}-seed{seed}{shortened(iterations, ITERATIONS)}"
