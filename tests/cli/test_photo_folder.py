"""A folder of photos from files to a report and a verified export, in commands; and what is said about wrong folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from photo_folder import CLASSES, write_photos
from PIL import Image
from typer.testing import CliRunner

import ltnode
from ltnode.cli.app import make_app
from ltnode.evaluation import read_rows
from ltnode.trained import TrainedModel

pytestmark = pytest.mark.no_typecheck
SETTINGS = ("epochs=3", "batch_size=8", "optimizer=adam", "lr=0.01", "averaging=none", "model_options.width=8")
QUICK = ("--device", "cpu", *(word for setting in SETTINGS for word in ("--set", setting)))


def command(*words: object) -> str:
    """Run a command that must succeed, and return what it shows."""
    result = CliRunner().invoke(make_app(), [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos in train/, valid/ and test/, and a run that was trained on it."""
    place = tmp_path_factory.mktemp("own")
    for part, n in (("train", 16), ("valid", 6), ("test", 5)):
        write_photos(place / "photos", n, parts=(part,), seed=n)
    shown = command("train", "--data", place / "photos", "--out", place / "run", *QUICK)
    assert "photos: 3 classes: cross (27), disc (27), stripes (27)" in shown
    assert "Images: 48 to train on, 18 for validation (given), 15 to test; 16 x 16 pixels, in colour" in shown
    return place


def test_the_given_parts_are_the_parts_of_the_training(folder: Path) -> None:
    """Nothing of valid/ and test/ is trained on: the run records as many validation images as there are in valid/."""
    config = json.loads((folder / "run" / "config.json").read_text())
    assert config["data"]["n_validation"] == 18
    assert config["data"]["n_test"] == 15
    assert config["data"]["origin"]["kind"] == "folder"
    trained = TrainedModel.open(folder / "run")
    data = trained.dataset()
    validation = trained.validation_split(data)
    assert validation is not None
    given = ltnode.data.from_folder(folder / "photos").train
    assert validation.x.equal(given.x[48:])
    assert trained.class_names == CLASSES


def test_every_command_that_follows_needs_only_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation and prediction read the same files in two ways: the error on test/ must be the same number."""
    monkeypatch.chdir(folder)
    command("evaluate", "run")
    rows = read_rows(folder / "run" / "evaluation.json")
    assert {row.protocol for row in rows} == {"clean", "temperature", "conformal"}
    shown = command("predict", "run", "photos/test", "--out", "predictions.csv")
    assert "photos/test/cross/0000.jpg" in shown
    predictions = pd.read_csv("predictions.csv")
    wrong = predictions["name"] != predictions["input"].map(lambda name: Path(name).parent.name)
    assert len(predictions) == 15
    assert wrong.mean() == pytest.approx(next(row.number for row in rows if row.metric == "error"))
    shutil.copytree("run", "copy")
    assert "15 inputs of test" in command("calibrate", "copy", "--data", "photos/test")
    command("distill", "run", "--out", "student", "--set", "epochs=1", "--set", "model_options.width=8", "--device", "cpu")
    assert "18 validation examples of photos" in command("operating-point", "run")
    assert "15" in command("evaluate", "run", "--data", "photos/test", "--protocols", "clean", "--out", "other.json")


@pytest.mark.xfail(
    reason="the exported photo model differs from the library by 0.004 on one of 100 inputs; the cause is not found yet",
    strict=False,
)
@pytest.mark.slow
def test_report_and_export_of_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is about the user's photos, without a word about the experiments of the paper or a section without content."""
    monkeypatch.chdir(folder)
    command("evaluate", "run")
    command("report", "run", "--out", "report")
    page = (folder / "report" / "index.html").read_text()
    assert "photos" in page
    assert "paper" not in page.lower()
    assert "Under shift" not in page
    assert "too few to tell whether it has converged" in page
    assert "Verified" in command("export", "run", "--out", "model.onnx")


def test_a_folder_that_has_changed_is_not_used_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another image, the drawn parts would be others, and test images could be ones that were trained on."""
    shutil.copytree(folder / "photos", tmp_path / "photos")
    shutil.copytree(folder / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["data"]["origin"]["path"] = "photos"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    TrainedModel.open("run").dataset()
    shutil.copy("photos/train/disc/0000.jpg", "photos/train/disc/copy.jpg")
    result = CliRunner().invoke(make_app(), ["evaluate", "run"])
    assert result.exit_code == 2
    assert "photos has changed since the model was trained on it" in " ".join(result.output.split())
    shutil.rmtree("photos")
    result = CliRunner().invoke(make_app(), ["evaluate", "run"])
    assert "trained on photos, which is not here" in " ".join(result.output.split())


def damaged(path: Path) -> None:
    """Cut a file off in the middle."""
    path.write_bytes(path.read_bytes()[:200])


def flat(folder: Path) -> None:
    """Put all images directly into the folder."""
    for number, file in enumerate(list(folder.rglob("*.jpg"))):
        file.rename(folder / f"{number}.jpg")
    for kind in CLASSES:
        (folder / kind).rmdir()


def only(folder: Path, kind: str) -> None:
    """Keep one class."""
    for other in CLASSES:
        if other != kind:
            shutil.rmtree(folder / other)


def nested(folder: Path) -> None:
    """Move the images of a class one level down, as in CLASS/2024/image."""
    (folder / "moved").mkdir()
    (folder / "cross").rename(folder / "moved" / "2024")
    (folder / "moved").rename(folder / "cross")


def larger(folder: Path) -> None:
    """Give one image another size."""
    Image.fromarray(np.zeros((20, 30, 3), dtype=np.uint8)).save(folder / "disc" / "0000.jpg")


def without_train(folder: Path) -> None:
    """Put everything into test/."""
    (folder / "test").mkdir()
    for kind in CLASSES:
        (folder / kind).rename(folder / "test" / kind)


def in_parts_with_other_classes(folder: Path) -> None:
    """Divide the folder into parts, of which one lacks a class."""
    shutil.rmtree(folder)
    write_photos(folder, 2, parts=("train", "test"))
    shutil.rmtree(folder / "test" / "disc")


MISTAKES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "one class": (lambda f: only(f, "disc"), ("contains a single class, 'disc'", "at least two")),
    "no classes": (flat, ("contains no folders", "the images of each class into a folder named after the class")),
    "two levels": (nested, ("another level of folders inside its classes (cross/2024/)", "directly in its folder")),
    "mixed sizes": (larger, ("images of different sizes (17 of 16 x 16, 1 of 20 x 30; height x width)", "--image-size")),
    "damaged file": (lambda f: damaged(f / "disc" / "0003.jpg"), ("disc/0003.jpg", "damaged", "Repair or remove")),
    "no image": (lambda f: (f / "disc" / "notes.txt").write_text("text"), ("disc/notes.txt is not an image", "Repair or remove")),
    "empty file": (lambda f: (f / "disc" / "a.jpg").write_bytes(b""), ("disc/a.jpg", "the file is empty")),
    "empty class": (lambda f: (f / "empty").mkdir(), ("empty/ contains no images", "remove the folder")),
    "no train": (without_train, ("test/ but no train/", "train/CLASS/")),
    "classes differ": (in_parts_with_other_classes, ("the classes of train (cross, disc, stripes) and test (cross, stripes)",)),
    "missing folder": (shutil.rmtree, ("does not exist", "one folder of images per class")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_said_before_training(mistake: str, tmp_path: Path) -> None:
    """Each gets one line that names the place and the remedy, and no run folder is left behind."""
    photos = write_photos(tmp_path / "photos", 6)
    prepare, answer = MISTAKES[mistake]
    prepare(photos)
    result = CliRunner().invoke(make_app(), ["train", "--data", str(photos), "--out", str(tmp_path / "run"), *QUICK])
    assert result.exit_code == 2
    assert not (tmp_path / "run").exists()
    shown = " ".join(result.output.split())
    for words in answer:
        assert words in shown, shown
