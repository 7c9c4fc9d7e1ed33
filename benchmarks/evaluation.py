"""Evaluating one run under all of the paper's protocols: seconds per protocol, at most 120 in all on an H200.

usage: python benchmarks/evaluation.py [--run zoo/lt-node-cifar10] [--data FOLDER] [--device cuda] [--limit N] [--json FILE]
                                       [--profile PROTOCOL]

FOLDER holds the image sets (by default LTNODE_DATA). A limit uses only the first N test images of either set.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

import ltnode
from ltnode.evaluation import default_protocols
from ltnode.trained import TrainedModel
from ltnode.training.provenance import source_state

MOST_SECONDS = 120.0


def evaluated(run: Path, protocol: str, device: str, limit: int | None) -> tuple[float, list[Any]]:
    """Seconds and rows of one protocol, loading included."""
    began = time.perf_counter()
    rows = ltnode.evaluate(run, protocols=[protocol], device=device, limit=limit)
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, rows


def profiled(run: Path, protocol: str, device: str, limit: int | None) -> None:
    """Print what takes the time of one protocol: functions of the host, then operations of the device."""
    import cProfile
    import pstats

    host = cProfile.Profile()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.device(device).type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as operations:
        host.runcall(evaluated, run, protocol, device, limit)
    pstats.Stats(host).sort_stats("cumulative").print_stats("ltnode", 25)
    own = "self_cuda_time_total" if len(activities) > 1 else "self_cpu_time_total"
    print(operations.key_averages().table(sort_by=own, row_limit=20, max_name_column_width=60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("zoo/lt-node-cifar10"))
    parser.add_argument("--data", type=Path, help="folder of the image sets; by default LTNODE_DATA")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--protocols", nargs="+", help="by default those of the paper that fit the run")
    parser.add_argument("--profile", metavar="PROTOCOL", help="show where the time of one protocol goes, and stop")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.data is not None:
        os.environ["LTNODE_DATA"] = str(options.data)  # where a run's own data set and its partner are looked up
    if options.profile:
        profiled(options.run, options.profile, options.device, options.limit)
        return
    on_cuda = torch.device(options.device).type == "cuda"
    machine = torch.cuda.get_device_name() if on_cuda else f"CPU, {torch.get_num_threads()} threads"
    data = TrainedModel.of(options.run, device=options.device).dataset()
    print(f"{machine}, torch {torch.__version__}, {options.run}, {len(data.test.y[: options.limit])} test images of {data.name}")
    rows: list[dict[str, Any]] = []
    for protocol in options.protocols or default_protocols(data):
        took, found = evaluated(options.run, protocol, options.device, options.limit)
        costs = [row.cost.seconds_per_1000 for row in found if row.cost is not None]
        cost = max(costs, default=0.0)
        rows.append({"protocol": protocol, "seconds": took, "rows": len(found), "seconds_per_1000_images": cost})
        print(f"{protocol:12s} {took:8.2f} s   {len(found):4d} numbers   at most {cost:.4f} s per 1,000 images", flush=True)
    total = sum(row["seconds"] for row in rows)
    whole = options.limit is None and options.protocols is None
    judged = "met" if total <= MOST_SECONDS else "NOT MET"
    verdict = f"at most {MOST_SECONDS:g}: {judged}" if whole else "not the whole evaluation"
    print(f"all          {total:8.2f} s   {verdict}")
    if options.json:
        record = {
            "machine": machine,
            "torch": torch.__version__,
            **source_state(),
            "ltnode": ltnode.__version__,
            "run": str(options.run),
        }
        options.json.write_text(json.dumps(record | {"limit": options.limit, "seconds": total, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
