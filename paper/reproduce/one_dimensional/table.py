"""Everything that was measured of the models of the 1-D experiment, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ltnode.report.aggregate import Measured
from paper.reproduce.one_dimensional.experiment import EVERY

HEADER = ("model", "E in the gap", "E with noise", "fit RMSE", "with batch statistics", "learnt q(T)", "P(T > 3)", "parameters")
WORDS = (0, 5)
NOTE = (
    "E: mean entropy in (-0.5, 0.5) in nats, mean ± standard deviation over sets of end-times. The fit RMSE uses the running "
    "statistics of BatchNorm, which are averages over all t of a solve; where it is much larger than with batch statistics, "
    "predictions do not use the field that was trained. Parameters of the observation noise follow the plus sign."
)


def measurement_rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """One row per model that has results, averaged over its seeds."""
    groups = [[r for r in results if r["variant"] == name] for name in EVERY]
    return [_row(group) for group in groups if group]


def _row(group: Sequence[Mapping[str, Any]]) -> list[str]:
    first = group[0]
    count = first["parameters"]
    noise = count["all"] - count["network_and_posterior"]
    return [
        first["title"],
        *(_entropy([r["entropy"][kind] for r in group]) for kind in ("model", "with_noise")),
        *(_mean([r["fit"][mode]["rmse"] for r in group if mode in r["fit"]], 3) for mode in ("eval", "train")),
        _posterior(group),
        _mean([r["posterior"]["tail"] for r in group if r["posterior"] is not None], 2),
        f"{count['network_and_posterior']:,}" + (f" + {noise}" if noise else ""),
    ]


def _entropy(entries: Sequence[Mapping[str, Any] | None]) -> str:
    values = tuple(value for entry in entries if entry is not None for value in entry["sets"])
    return Measured(values).text(2) if values else "no spread"


def _mean(values: Sequence[float], digits: int) -> str:
    return f"{Measured(tuple(values)).mean:.{digits}f}" if values else "–"


def _posterior(group: Sequence[Mapping[str, Any]]) -> str:
    if group[0]["posterior"] is None:
        return "–"
    alpha, beta, mean = (_mean([r["posterior"][key] for r in group], 2) for key in ("alpha", "beta", "mean"))
    # For ALT-NODE the parameters are averages over inputs, which say little.
    return f"Gamma({alpha}, {beta}), mean {mean}" if group[0]["model"] == "lt-node" else f"mean {mean}"
