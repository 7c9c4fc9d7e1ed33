"""A trained model opened from its folder: its rows are the predictions of the model in plain numbers, one row per input."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest
import torch
from tiny_problem import CLASSES, SIDE, image_data, image_run, images

import ltnode
from ltnode import metrics
from ltnode.data import Dataset, Split
from ltnode.data.augment import Normalisation
from ltnode.errors import CheckpointError, ConfigError, InputError
from ltnode.models.build import MODELS
from ltnode.trained import CalibrationRecord, OperatingPoint, TrainedModel, calibration_examples, choose_operating_point, to_png
from ltnode.trained.calibration import calibration_halves
from ltnode.training import fit, train_preset

DIM = 3
FAMILIAR = {"distance", "familiarity", "unfamiliar"}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier of images, trained with a validation split."""
    folder = tmp_path_factory.mktemp("runs") / "patterns-run"
    image_run("lt-node", image_data(), out=folder, validation_fraction=0.25, seed=3, epochs=1)
    return folder


@pytest.fixture(scope="module")
def trained(run_folder: Path) -> TrainedModel:
    return TrainedModel.open(run_folder)


def vector_model(name: str, task: str, folder: Path) -> TrainedModel:
    """A model after a few training steps on vectors, opened from its run folder."""
    x = torch.randn(20, DIM, generator=torch.Generator().manual_seed(1))
    y = (x[:, 0] > 0).long() if task == "classification" else x[:, 0]
    data = Dataset.from_arrays(x, y, task=task, name="points", class_names=("no", "yes") if task == "classification" else None)  # type: ignore[arg-type]
    model = ltnode.build(name, data, seed=0, width=16)
    fit(model, data, train_preset(name, data).replace(epochs=1, model=name, device="cpu"), out=folder / name)
    return TrainedModel.open(folder / name)


# -- rows ----------------------------------------------------------------------------------------------------------------------


def test_classification_rows_are_the_models_prediction(trained: TrainedModel) -> None:
    """References: model.predict on inputs normalised by hand, and the metrics' entropies; 1e-6 between float32 and float64."""
    raw, _ = images(5, 7)
    data = image_data()
    assert data.normalise is not None
    prediction = trained.model.predict(data.normalise.apply(raw))
    split = metrics.uncertainty_split(prediction.member_probs.double() / prediction.member_probs.double().sum(-1, keepdim=True))
    assert isinstance(trained.model, ltnode.LatentTimeODE)
    times = trained.model.end_time.quantile([0.05, 0.5, 0.95]).tolist()
    rows = trained.rows(raw)
    assert len(rows) == 5
    for i, row in enumerate(rows):
        assert row.probs == pytest.approx(prediction.probs[i].tolist(), abs=1e-6)
        assert row.label == int(prediction.labels[i])
        assert row.name == str(row.label)
        assert row.probability == max(row.probs or ())
        for name, values in zip(("entropy", "aleatoric", "epistemic"), split, strict=True):
            assert getattr(row, name) == pytest.approx(values[i].item(), abs=1e-6)
            assert getattr(row, name) == pytest.approx(getattr(prediction, name)[i].item(), abs=1e-5)
        assert (row.abstain, row.unfamiliar, row.mean, row.interval) == (None, None, None, None)
        assert row.end_time == pytest.approx(times, rel=1e-6)


def test_regression_rows_are_the_models_prediction(tmp_path: Path) -> None:
    """Mean and std over the members; the central 90 % interval of a Gaussian extends 1.6449 standard deviations to each side."""
    trained = vector_model("lt-node", "regression", tmp_path)
    raw = torch.randn(4, DIM, dtype=torch.float64)
    prediction = trained.predict(raw)
    for i, row in enumerate(trained.rows(raw)):
        assert row.mean == pytest.approx(prediction.mean[i].item(), abs=1e-5)
        assert row.std == pytest.approx(prediction.std[i].item(), abs=1e-5)
        assert row.noise_std == pytest.approx(prediction.noise_std.item())
        assert row.mean is not None
        assert row.interval is not None
        half = 1.6448536 * prediction.total_std[i].item()
        assert row.interval == pytest.approx((row.mean - half, row.mean + half), abs=1e-4)
        assert row.label is None
        assert set(row.to_json()) == {"task", "mean", "std", "noise_std", "interval", "end_time", *FAMILIAR}


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_predicts_each_input_alone(name: str, task: str, tmp_path: Path) -> None:
    """The contract of every model: an input alone, in a batch and in another order agrees to 1e-5; rows are JSON without NaN."""
    trained = vector_model(name, task, tmp_path)
    raw = 2 * torch.randn(6, DIM)
    together = trained.rows(raw, samples=5)
    backwards = trained.rows(raw.flip(0), samples=5)[::-1]
    has_times = isinstance(trained.model, ltnode.LatentTimeODE)
    for i, row in enumerate(together):
        json.dumps(row.to_json(), allow_nan=False)
        assert (row.end_time is not None) == has_times
        for other in (trained.rows(raw[i : i + 1], samples=5)[0], backwards[i]):
            if task == "classification":
                assert row.probs == pytest.approx(other.probs, abs=1e-5)
                assert row.name in ("no", "yes")
            else:
                assert (row.mean, row.std) == pytest.approx((other.mean, other.std), rel=1e-5, abs=1e-5)
            assert row.end_time == (None if other.end_time is None else pytest.approx(other.end_time, rel=1e-5))


def test_batches_do_not_show(trained: TrainedModel) -> None:
    """More inputs than fit into one batch: the rows equal those of the parts to 1e-5 (another order of summation)."""
    raw, _ = images(140, 5)
    counted: list[int] = []
    rows = trained.rows(raw, on_predicted=counted.append)
    assert counted == [128, 12]
    for row, alone in zip(rows[120:], trained.rows(raw[120:]), strict=True):
        assert row.probs == pytest.approx(alone.probs, abs=1e-5)


def test_raw_pixels_of_both_scales_are_the_same_image(trained: TrainedModel) -> None:
    """uint8 pixels and the same values divided by 255 agree to 1e-5 after normalisation."""
    raw, _ = images(3, 2)
    assert torch.allclose(trained.prepare(raw), trained.prepare(raw.float() / 255), atol=1e-5)


# -- opening -------------------------------------------------------------------------------------------------------------------


def test_a_run_records_everything(trained: TrainedModel, run_folder: Path) -> None:
    assert (trained.name, trained.path) == ("patterns-run", run_folder)
    assert (trained.shape, trained.task, trained.data) == ((1, SIDE, SIDE), "classification", "patterns")
    assert trained.class_names == tuple(str(k) for k in range(CLASSES))
    assert trained.normalise == image_data().normalise
    assert trained.operating_point is None


def test_a_saved_model_uses_the_constants_of_a_named_data_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`ltnode.save` records shapes only: without a data set there is a warning, with one its classes and constants are used."""
    ltnode.save(ltnode.build("node", "fashion-mnist", seed=0, width=34), tmp_path / "m")
    with caplog.at_level(logging.WARNING, "ltnode"):
        bare = TrainedModel.open(tmp_path / "m")
    assert "neither classes nor normalisation" in caplog.text
    assert (bare.normalise, bare.class_names[3], bare.data) == (None, "3", None)
    raw = torch.full((1, 1, 28, 28), 51, dtype=torch.uint8)
    assert torch.allclose(bare.prepare(raw), torch.tensor(0.2))
    known = TrainedModel.open(tmp_path / "m", data="fashion-mnist")
    assert known.normalise == Normalisation((0.286,), (0.353,))
    assert known.class_names[0].lower().startswith("t-shirt")
    with pytest.raises(InputError, match="Did you mean 'mnist'"):
        TrainedModel.open(tmp_path / "m", data="mnits")


def test_a_regression_model_has_no_classes(tmp_path: Path) -> None:
    ltnode.save(ltnode.build("lt-node", "synthetic", seed=0), tmp_path / "m")
    assert TrainedModel.open(tmp_path / "m", data="synthetic").class_names == ()


@pytest.mark.parametrize("damage", ["missing", "empty", "not json", "weights", "data", "normalise"])
def test_damaged_folders_say_so(run_folder: Path, tmp_path: Path, damage: str) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((run_folder / name).read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    match damage:
        case "missing":
            (tmp_path / "model.safetensors").unlink()
        case "empty":
            (tmp_path / "config.json").write_text("{}")
        case "not json":
            (tmp_path / "config.json").write_text("{")
        case "weights":
            (tmp_path / "model.safetensors").write_bytes(b"\x80\x04pickle?")
        case "data":
            (tmp_path / "config.json").write_text(json.dumps({**config, "data": ["mnist"]}))
        case "normalise":
            config["data"]["normalise"] = {"mean": [0.0, 1.0], "std": [1.0, 1.0]}
            (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError):
        TrainedModel.open(tmp_path)


def test_unknown_devices_are_refused(run_folder: Path) -> None:
    with pytest.raises(ConfigError, match="'cuda:N'"):
        TrainedModel.open(run_folder, device="gpu")


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (torch.zeros(2, 1, SIDE, SIDE + 1), r"shape \(B, 1, 10, 10\)"),
        (torch.zeros(1, SIDE, SIDE), r"shape \(B, 1, 10, 10\)"),
        (torch.zeros(0, 1, SIDE, SIDE), "B >= 1"),
        (torch.full((1, 1, SIDE, SIDE), math.nan), "NaN or inf in 1 of 1"),
        (torch.full((1, 1, SIDE, SIDE), 9.0), "divide"),
        (torch.zeros(1, 1, SIDE, SIDE, dtype=torch.int64), "uint8"),
        (torch.zeros(1, 1, SIDE, SIDE, dtype=torch.bool), "numbers"),
    ],
)
def test_bad_inputs_are_refused(trained: TrainedModel, raw: torch.Tensor, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        trained.rows(raw)


# -- the operating point -------------------------------------------------------------------------------------------------------


def test_a_calibration_split_is_disjoint_from_validation_and_training(tmp_path: Path) -> None:
    """Drawn with the seed of the split; a run without one has no such examples."""
    data = image_data()
    options = {"validation_fraction": 0.25, "calibration_fraction": 0.2, "split_seed": 9, "epochs": 1}
    run = image_run("lt-node", data, out=tmp_path / "run", seed=3, **options)
    opened = TrainedModel.open(run.path)  # type: ignore[arg-type]
    validation, calibration = opened.validation_split(data), opened.calibration_split(data)
    assert validation is not None and calibration is not None
    assert torch.equal(validation.x, data.with_validation(0.25, seed=9)[1].x)
    assert len(calibration) == 32 and len(validation) == 40
    seen = [x.numpy().tobytes() for split in (validation, calibration) for x in split.x]
    assert len(set(seen)) == 72
    _, description = calibration_examples(opened, data)
    assert description == "40 validation examples of patterns that training held out (share 0.25, seed 9)"


def test_choice_on_the_validation_split_gives_the_asked_shares(trained: TrainedModel) -> None:
    """At the chosen point, exactly 40 - ceil(0.8 x 40) = 8 of the 40 held-out images are flagged."""
    split, description = calibration_examples(trained, image_data())
    assert description == "40 validation examples of patterns that training held out (share 0.25, seed 3)"
    expected = image_data().with_validation(0.25, seed=3)[1]
    assert torch.equal(split.x, expected.x) and trained.calibration_split(image_data()) is None
    point = choose_operating_point(trained, split, 0.8, data=description)
    rows = trained.with_operating_point(point).rows(split.x)
    assert sum(row.abstain or False for row in rows) == 8
    kept = [row.label == int(y) for row, y in zip(rows, split.y, strict=True) if not row.abstain]
    assert point.accuracy_kept == pytest.approx(sum(kept) / len(kept))
    assert (point.n, point.data) == (40, description)


def test_without_validation_the_evaluations_half_of_the_test_set(tmp_path: Path) -> None:
    """The same half that temperature and conformal sets are fitted on; the description forbids results on it."""
    data = image_data()
    image_run("node", data, out=tmp_path / "run", epochs=1)
    split, description = calibration_examples(TrainedModel.open(tmp_path / "run"), data)
    first, second = calibration_halves(len(data.test))
    assert torch.equal(split.x, data.test.x[first])
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(60))
    assert "30 test examples" in description
    assert "report no results on that half, only on the other 30" in description
    some, description = calibration_examples(TrainedModel.open(tmp_path / "run"), data, limit=7)
    assert len(some) == 7
    assert description.startswith("7 test examples")


def test_labelled_folders_serve_too(trained: TrainedModel, tmp_path: Path) -> None:
    raw, labels = images(6, 3)
    for position, (x, y) in enumerate(zip(raw, labels, strict=True)):
        file = tmp_path / "val" / str(int(y)) / f"{position}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(to_png(x))
    split, description = calibration_examples(trained, str(tmp_path / "val"))
    assert description == "6 labelled images of the folder val"
    order = sorted(range(6), key=lambda i: (int(labels[i]), i))
    assert torch.equal(split.x, raw[order])
    assert torch.equal(split.y, labels[order])
    (tmp_path / "val" / "seven").mkdir()
    with pytest.raises(InputError, match="unknown class 'seven'"):
        calibration_examples(trained, tmp_path / "val")


def test_a_point_of_other_weights_is_not_used(run_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The folder of a saved model can be overwritten: flags chosen for the old weights would be wrong."""
    trained = TrainedModel.open(run_folder)
    ltnode.save(trained.model, tmp_path / "m")
    split = Split(*images(10, 4))
    point = choose_operating_point(trained, split)
    point.save(tmp_path / "m")
    assert TrainedModel.open(tmp_path / "m").operating_point == point
    with torch.no_grad():
        next(trained.model.parameters()).mul_(2)
    ltnode.save(trained.model, tmp_path / "m")
    with caplog.at_level(logging.WARNING, "ltnode"):
        assert TrainedModel.open(tmp_path / "m").operating_point is None
    assert "other weights" in caplog.text


def test_models_without_an_operating_point_are_refused(trained: TrainedModel, tmp_path: Path) -> None:
    regression = vector_model("node", "regression", tmp_path)
    with pytest.raises(InputError, match="regression model"):
        choose_operating_point(regression, Split(torch.zeros(2, DIM), torch.zeros(2)))
    with pytest.raises(InputError, match="empty"):
        choose_operating_point(trained, Split(torch.zeros(0, 1, SIDE, SIDE), torch.zeros(0, dtype=torch.int64)))


def test_zoo_runs_carry_their_operating_points() -> None:
    """Every run has an operating point for its weights, chosen on images that it describes.

    The default recipe holds out 2 % to choose it and 5 % to calibrate, which is enough for a flag at a rate of 5 %. The paper's
    runs held out nothing: theirs is from a half of the test set, it was written in format 1, and they call nothing unfamiliar.
    """
    folders = [file.parent for file in sorted((Path(__file__).parents[2] / "zoo").glob("*/config.json"))]
    assert len(folders) >= 19
    for folder in folders:
        trained = TrainedModel.open(folder)
        point = trained.operating_point
        assert isinstance(point, OperatingPoint), folder
        assert point.accuracy_kept > point.accuracy
        if trained.preset == "paper":
            assert point.n >= 2000
            assert "report no results on that half" in point.data
            assert not trained.n_calibration
            continue
        held_out = json.loads((folder / "config.json").read_text())["data"]
        assert point.n == held_out["n_validation"] >= 1000
        assert "validation examples" in point.data
        assert point.false_alarm_rate == 0.05
        record = CalibrationRecord.read(folder)
        assert record is not None
        assert record.n == trained.n_calibration == held_out["n_calibration"] >= 2500
        assert record.weights == trained.weights_digest()
        assert trained.flag_problem is None


# -- models in memory, arrays, data sets ---------------------------------------------------------------------------------------


def test_numpy_arrays_are_inputs(trained: TrainedModel) -> None:
    """An array gives the predictions of the tensor bit for bit: as a batch, as one image, as integers of another dtype."""
    raw, _ = images(3, 2)
    expected = trained.predict(raw).probs
    assert torch.equal(trained.predict(raw.numpy()).probs, expected)
    assert torch.equal(trained.predict(raw.numpy().astype(int)).probs, expected)
    assert trained.rows(raw.numpy()) == trained.rows(raw)
    assert trained.rows(raw[0].numpy()) == trained.rows(raw[:1])


@pytest.mark.no_typecheck
@pytest.mark.parametrize("raw", [[[0.0]], None, "image.png", 3.0])
def test_other_objects_are_not_inputs(trained: TrainedModel, raw: object) -> None:
    for use in (trained.prepare, trained.predict, trained.rows):
        with pytest.raises(InputError, match="must be a tensor or a NumPy array"):
            use(raw)  # type: ignore[operator]


def test_a_run_a_model_and_a_folder_are_the_same_trained_model(tmp_path: Path) -> None:
    """Rows, digest and record of the training agree, whichever of them is given."""
    data = image_data()
    run = image_run("lt-node", data, out=tmp_path / "run", epochs=1, seed=4, validation_fraction=0.25)
    raw, _ = images(4, 9)
    by_run, by_folder, by_model = (
        TrainedModel.of(run),
        TrainedModel.of(tmp_path / "run", device="cpu"),
        TrainedModel.of(run.model, data),
    )
    assert TrainedModel.of(by_run) is by_run
    assert by_run.rows(raw) == by_folder.rows(raw) == by_model.rows(raw)
    assert by_run.weights_digest() == by_folder.weights_digest() == by_model.weights_digest()
    for trained in (by_run, by_folder):
        assert (trained.name, trained.model_name, trained.preset, trained.seed) == ("run", "lt-node", "default", 4)
        assert trained.config == run.config
        held_out = trained.validation_split(trained.dataset(data))
        assert held_out is not None
        assert torch.equal(held_out.x, data.with_validation(0.25, seed=4)[1].x)
    assert (by_model.name, by_model.config, by_model.seed) == ("lt-node", None, None)
    assert by_model.validation_split(data) is None


def test_the_data_set_has_the_normalisation_of_the_training(trained: TrainedModel) -> None:
    """Another data set for the same inputs is normalised with the constants that the network was trained with."""
    other = image_data("others", kind=1)
    assert other.normalise != trained.normalise
    assert trained.dataset(other).normalise == trained.normalise
    with pytest.raises(InputError, match="trained on 'patterns', which is not a built-in data set"):
        trained.dataset()


def test_a_model_of_custom_parts_needs_its_data() -> None:
    parts = (torch.nn.Linear(DIM, 4), torch.nn.Linear(4, 2))
    model = ltnode.LatentTimeODE(parts[0], Still(), parts[1], ltnode.FixedTime(1.0), task="classification")
    with pytest.raises(InputError, match="pass data"):
        TrainedModel.of(model)
    x = torch.randn(20, DIM)
    data = Dataset.from_arrays(x, (x[:, 0] > 0).long(), class_names=("no", "yes"))
    trained = TrainedModel.of(model, data)
    assert (trained.name, trained.shape, trained.class_names) == ("LatentTimeODE", (DIM,), ("no", "yes"))
    assert len(trained.rows(x)) == 20


@pytest.mark.no_typecheck
def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError, match="a run, a model or the folder of either, not int"):
        TrainedModel.of(3)  # type: ignore[arg-type]


def test_a_model_that_predicts_nan_is_refused(tmp_path: Path) -> None:
    """NaN must not reach a table or a JSON document as if it were a prediction."""
    trained = vector_model("lt-node", "regression", tmp_path)
    assert isinstance(trained.model, ltnode.LatentTimeODE)
    with torch.no_grad():
        next(trained.model.head.parameters()).fill_(math.nan)
    with pytest.raises(InputError, match="NaN or infinity for 2 of 2 inputs"):
        trained.rows(torch.zeros(2, DIM))


class Still(torch.nn.Module):
    """A field that moves nothing."""

    def forward(self, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(h)
