"""Distance, familiarity and widening inside exported files: the numbers of the library."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from small_exports import IMAGES, REGRESSION, VECTORS, small_model

import ltnode
from ltnode.export import Exported, ExportError, export_model
from ltnode.export.torch_format import torch_program
from ltnode.export.verification import DISTANCE_TOLERANCE, Agreement
from ltnode.models.familiar_model import FamiliarModel

Export = Callable[[str, ltnode.InputSpec], tuple[FamiliarModel, "Exported"]]


def familiar(name: str, spec: ltnode.InputSpec) -> FamiliarModel:
    """A narrow network with density, widening and ranks; its tolerance is loose, because every step adds seconds to an export."""
    model = small_model(name, spec, tolerance=0.1, **({"members": 2} if name == "ensemble" else {}))
    assert isinstance(model, FamiliarModel)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(400, *spec.shape, generator=generator)
    y = torch.randn(400, generator=generator) if spec.task == "regression" else torch.arange(400) % 3
    model.fit_familiarity(x[:200], y[:200])
    model.fit_widening(x[200:300], y[200:300])
    model.calibrate_familiarity(x[300:])
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Models and their exported programs, each made once: an export takes seconds."""

    @cache
    def make(name: str, spec: ltnode.InputSpec) -> tuple[FamiliarModel, Exported]:
        model, path = familiar(name, spec), tmp_path_factory.mktemp(name) / "m.pt2"
        return model, export_model(model, path, "torch", samples=2, inputs=foreign_and_typical(spec), tolerance=1e-4)

    return make


def foreign_and_typical(spec: ltnode.InputSpec) -> torch.Tensor:
    """Inputs from the middle of the training inputs to far outside."""
    x = torch.randn(40, *spec.shape, generator=torch.Generator().manual_seed(3))
    return x * torch.logspace(-0.5, 0.7, 40).reshape(-1, *[1] * len(spec.shape))


@pytest.mark.parametrize(
    ("name", "spec"),
    [("lt-node", VECTORS), ("alt-node", VECTORS), ("node", REGRESSION), ("lt-node", IMAGES), ("ensemble", VECTORS)],
)
def test_a_torch_program_gives_the_distance_of_the_library(name: str, spec: ltnode.InputSpec, exported: Export) -> None:
    """Distances to 1e-4 of max(1, |d|), p-values among the ranks within that, and the widened answers to 1e-4."""
    (model, made), x = exported(name, spec), foreign_and_typical(spec)
    assert "distance (B), familiarity (B)" in made.metadata["outputs"]
    assert made.metadata["n_calibration"] == "100"
    assert made.agreement.distance <= DISTANCE_TOLERANCE
    got = torch_program(made.path.read_bytes())(x)
    samples = int(made.metadata["samples"])
    expected = model.predict(x, samples)
    assert expected.distance is not None and expected.familiarity is not None
    fine = got["error_ratio"] < 1
    assert int(fine.sum()) > 5
    scale = expected.distance.abs().clamp_min(1.0)
    assert float(((got["distance"] - expected.distance) / scale)[fine].abs().max()) <= DISTANCE_TOLERANCE
    low, high = (model.ranks(expected.distance + sign * DISTANCE_TOLERANCE * scale) for sign in (1, -1))
    assert bool(((got["familiarity"] >= low) & (got["familiarity"] <= high))[fine].all())
    average = "probs" if spec.task == "classification" else "std"
    torch.testing.assert_close(got[average][fine], getattr(expected, average)[fine], rtol=1e-4, atol=1e-4)


def test_widening_is_in_the_file(exported: Export) -> None:
    """Far outside of the training inputs, the probabilities of the file go to the class frequencies, as in the library."""
    model, made = exported("lt-node", VECTORS)
    plain = copy.deepcopy(model)
    plain.widening = type(model.widening)()
    far = 50 * torch.ones(2, 2)
    probs = torch_program(made.path.read_bytes())(far)["probs"]
    assert float(probs.amax()) < float(plain.predict(far, 2).probs.amax())


def test_a_model_without_calibration_has_a_distance_only(tmp_path: Path) -> None:
    model = familiar("node", REGRESSION)
    model.ranks = type(model.ranks)()
    made = export_model(model, tmp_path / "m.pt2", "torch", samples=2, tolerance=1e-4)
    got = torch_program(made.path.read_bytes())(torch.zeros(2, 2))
    assert "distance" in got and "familiarity" not in got
    assert "n_calibration" not in made.metadata


def test_wrong_distances_are_refused() -> None:
    good = Agreement(10, 0.0, 0.0, 0.0, distance=0.5 * DISTANCE_TOLERANCE)
    good.require(1e-5)
    for bad in (Agreement(10, 0.0, 0.0, 0.0, distance=2 * DISTANCE_TOLERANCE), Agreement(10, 0.0, 0.0, 0.0, ranks=0.01)):
        with pytest.raises(ExportError, match="distance in the exported model"):
            bad.require(1e-5)


@pytest.mark.parametrize("name", ["lt-node", "alt-node"])
def test_an_onnx_file_gives_the_distance_of_the_library(name: str, tmp_path: Path) -> None:
    """The same numbers as the library, from onnxruntime: 1e-4 relative for the distance, ranks within it for the p-value."""
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model, x = familiar(name, VECTORS), foreign_and_typical(VECTORS)
    export_model(model, tmp_path / "m.onnx", samples=2, inputs=x, tolerance=1e-4)
    session = runtime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    got = dict(zip(names, session.run(None, {"x": x.numpy()}), strict=True))
    expected = model.predict(x, 2)
    assert expected.distance is not None
    fine = got["error_ratio"] < 1
    scale = expected.distance.abs().clamp_min(1.0).numpy()
    assert float(np.abs((got["distance"] - expected.distance.numpy()) / scale)[fine].max()) <= DISTANCE_TOLERANCE
    assert got["familiarity"].dtype == np.float64
    assert ((got["familiarity"] > 0) & (got["familiarity"] <= 1)).all()
