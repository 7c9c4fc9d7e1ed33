"""``export_model``: refused arguments, and what a failed export leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from small_exports import REGRESSION, VECTORS, small_model

import ltnode
from ltnode.data import Normalisation
from ltnode.export import ExportError, api, export_model
from ltnode.export.onnx_format import require_onnx
from ltnode.trained import TrainedModel


@pytest.mark.slow
def test_an_ensemble_is_exported_with_its_networks(tmp_path: Path) -> None:
    """Reference: predict with one member per network; for regression, the noise variance is the mean over the networks."""
    model = ltnode.build("ensemble", REGRESSION, seed=0, width=4, members=2).eval()
    kept = export_model(model, tmp_path / "m.pt2", "torch", inputs=torch.randn(8, 2))
    x = torch.randn(5, 2)
    got, prediction = torch.export.load(kept.path).module()(x), model.predict(x, 2)
    torch.testing.assert_close(got["mean"], prediction.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got["std"], prediction.std, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got["noise_std"], prediction.noise_std.expand(5), rtol=1e-5, atol=1e-5)


def test_a_file_that_disagrees_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose probabilities are off by 1e-3 is refused, and nothing is written."""
    honest = api.torch_format.torch_program

    def dishonest(content: bytes) -> api.torch_format.Program:
        program = honest(content)
        return lambda x: {name: value + (1e-3 if name == "probs" else 0.0) for name, value in program(x).items()}

    monkeypatch.setattr(api.torch_format, "torch_program", dishonest)
    model = small_model("node", VECTORS)
    with pytest.raises(ExportError, match=r"differs from the library by 0\.001 on 8 inputs"):
        export_model(model, tmp_path / "m.pt2", "torch", inputs=torch.randn(8, 2))
    assert not list(tmp_path.iterdir())


def test_a_model_that_reads_values_cannot_be_traced_and_says_so(tmp_path: Path) -> None:
    class Reads(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if float(x.sum()) > 0 else -x

    model = small_model("node", VECTORS)
    assert isinstance(model, ltnode.LatentTimeODE)
    model.stem = torch.nn.Sequential(model.stem, Reads())
    with pytest.raises(ExportError, match="torch.export cannot trace this model"):
        export_model(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "reason"), [("sde-net", "random trajectories"), ("node-gp", "Gaussian process"), ("mc-dropout", "random masks")]
)
def test_models_that_cannot_be_exported_are_refused_with_a_reason(tmp_path: Path, name: str, reason: str) -> None:
    pytest.importorskip("gpytorch")
    with pytest.raises(ltnode.InputError, match=reason):
        export_model(ltnode.build(name, VECTORS, seed=0), tmp_path / "m.onnx")


def test_a_run_folder_provides_shape_normalisation_classes_and_operating_point(tmp_path: Path) -> None:
    """The file of a folder, or of the opened model, takes raw inputs; reference: the predictions of the trained model, 1e-5."""
    folder = Path(__file__).parents[1] / "fixtures" / "run-folders" / "v0.1" / "vectors"
    trained = TrainedModel.open(folder)
    raw = torch.randn(8, 2)
    for source in (folder, trained):
        kept = export_model(source, tmp_path / "m.pt2", "torch", inputs=raw)
        got, prediction = torch.export.load(kept.path).module()(raw), trained.predict(raw)
        passes = got["error_ratio"] < 1
        assert passes.any()
        torch.testing.assert_close(got["probs"][passes], prediction.probs[passes], rtol=0, atol=1e-5)
        assert json.loads(kept.metadata["class_names"]) == list(trained.class_names)
        assert trained.operating_point is not None
        threshold = json.loads(kept.metadata["operating_point"])["entropy_threshold"]
        assert threshold == trained.operating_point.entropy_threshold


@pytest.mark.no_typecheck
def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    model, path = small_model("node", VECTORS), tmp_path / "m.onnx"
    refused = [
        ({"format": "tflite"}, "unknown format"),
        ({"grid": "fine"}, "grid must be"),
        ({"grid": 0}, "grid must be"),
        ({"samples": 0}, "samples"),
        ({"input_type": "int8"}, "unknown type of input"),
        ({"inputs": torch.zeros(9, 3)}, r"shape \(N, 2\)"),
        ({"inputs": torch.zeros(9, 2, dtype=torch.float64)}, "must be torch.float32"),
        ({"shape": (2, 0)}, "shape must hold"),
        ({"normalise": Normalisation((0.0,) * 3, (1.0,) * 3)}, "3 entries"),
    ]
    for options, message in refused:
        with pytest.raises(ltnode.InputError, match=message):
            export_model(model, path, **options)
    with pytest.raises(ltnode.InputError, match="no folder"):
        export_model(model, tmp_path / "missing" / "m.onnx")
    with pytest.raises(ltnode.InputError, match=r"model\.float\(\)"):
        export_model(small_model("node", VECTORS).double(), path)
    model.spec = None
    with pytest.raises(ltnode.InputError, match="give shape"):
        export_model(model, path)


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ltnode.errors.is_installed", lambda module: False)
    with pytest.raises(ltnode.MissingExtraError, match=r"ltnode\[onnx\]"):
        require_onnx()
