"""Small exported models, each made once and shared by all tests and workers: torch's ONNX exporter takes many seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import ltnode
from ltnode.data import Normalisation
from ltnode.export import export_model

VECTORS = ltnode.InputSpec((2,), "classification", 3)
REGRESSION = ltnode.InputSpec((2,), "regression")
IMAGES = ltnode.InputSpec((1, 12, 12), "classification", 3)
PIXELS = Normalisation((0.4,), (0.3,))
SAMPLES = 4


@dataclass(frozen=True)
class Case:
    """The name of a model, and the options of its export."""

    model: str
    spec: ltnode.InputSpec
    options: dict[str, Any]


CASES: dict[str, Case] = {
    "lt": Case("lt-node", VECTORS, {"class_names": ("a", "b", "c"), "operating_point": {"entropy_threshold": 0.5}}),
    "alt": Case("alt-node", VECTORS, {}),
    "uni": Case("uni-node", IMAGES, {"normalise": PIXELS}),
    "node": Case("node", REGRESSION, {}),
    "lt-adaptive": Case("lt-node", VECTORS, {"grid": "adaptive"}),
    "alt-adaptive": Case("alt-node", IMAGES, {"grid": "adaptive", "normalise": PIXELS, "input_type": "uint8"}),
    "mixture": Case("lt-node-mixture", VECTORS, {"grid": 3}),
}


def small_model(name: str, spec: ltnode.InputSpec, tolerance: float = 1e-2, **options: Any) -> ltnode.Model:
    """A narrow network whose weights are large enough that its members disagree, with its own prediction grid."""
    # A loose tolerance on images: every step adds seconds to an export.
    tolerance = 0.1 if spec.is_image else tolerance
    model = ltnode.build(name, spec, seed=0, width=4, solver={"rtol": tolerance, "atol": tolerance}, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    x = torch.randn(64, *spec.shape, generator=generator)
    model.finish_training(x, torch.zeros(64) if spec.task == "regression" else torch.zeros(64, dtype=torch.long))
    return model.eval()


def inputs_for(case: Case, n: int, seed: int = 5) -> torch.Tensor:
    """Raw inputs for the file of a case that its verification did not use."""
    generator = torch.Generator().manual_seed(seed)
    if len(case.spec.shape) == 1:
        return torch.randn(n, *case.spec.shape, generator=generator)
    pixels = torch.rand(n, *case.spec.shape, generator=generator)
    return (pixels * 255).to(torch.uint8) if case.options.get("input_type") == "uint8" else pixels


def network_input(case: Case, raw: torch.Tensor) -> torch.Tensor:
    """Network inputs of raw inputs."""
    return PIXELS.apply(raw) if "normalise" in case.options else raw


@pytest.fixture(scope="session", name="onnx_file")
def shared_files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The ONNX file of a case."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if base.name.startswith("popen-") else base) / "exported"
    folder.mkdir(exist_ok=True)

    def file(name: str) -> Path:
        case, path = CASES[name], folder / f"{name}.onnx"
        if not path.exists():
            export_model(small_model(case.model, case.spec), path, samples=SAMPLES, **case.options)
        return path

    return file
