"""``ltnode.fit_members`` and ``ltnode.distill``: an ensemble in one folder, and a student that learns from it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import ltnode
from ltnode.cli.app import make_app
from ltnode.errors import CheckpointError, ConfigError, InputError
from ltnode.fitting import assemble_members
from ltnode.training import RunStatus, TrainConfig, members

DATA = ltnode.data.load("concentric")
CONFIG = ltnode.train_preset("lt-node", "concentric").replace(
    epochs=2, batch_size=64, limit=200, seed=3, device="cpu", validation_fraction=0.2, calibration_fraction=0.1
)


def build(seed: int) -> ltnode.Model:
    return ltnode.build("lt-node", DATA, seed=seed, width=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "ensemble"
    run = ltnode.fit_members(build, DATA, CONFIG.replace(split_seed=None), 2, out)
    assert run.status is RunStatus.COMPLETE
    return out


def test_the_networks_are_those_of_runs_with_a_common_split(folder: Path) -> None:
    """Seeds count up from that of the configuration; weights are, bit for bit, those of a lone run with the same split."""
    alone = ltnode.fit(build(4), DATA, CONFIG.replace(seed=4, split_seed=3))
    ensemble = ltnode.load(folder)
    assert isinstance(ensemble, ltnode.Ensemble)
    for a, b in zip(ensemble.networks[1].parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(a, b)
    member = json.loads((folder / "members" / "seed-4" / "config.json").read_text())
    whole = json.loads((folder / "config.json").read_text())
    assert member["data"]["calibration_indices"] == whole["data"]["calibration_indices"]
    assert (whole["train"]["model"], whole["model"]["options"]["of"]) == ("ensemble", "lt-node")
    results = json.loads((folder / "results.json").read_text())
    assert [entry["seed"] for entry in results["members"]] == [3, 4]
    assert results["status"] == "complete"
    assert set(results["last"]["validation"]) == {"error", "log_likelihood"}


def test_the_folder_is_one_trained_model(folder: Path) -> None:
    """Rows, held-out parts, distance, familiarity, operating point and evaluation are those of any other run."""
    trained = ltnode.TrainedModel.open(folder)
    assert trained.model_name == "ensemble"
    assert trained.operating_point is not None
    calibration = trained.calibration_split(DATA)
    assert calibration is not None
    assert isinstance(trained.model, ltnode.Ensemble)
    assert trained.model.n_calibration == len(calibration) == 20
    prediction = trained.predict(calibration.x)
    assert prediction.familiarity is not None
    # Every calibration example is among those with which it is compared, so that the largest distance has rank 2 of 21.
    assert float(prediction.familiarity.min()) == pytest.approx(2 / 21)
    assert len(trained.rows(DATA.test.x[:3])) == 3
    row = ltnode.evaluate(folder, protocols=["clean"], limit=50, device="cpu")
    assert row


def test_finished_runs_become_the_same_ensemble(tmp_path: Path, folder: Path) -> None:
    """Assembled from the runs of its networks, an ensemble has the same file and flags, without copies of the runs."""
    runs = [ltnode.fit(build(3 + i), DATA, config_of(folder, 3 + i), member(folder, 3 + i), resume=True) for i in range(2)]
    out = tmp_path / "assembled"
    run = assemble_members(runs, DATA, out)
    assert run.status is RunStatus.COMPLETE
    for name in ("model.safetensors", "config.json", "operating_point.json", "calibration.json"):
        assert (out / name).read_bytes() == (folder / name).read_bytes(), name
    assert not (out / "members").exists()
    with pytest.raises(CheckpointError, match="already holds a run"):
        assemble_members(runs, DATA, out)
    with pytest.raises(ConfigError, match="2 or more complete runs"):
        assemble_members(runs[:1], DATA)
    runs[1].config = runs[1].config.replace(split_seed=9)
    with pytest.raises(ConfigError, match="differ in their seed only, not in split_seed: 3 -> 9"):
        assemble_members(runs, DATA)


def member(folder: Path, seed: int) -> Path:
    return members.member_folder(folder, seed)


def config_of(folder: Path, seed: int) -> TrainConfig:
    return TrainConfig.from_json(json.loads((member(folder, seed) / "config.json").read_text())["train"])


def test_a_complete_ensemble_is_loaded_and_a_stopped_one_continues(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that stops before the ensemble is assembled ends, after resuming, with the same file."""
    config = CONFIG.replace(split_seed=None)
    again = ltnode.fit_members(build, DATA, config, 2, folder, resume=True)
    assert again.status is RunStatus.COMPLETE
    assert again.results["members"]
    with pytest.raises(CheckpointError, match="already holds a run"):
        ltnode.fit_members(build, DATA, config, 2, folder)
    with pytest.raises(ConfigError, match="members"):
        ltnode.fit_members(build, DATA, config, 3, folder, resume=True)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(members, "finish", stop)
    with pytest.raises(KeyboardInterrupt):
        ltnode.fit_members(build, DATA, config, 2, tmp_path / "stopped")
    with pytest.raises(CheckpointError, match="not finished"):
        ltnode.load(tmp_path / "stopped")
    monkeypatch.undo()
    ltnode.fit_members(build, DATA, config, 2, tmp_path / "stopped", resume=True)
    assert (tmp_path / "stopped" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_run_in_memory_writes_nothing() -> None:
    run = ltnode.fit_members(build, DATA, CONFIG, 2)
    assert run.path is None
    assert run.model.has_familiarity


def test_what_is_no_ensemble_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 or more members"):
        ltnode.fit_members(build, DATA, CONFIG, 1)
    with pytest.raises(ConfigError, match="models with an end-time such as lt-node, not of SDENet"):
        ltnode.fit_members(lambda seed: ltnode.build("sde-net", DATA, seed=seed), DATA, CONFIG.replace(model="sde-net"), 2)


# -- distillation --------------------------------------------------------------------------------------------------------------


def test_the_student_learns_what_the_ensemble_answers(tmp_path: Path, folder: Path) -> None:
    """After some epochs, its probabilities are nearer to the teacher's than at the start; folder and run record the teacher."""
    config = CONFIG.replace(epochs=40, lr=0.02, split_seed=3)
    student, teacher = build(0), ltnode.TrainedModel.open(folder)
    x = DATA.prepare(DATA.test.x[:100])
    expected = teacher.predict_inputs(x).probs
    before = (student.predict(x).probs - expected).abs().mean()
    run = ltnode.distill(folder, student, DATA, config, tmp_path / "student")
    assert (run.model.predict(x).probs - expected).abs().mean() < 0.5 * before
    record = json.loads((tmp_path / "student" / "config.json").read_text())["teacher"]
    assert record == run.results["teacher"]
    assert (record["name"], record["weights"]) == (folder.name, teacher.weights_digest())


def test_by_default_the_student_holds_out_what_its_teacher_held_out(folder: Path) -> None:
    """Also if the teacher is a plain run in memory, and the data are those that it records."""
    short = CONFIG.replace(epochs=1)
    teacher = ltnode.fit(build(5), DATA, short.replace(split_seed=None, seed=5))
    with pytest.raises(ConfigError, match=r"split_seed: 5 -> 0.*Set limit=200"):
        ltnode.distill(teacher, build(0), DATA, short.replace(split_seed=0))
    run = ltnode.distill(teacher, build(0), DATA, short.replace(split_seed=5))
    assert run.results["teacher"]["model"] == "lt-node"


def test_a_folder_without_a_limit_teaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default configuration is the preset of the student with the held-out examples of the teacher."""
    whole = CONFIG.replace(limit=None, epochs=1, seed=2, split_seed=None)
    ltnode.fit(build(2), DATA, whole, tmp_path / "teacher")
    seen: list[ltnode.TrainConfig] = []

    def fit(model: ltnode.Model, data: Any, config: ltnode.TrainConfig, *_: Any, **__: Any) -> ltnode.Run:
        seen.append(config)
        return ltnode.Run(model, config)

    monkeypatch.setattr("ltnode.fitting.fit", fit)
    ltnode.distill(tmp_path / "teacher", build(0))
    assert (seen[0].split_seed, seen[0].validation_fraction, seen[0].seed) == (2, 0.2, 0)
    assert seen[0].epochs == ltnode.train_preset("lt-node", DATA).epochs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split_seed": 1}, "split_seed: 3 -> 1"),
        ({"limit": 150}, "limit: 200 -> 150"),
        ({"calibration_fraction": 0.3}, r"calibration_fraction: 0.1 -> 0.3"),
    ],
)
def test_other_held_out_examples_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ltnode.distill(folder, build(0), DATA, CONFIG.replace(split_seed=3).replace(**changes))


def test_teachers_without_a_record_and_other_data_are_refused(tmp_path: Path, folder: Path) -> None:
    saved = ltnode.save(build(0), tmp_path / "saved")
    with pytest.raises(InputError, match="nothing records which examples"):
        ltnode.distill(saved, build(0), DATA, CONFIG)
    with pytest.raises(InputError, match="was trained on concentric, the student would be on rings"):
        ltnode.distill(folder, build(0), replace(DATA, name="rings"), CONFIG.replace(split_seed=3))
    other = replace(DATA, checksums=dict.fromkeys(DATA.checksums, "md5:0"))
    with pytest.raises(InputError, match="the data are not those of the teacher"):
        ltnode.distill(folder, build(0), other, CONFIG.replace(split_seed=3))
    regressor = ltnode.fit(
        ltnode.build("node", "synthetic", width=4), ltnode.data.gap_data(40), CONFIG.replace(model="node", limit=None)
    )
    with pytest.raises(InputError, match="a teacher must be a classifier"):
        ltnode.distill(regressor, build(0), DATA, CONFIG)


def test_a_student_is_resumed_with_its_teacher_only(tmp_path: Path, folder: Path) -> None:
    config = CONFIG.replace(epochs=1, split_seed=3)
    ltnode.distill(folder, build(0), DATA, config, tmp_path / "student")
    with pytest.raises(ConfigError, match="teacher"):
        ltnode.distill(folder / "members" / "seed-3", build(0), DATA, config, tmp_path / "student", resume=True)


# -- the command line ----------------------------------------------------------------------------------------------------------


def command(*words: str) -> str:
    result = CliRunner().invoke(make_app(), list(words))
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def settings(config: ltnode.TrainConfig, *keys: str) -> list[str]:
    return [word for key in keys for word in ("--set", f"{key}={getattr(config, key)}")]


def test_the_commands_train_an_ensemble_and_its_student(tmp_path: Path, folder: Path) -> None:
    """The file of the ensemble is that of the function; the student takes over the held-out examples by itself."""
    keys = ("epochs", "batch_size", "limit", "validation_fraction", "calibration_fraction")
    out, student = str(tmp_path / "ensemble"), str(tmp_path / "student")
    chosen = [*settings(CONFIG, *keys), "--set", "split_seed=none", "--set", "model_options.width=4", "--device", "cpu"]
    words = ["train", "--model", "lt-node", "--data", "concentric", "--members", "2", "--seed", "3", "--out", out, *chosen]
    assert "complete" in command(*words)
    assert "complete" in command(*words, "--resume")
    assert (tmp_path / "ensemble" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    short = ["--set", "epochs=1", "--set", "model_options.width=4", "--device", "cpu", "--out", student]
    assert "complete" in command("distill", out, "--model", "node", *short)
    record = json.loads((tmp_path / "student" / "config.json").read_text())
    assert record["teacher"]["model"] == "ensemble"
    assert (record["train"]["split_seed"], record["train"]["limit"]) == (3, 200)
    refused = CliRunner().invoke(make_app(), ["distill", out, "--set", "split_seed=0", "--out", str(tmp_path / "other")])
    assert refused.exit_code == 2
    assert "must hold out the same examples" in " ".join(refused.output.split())


def test_the_folder_is_predicted_evaluated_and_reported_by_the_commands(tmp_path: Path, folder: Path) -> None:
    """Everything that takes a run folder takes that of an ensemble."""
    rows, results = tmp_path / "rows.csv", tmp_path / "evaluation.json"
    np.savetxt(rows, DATA.test.x[:4].numpy(), delimiter=",")
    command("predict", str(folder), str(rows), "--device", "cpu", "--out", str(tmp_path / "answers.json"))
    assert (tmp_path / "answers.json").exists()
    command("evaluate", str(folder), "--protocols", "clean", "--limit", "40", "--device", "cpu", "--out", str(results))
    command("report", str(results), "--out", str(tmp_path / "report"))
    command("operating-point", str(folder), "--device", "cpu")
    shutil.copytree(folder, tmp_path / "copy")
    command("calibrate", str(tmp_path / "copy"), "--data", "concentric", "--limit", "40", "--device", "cpu")


def test_the_exported_ensemble_is_the_ensemble(tmp_path: Path, folder: Path) -> None:
    """Members in the same order, two end-times of each network, distance and familiarity (float32, the checks of exports)."""
    x = DATA.test.x[:8]
    kept = ltnode.export_model(folder, tmp_path / "ensemble.pt2", "torch", samples=2, inputs=x)
    got, p = torch.export.load(kept.path).module()(x), ltnode.TrainedModel.open(folder).predict(x, 4)
    torch.testing.assert_close(got["member_probs"], p.member_probs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got["distance"], p.distance, rtol=1e-4, atol=1e-4)


def test_an_ensemble_is_served(folder: Path) -> None:
    """The server answers like the library."""
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from ltnode.serve import create_app

    trained = ltnode.TrainedModel.open(folder)
    with TestClient(create_app([trained]), base_url="http://localhost") as client:
        answer = client.post("/api/predict", json={"inputs": DATA.test.x[:2].tolist()})
    assert answer.status_code == 200, answer.text
