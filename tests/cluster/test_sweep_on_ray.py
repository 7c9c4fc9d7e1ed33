"""A sweep on a Ray cluster of three nodes, of which two are killed while they train."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest

import ltnode
from ltnode.cluster.engines import make_executor
from ltnode.cluster.spec import SweepSpec
from ltnode.cluster.sweep import Sweep

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray

EPOCHS, STEPS_PER_EPOCH = 15, 4
SPEC = {
    "model": "lt-node",
    "data": "synthetic",
    "seeds": [0, 1, 2],
    "train": {
        "epochs": EPOCHS,
        "limit": 90,  # of which 62 are trained on
        "batch_size": 16,
        "log_every": 4,
        "checkpoint_epochs": 1,
        "checkpoint_minutes": None,
        "device": "cpu",
        "model_options": {"width": 8},
    },
    "search": {"lr": [0.01, 0.003], "weight_decay": [0.0, 0.001]},
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Three nodes of one CPU each; the first holds the state of the cluster and is not killed."""
    from ray.cluster_utils import Cluster

    folders = [Path(__file__).parent, Path(__file__).parents[2]]
    monkeypatch.setenv("PYTHONPATH", ":".join(map(str, folders)))  # workers import the recording of this folder
    nodes = {"num_cpus": 1, "object_store_memory": 100 << 20}
    made = Cluster(initialize_head=True, head_node_args={**nodes, "include_dashboard": False})
    try:
        for _ in range(2):
            made.add_node(**nodes)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def read_steps(folder: Path) -> dict[str, list[tuple[int, str, int]]]:
    """Process, node and number of every recorded step, by trial; a line that is being written is left out."""
    steps = {}
    for file in folder.glob("*.txt"):
        lines = [line.split() for line in file.read_text().splitlines()]
        steps[file.stem] = [(int(line[0]), line[1], int(line[2])) for line in lines if len(line) == 3]
    return steps


class Killer:
    """Kills a node in the middle of a training and adds a new one, twice; called in the loop of the sweep."""

    def __init__(self, cluster: Any, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.killed: list[str] = []

    def __call__(self, result: Any) -> None:
        if len(self.killed) == 2:
            return
        nodes = {node.node_id: node for node in self.cluster.worker_nodes}
        busy = {
            lines[-1][1]
            for lines in read_steps(self.folder).values()
            if lines and 2 * STEPS_PER_EPOCH < lines[-1][2] < (EPOCHS - 3) * STEPS_PER_EPOCH
        }
        for node_id in sorted(busy & nodes.keys() - set(self.killed))[:1]:
            self.killed.append(node_id)
            self.cluster.remove_node(nodes[node_id], allow_graceful=False)
            self.cluster.add_node(num_cpus=1, object_store_memory=100 << 20)


def test_a_sweep_survives_two_killed_nodes(tmp_path: Path, cluster: Any) -> None:
    """All 12 trainings end, no step before a checkpoint is trained twice, and each model is that of the training alone.

    The comparison is of bytes: on the CPU with one thread, interrupted and resumed equals uninterrupted.
    """
    spec, kill = SweepSpec.of(SPEC), Killer(cluster, tmp_path / "steps")
    with make_executor("ray", address=cluster.address, device="cpu") as executor:
        assert executor.capacity == 3
        sweep = Sweep(spec, tmp_path / "sweep", executor, function="recorded_trial:train_recorded", on_change=kill)
        result = sweep.run()
    assert len(kill.killed) == 2
    assert [trial.status for trial in result.trials] == ["complete"] * 12

    continued = 0
    for lines in read_steps(tmp_path / "steps").values():
        attempts = [[step for _, _, step in group] for _, group in groupby(lines, key=lambda line: line[:2])]
        assert attempts[0][0] == 1
        for before, after in pairwise(attempts):
            continued += 1
            # The last step may have been recorded and its checkpoint not yet written.
            assert after[0] > (before[-1] - 1) // STEPS_PER_EPOCH * STEPS_PER_EPOCH
            assert after[0] > 1
        assert attempts[-1][-1] == EPOCHS * STEPS_PER_EPOCH
        assert {step for attempt in attempts for step in attempt} == set(range(1, EPOCHS * STEPS_PER_EPOCH + 1))
    assert continued >= 2

    data = ltnode.data.load("synthetic")
    for trial in result.trials:
        config = spec.config(trial.values, trial.data, trial.seed)
        alone = tmp_path / "alone" / trial.name
        ltnode.fit(ltnode.build("lt-node", data, seed=trial.seed, width=8), data, config, alone)
        assert (alone / "model.safetensors").read_bytes() == (tmp_path / "sweep" / trial.name / "model.safetensors").read_bytes()
