"""The local engine: a thread of this process as a worker."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ltnode.cluster.executor import Task
from ltnode.cluster.local import LocalExecutor

HERE = "test_local:where"
ENDLESS = "test_local:endless"
running = threading.Event()


def where(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"here": threading.current_thread() is not threading.main_thread(), "n": arguments["n"]}


def endless(arguments: dict[str, Any]) -> dict[str, Any]:
    running.set()
    while True:
        time.sleep(0.01)


@pytest.fixture
def executor() -> Any:
    with LocalExecutor(jobs=1, device="cpu", here=True) as local:
        yield local


def test_tasks_run_in_a_thread_of_this_process(executor: LocalExecutor) -> None:
    outcomes = executor.run_all([Task(f"t{n}", HERE, {"n": n}) for n in range(5)])
    assert {outcome.value["n"] for outcome in outcomes.values()} == set(range(5))
    assert all(outcome.value["here"] for outcome in outcomes.values())


def test_a_running_task_of_the_thread_can_be_cancelled_and_the_next_one_runs(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # for the process that takes the place of the thread
    running.clear()
    executor.submit(Task("endless", ENDLESS, {}))
    executor.submit(Task("next", HERE, {"n": 1}))
    assert running.wait(10.0)
    executor.cancel("endless")
    ended: dict[str, str] = {}
    while len(ended) < 2:
        ended |= {outcome.name: outcome.status for outcome in executor.wait(30.0)}
    assert ended == {"endless": "cancelled", "next": "done"}


def test_closing_ends_the_thread_in_the_middle_of_a_task(executor: LocalExecutor) -> None:
    """Ctrl-C must not wait for a block of a large model."""
    running.clear()
    executor.submit(Task("endless", ENDLESS, {}))
    assert running.wait(10.0)
    before, began = threading.active_count(), time.monotonic()
    executor.close()
    assert threading.active_count() == before - 1
    assert time.monotonic() - began < 10.0
