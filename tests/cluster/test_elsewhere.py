"""Ensembles and the reproduction on an engine give what they give in one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from in_this_process import InThisProcess

import ltnode
from ltnode.cluster.elsewhere import run_in_clone, train_jobs
from ltnode.cluster.engines import make_executor
from ltnode.cluster.executor import Task
from ltnode.cluster.on_ray import connect
from ltnode.fitting import fit_members

SETTINGS = {"epochs": 2, "device": "cpu", "limit": 80}


def ensemble(out: Path, **options: object) -> Path:
    data, config = ltnode.data.load("synthetic"), ltnode.train_preset("lt-node", "synthetic").replace(**SETTINGS)
    fit_members(lambda seed: ltnode.build("lt-node", data, seed=seed), data, config, 2, out, **options)  # type: ignore[arg-type]
    return out / "model.safetensors"


def test_an_ensemble_of_tasks_equals_one_of_this_process(tmp_path: Path) -> None:
    """Bit for bit: each network depends on its seed alone, and the ensemble is assembled in the same way."""
    engine = InThisProcess()
    elsewhere = ensemble(tmp_path / "tasks", train=partial(train_jobs, executor=engine))
    assert len(engine.ran) == 2
    assert elsewhere.read_bytes() == ensemble(tmp_path / "here").read_bytes()


def test_parts_of_the_reproduction_run_as_tasks(tmp_path: Path) -> None:
    """A part writes its result and its run folder, and a part that fails is named with its reason."""
    places = {"out": str(tmp_path / "out"), "runs": str(tmp_path / "runs"), "iterations": 2}
    function = "paper.reproduce.elsewhere:synthetic_variant"
    parts = [Task(name, function, {"variant": name, "seed": 0, **places}) for name in ("node", "no-such-model")]
    failed = run_in_clone(parts, InThisProcess())
    assert list(failed) == ["no-such-model"]
    assert (tmp_path / "out" / "synthetic-node-seed0-2it.json").exists()
    assert (tmp_path / "runs" / "synthetic-node-seed0-2it" / "model.safetensors").exists()


@pytest.mark.ray
def test_an_ensemble_on_ray_equals_one_of_this_process(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        assert not connect(None)  # an existing connection is used, and stays open
        with make_executor("ray", device="cpu") as executor:
            elsewhere = ensemble(tmp_path / "ray", train=partial(train_jobs, executor=executor))
        assert ray.is_initialized()
    finally:
        ray.shutdown()
    assert elsewhere.read_bytes() == ensemble(tmp_path / "here").read_bytes()
