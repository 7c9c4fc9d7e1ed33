"""Saving and loading returns the same model, and files that are not models are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import ltnode
from ltnode.errors import CheckpointError
from training.tiny import TwoPhaseModel, tiny_config, tiny_data, tiny_model


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    ltnode.fit(tiny_model("alt-node"), tiny_data(), tiny_config(epochs=2), out=folder)
    return folder


@pytest.mark.parametrize("name", ["node", "uni-node", "lt-node", "alt-node", "lt-node-mixture"])
def test_a_saved_model_predicts_the_same_bits(tmp_path, name: str):
    """The file holds weights, posterior, prediction grid and noise."""
    model = tiny_model(name, objective={"kl_weight": 0.2})
    x = tiny_data().test.x
    model.finish_training(tiny_data().train.x, tiny_data().train.y)
    loaded = ltnode.load(ltnode.save(model, tmp_path / "model"))
    assert not loaded.training and loaded.spec == model.spec
    one, two = model.predict(x), loaded.predict(x)
    assert torch.equal(one.outputs, two.outputs) and torch.equal(one.times, two.times)
    assert loaded.describe(x) == model.describe(x)


def test_a_run_folder_is_a_saved_model(run_folder: Path):
    model = ltnode.load(run_folder)
    assert model.spec is not None and model.spec["model"] == "alt-node"
    assert model.predict(tiny_data().test.x).mean.isfinite().all()


def test_the_same_model_gives_the_same_bytes_without_time_path_or_host(tmp_path):
    for name in ("a", "b"):
        ltnode.save(tiny_model(), tmp_path / name)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert one == two
    header = json.loads(one[8 : 8 + struct.unpack("<Q", one[:8])[0]])
    assert json.loads(header["__metadata__"]["ltnode"]).keys() == {"format", "sha256"}


def test_a_model_of_own_parts_is_loaded_into_one(tmp_path):
    def own() -> ltnode.LatentTimeODE:
        class Field(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 4)

            def forward(self, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
                return torch.tanh(self.layer(h))

        return ltnode.LatentTimeODE(nn.Linear(1, 4), Field(), nn.Linear(4, 1), ltnode.GammaTime(), "regression")

    run = ltnode.fit(own(), tiny_data(), tiny_config(epochs=1), out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="model=my_model"):
        ltnode.load(tmp_path / "run")
    loaded = ltnode.load(tmp_path / "run", model=own())
    x = tiny_data().test.x
    assert torch.equal(loaded.predict(x).mean, run.model.predict(x).mean)
    with pytest.raises(CheckpointError, match="does not fit this model"):
        ltnode.load(tmp_path / "run", model=tiny_model())


def test_tied_weights_are_saved(tmp_path):
    model = TwoPhaseModel(1)
    model.noise.weight = model.linear.weight
    ltnode.save(model, tmp_path / "tied")
    loaded = ltnode.load(tmp_path / "tied", model=TwoPhaseModel(1))
    assert torch.equal(loaded.state_dict()["noise.weight"], model.linear.weight)


def test_saving_replaces_a_saved_model_and_nothing_else(tmp_path, run_folder: Path):
    ltnode.save(tiny_model(), tmp_path / "m")
    ltnode.save(tiny_model("node"), tmp_path / "m")
    assert ltnode.load(tmp_path / "m").spec["model"] == "node"  # type: ignore[index]
    with pytest.raises(CheckpointError, match="holds a training run"):
        ltnode.save(tiny_model(), run_folder)
    (tmp_path / "f").mkdir()
    (tmp_path / "f/letter.txt").write_text("dear")
    with pytest.raises(CheckpointError, match="choose another folder"):
        ltnode.save(tiny_model(), tmp_path / "f")
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["letter.txt"]
    with pytest.raises(CheckpointError, match="holds a saved model, not a run"):
        ltnode.fit(tiny_model("node"), tiny_data(), tiny_config(), out=tmp_path / "m", resume=True)


def test_a_truncated_or_changed_weight_file_is_recognised(tmp_path):
    ltnode.save(tiny_model("node"), tmp_path / "m")
    path = tmp_path / "m/model.safetensors"
    whole = path.read_bytes()
    for length in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="damaged"):
            ltnode.load(tmp_path / "m")
    for position in (len(whole) - 1, len(whole) - 100):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(CheckpointError, match="checksum"):
            ltnode.load(tmp_path / "m")


def test_foreign_and_unfinished_folders_are_explained(tmp_path):
    with pytest.raises(CheckpointError, match="not a folder"):
        ltnode.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        ltnode.load(tmp_path)
    ltnode.save(tiny_model("node"), tmp_path / "m")
    save_file({"w": torch.ones(2)}, tmp_path / "m/model.safetensors")
    with pytest.raises(CheckpointError, match="not written by ltnode"):
        ltnode.load(tmp_path / "m")
    (tmp_path / "m/model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="missing"):
        ltnode.load(tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    ltnode.save(tiny_model("node"), tmp_path / "m")
    config["model"]["model"] = "from-the-future"
    (tmp_path / "m/config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="from-the-future"):
        ltnode.load(tmp_path / "m")


def test_an_unfinished_run_says_how_to_finish_it(tmp_path):
    with pytest.raises(ZeroDivisionError):
        ltnode.fit(tiny_model(), tiny_data(), tiny_config(), out=tmp_path / "run", on_log=lambda line: 1 // 0)
    with pytest.raises(CheckpointError, match="not finished.*resume"):
        ltnode.load(tmp_path / "run")
