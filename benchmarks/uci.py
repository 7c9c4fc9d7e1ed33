"""LTNodeRegressor with its defaults on nine UCI sets, beside six other methods and published results.

usage: python benchmarks/uci.py --data FOLDER [--sets yacht,wine] [--methods LT-NODE,MLP] [--splits 5] [--minutes 20] [--jobs 2]
       python benchmarks/uci.py --render        # only write the tables of the record into benchmarks/README.md

All splits of the published results are used: 20, and 5 of protein, with a tenth of the rows for testing. The data are not in the
repository; without them, the script says where they are, and it checks them. Each fit runs on one thread and adds one row to the
record; a run that was stopped, by --minutes or in any other way, continues where it was. After a change of a method, --forget
METHOD drops its rows of the sets. --splits 5 measures only the first splits, for methods that would take hours on the larger
sets; the tables then say of how many splits a mean is. Gradient boosting, random forest and MLP get a constant noise from 15 % of
the training rows, on which they are not trained; the deep ensemble chooses its epoch on as many. NGBoost needs the package
ngboost, which is not a dependency.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from uci_parts import tables
from uci_parts.data import SETS, UCI, VARIABLE, load
from uci_parts.methods import METHODS, NGBOOST, left_out, measure
from uci_parts.record import Record

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "uci.json"
PAGE = ROOT / "benchmarks" / "README.md"


class Task(NamedTuple):
    """One method on one split of a set."""

    name: str
    method: str
    split: int
    data: UCI


def missing(record: Record, sets: Sequence[str], methods: Sequence[str], folder: Path | None, most: int) -> list[Task]:
    """What the record does not have yet of at most so many splits, set by set."""
    known = record.known()
    found = []
    for name in sets:
        data = load(name, folder)
        for method in methods:
            reason = left_out(method, len(data.y))
            if reason is not None:
                print(f"{name}, {method}: left out, {reason}", flush=True)
                continue
            splits = range(min(SETS[name].splits, most))
            found += [Task(name, method, n, data) for n in splits if (name, method, n) not in known]
    return found


def measured(tasks: Sequence[Task], jobs: int, until: float) -> Iterator[tuple[Task, dict[str, float]]]:
    """Measure tasks in so many processes; none is begun after the time ``until`` (of `time.monotonic`)."""
    if jobs == 1:
        for task in tasks:
            if time.monotonic() >= until:
                return
            yield task, measure(task.data, task.split, task.method)
        return
    waiting, running = list(tasks), dict[Future[dict[str, float]], Task]()
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        while True:
            while waiting and len(running) < jobs and time.monotonic() < until:
                task = waiting.pop(0)
                running[pool.submit(measure, task.data, task.split, task.method)] = task
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes names of a list, separated by commas."""

    def parse(words: str) -> list[str]:
        chosen = [word.strip() for word in words.split(",")]
        if wrong := [word for word in chosen if word not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: must be of {', '.join(known)}")
        return chosen

    return parse


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help=f"folder of the data; by default {VARIABLE}")
    parser.add_argument("--sets", type=names(list(SETS)), default=list(SETS), help=", ".join(SETS))
    parser.add_argument("--methods", type=names(METHODS), help=", ".join(METHODS))
    parser.add_argument("--forget", type=names(METHODS), default=[], help="methods whose rows of the sets are dropped first")
    parser.add_argument("--splits", type=int, default=max(source.splits for source in SETS.values()), help="at most so many")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no fit is begun after this time")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--json", type=Path, default=RECORD, help="the record")
    parser.add_argument("--render", action="store_true", help="run nothing; write the tables of the record into the page")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    record = Record.read(options.json)
    if not options.render:
        installed = importlib.util.find_spec("ngboost") is not None
        methods = options.methods or [method for method in METHODS if installed or method != NGBOOST]
        if options.forget:
            record.forget(options.forget, options.sets)
            record.write()
        until = time.monotonic() + 60 * options.minutes
        tasks = missing(record, options.sets, methods, options.data, options.splits)
        for done, (task, row) in enumerate(measured(tasks, options.jobs, until), start=1):
            record.add(task.name, task.method, task.split, row)
            of = f"{done:4} of {len(tasks)}  {task.name:8} {task.method:18} {task.split:2}"
            print(f"{of}  NLL {row['nll']:7.3f}  {row['seconds']:.1f} s", flush=True)
        print(tables.text(record.rows))
    if options.json == RECORD:
        PAGE.write_text(tables.render(record.rows, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
