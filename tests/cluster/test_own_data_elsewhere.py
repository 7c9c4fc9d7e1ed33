"""Tables and folders of images of one's own in sweeps and on engines: the same models as those of ``ltnode train``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sales_table import sales
from typer.testing import CliRunner

from ltnode.cli.app import make_app

QUICK = {"epochs": "2", "log_every": "1", "device": '"cpu"', "validation_fraction": "0.3", "model_options": "{ width = 8 }"}
TRAIN = "[train]\n" + "".join(f"{key} = {value}\n" for key, value in QUICK.items())
SETTINGS = [
    word
    for key, value in {**QUICK, "model_options": None, "model_options.width": "8"}.items()
    if value is not None
    for word in ("--set", f"{key}={value}".replace('"', ""))
]


def ltnode_command(*words: str | Path) -> str:
    answer = CliRunner().invoke(make_app(), [str(word) for word in words])
    assert answer.exit_code == 0, answer.output
    return answer.output


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table with categories, dates and missing cells, named by a path that depends on the working folder."""
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    sales(150).to_parquet("sales.parquet")
    return Path("sales.parquet")


def of_the_table(folder: Path, table: Path) -> Path:
    spec = folder / "sweep.toml"
    spec.write_text(
        f'model = "lt-node"\ndata = "{table}"\n'
        '[table]\ntarget = "price"\ngroup = "agent"\nignore = ["id", "comment", "dear"]\nkinds = { new = "category" }\n'
        f"{TRAIN}[search]\nlr = [0.01, 0.003]\n"
    )
    return spec


OPTIONS = ["--target", "price", "--group", "agent", "--ignore", "id", "--ignore", "comment", "--ignore", "dear"]
KINDS = ["--kind", "new=category"]


def test_a_sweep_over_a_table_trains_what_train_does(tmp_path: Path, table: Path) -> None:
    """With the same columns, kinds, group and held-out rows; the run folders predict new tables."""
    said = ltnode_command("sweep", of_the_table(tmp_path, table), "--out", "sweep", "--jobs", "1")
    assert "Best run: trial-000" in said
    for trial in json.loads(Path("sweep/sweep.json").read_text())["trials"]:
        lr = f"lr={trial['values']['lr']}"
        ltnode_command("train", "--data", table, *OPTIONS, *KINDS, *SETTINGS, "--set", lr, "--out", f"alone-{trial['name']}")
        assert weights(tmp_path / "sweep" / trial["name"]) == weights(tmp_path / f"alone-{trial['name']}")
    sales(30, seed=1).drop(columns="price").to_csv("new.csv", index=False)
    said = ltnode_command("predict", "sweep/trial-0000-seed0", "new.csv", "--json")
    assert len(json.loads(said[said.index("{") :])["predictions"]) == 30
    again = ltnode_command("sweep", of_the_table(tmp_path, table), "--out", "sweep", "--jobs", "1")
    assert "Best run: trial-000" in again


def test_a_sweep_over_a_folder_of_images_trains_what_train_does(tmp_path: Path, rng: np.random.Generator) -> None:
    image = pytest.importorskip("PIL.Image")
    for kind in ("cat", "dog"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(20):
            pixels = rng.integers(0, 255, (12, 10), dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / "photos" / kind / f"{number}.png")
    spec = tmp_path / "sweep.toml"
    spec.write_text(f'model = "lt-node"\ndata = "{(tmp_path / "photos").as_posix()}"\nimage_size = 8\n{TRAIN}')
    ltnode_command("sweep", spec, "--out", tmp_path / "sweep", "--jobs", "1")
    words = ["--data", tmp_path / "photos", "--image-size", "8", *SETTINGS, "--out", tmp_path / "alone"]
    ltnode_command("train", *words)
    assert weights(tmp_path / "sweep" / "trial-0000-seed0") == weights(tmp_path / "alone")


def test_an_ensemble_on_a_table_can_be_trained_elsewhere(tmp_path: Path, table: Path) -> None:
    words = ["train", "--data", table, *OPTIONS, *SETTINGS, "--members", "2"]
    ltnode_command(*words, "--out", "here")
    ltnode_command(*words, "--engine", "local", "--jobs", "1", "--out", "elsewhere")
    assert weights(tmp_path / "here") == weights(tmp_path / "elsewhere")


def test_mistakes_about_a_table_are_explained_before_anything_is_trained(tmp_path: Path, table: Path) -> None:
    """A missing target, a missing column, and groups of which none fits into a small held-out part."""
    few = of_the_table(tmp_path, table).read_text().replace("validation_fraction = 0.3", "validation_fraction = 0.01")
    opening = f'model = "lt-node"\ndata = "{table}"\n'
    for text, words in (
        (opening, "sales.parquet needs a [table] with its target"),
        (opening + '[table]\ntarget = "prize"\n', "prize"),
        (few, "none of the rows of sales.parquet are held out"),
    ):
        spec = tmp_path / "sweep.toml"
        spec.write_text(text)
        answer = CliRunner().invoke(make_app(), ["sweep", str(spec), "--out", "sweep"])
        assert answer.exit_code == 2
        assert words in answer.output
        assert not Path("sweep").exists()


@pytest.mark.ray
def test_workers_of_ray_read_a_table_by_its_relative_path(tmp_path: Path, table: Path) -> None:
    pytest.importorskip("ray")
    ltnode_command("sweep", of_the_table(tmp_path, table), "--out", "ray", "--engine", "ray", "--jobs", "1")
    ltnode_command("sweep", of_the_table(tmp_path, table), "--out", "local", "--jobs", "1")
    for number in range(2):
        name = f"trial-000{number}-seed0"
        assert weights(tmp_path / "ray" / name) == weights(tmp_path / "local" / name)
