"""Targets for the rows of `benchmarks/training.py`, and whether they are met."""

from __future__ import annotations

from typing import Any

DIRECT = "torchdiffeq direct"
TARGETS_MS = {
    "lt-node fused bf16, cifar10, 5 steps": 3.0,
    "lt-node fused bf16, cifar10, balanced grid": 1.5,
    "alt-node fused bf16, cifar10, 5 steps": 4.0,
    "node fused bf16, cifar10, balanced grid": 2.0,
    "lt-node fused bf16, mnist, 5 steps": 2.5,
    "lt-node fused bf16, mnist, balanced grid": 2.5,
    "node-gp eager fp32": 25.0,
}


def claims(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the targets for times, ratios to the peers, memory, start-up and concurrent seeds, with what was measured.

    The peers are torchdiffeq's direct way and the fastest of diffrax's adjoints.
    """
    by_way = {row["way"]: row for row in rows}
    found = [
        {"claim": f"{way}: ms a step {where}", "value": by_way[way][key], "at_most": limit}
        for way, limit in TARGETS_MS.items()
        if way in by_way
        for key, where in (("device_ms", "on the device"), ("loop_ms", "in a loop of steps"))
    ]
    direct = by_way.get(DIRECT)
    adjoints = [row for row in rows if row["way"].startswith("diffrax ")]
    for peer in (direct, min(adjoints, key=lambda row: row["device_ms"], default=None)):
        if peer is not None:
            for row in fused_rows(rows, peer):
                ratio = peer["device_ms"] / row["device_ms"]
                found.append({"claim": f"{row['way']}: times faster than {peer['way']}", "value": ratio})
    if direct is not None:
        peak = max((row["peak_gb"] for row in fused_rows(rows, direct)), default=0.0)
        found.append({"claim": f"peak memory of fused LT-NODE / {DIRECT}", "value": peak / direct["peak_gb"], "at_most": 1.0})
    for row in rows:
        if row["way"].startswith("start-up"):
            found.append({"claim": f"{row['way']}: seconds", "value": row["start_s"], "at_most": 60.0})
    together = [by_way.get(f"lt-node fused bf16 balanced grid, {text}") for text in ("1 seed alone", "5 seeds side by side")]
    if together[0] and together[1]:
        ratio = together[1]["loop_ms"] / together[0]["loop_ms"]
        found.append({"claim": "five seeds side by side / one", "value": ratio, "at_most": 2.5})
    return found


def fused_rows(rows: list[dict[str, Any]], peer: dict[str, Any]) -> list[dict[str, Any]]:
    """Fused variants of LT-NODE on the shapes of the peer, alone on the GPU."""
    ours = [row for row in rows if row["way"].startswith("lt-node fused") and "seed" not in row["way"]]
    return [row for row in ours if row.get("shapes") == peer.get("shapes")]


def print_claims(found: list[dict[str, Any]]) -> None:
    for claim in found:
        limit = claim.get("at_most")
        verdict = "" if limit is None else f"   at most {limit:g}: {'met' if claim['value'] <= limit else 'NOT MET'}"
        print(f"{claim['claim']}: {claim['value']:.3f}{verdict}", flush=True)
