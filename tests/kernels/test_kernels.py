"""Fused kernels: on CUDA at the sizes of training, and in Triton's interpreter at sizes that a CPU can do."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.comparisons import layer_errors, trajectory_errors
from ltnode.models import build, images
from ltnode.models.fused import why_not_fused

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = """
import json, sys
sys.path[:0] = {paths!r}
from kernels.comparisons import layer_errors, trajectory_errors
from ltnode.models import images
results = {{
    "dopri5": trajectory_errors(32, 3, 2, [0.0, 0.7, 2.0], "dopri5", "fp32", "cpu"),
    "bosh3": trajectory_errors(32, 3, 1, [0.0, 1.5], "bosh3", "fp32", "cpu"),
    "stem": layer_errors(images.down_sampling(1, 32), (1, 1, 12, 12), "cpu"),
    "head": layer_errors(images.classifier(3, 32), (2, 32, 3, 3), "cpu"),
}}
print(json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed; its interpreter runs the kernels on a CPU")
def test_kernels_in_the_interpreter_equal_the_layers():
    """States, error norms, gradients against float64 layers: float32 sums in another order.

    Biases before a norm with one channel a group have no gradient but for rounding, hence 1e-3 of the largest gradient's scale.
    """
    paths = [str(Path(__file__).parents[1]), *sys.path]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    program = INTERPRETED.format(paths=paths)
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=280, check=False
    )
    if "only 0-dimensional arrays can be converted" in out.stderr:
        pytest.skip("this Triton's interpreter does not work with this numpy")
    assert out.returncode == 0, out.stderr[-2000:]
    for name, errors in json.loads(out.stdout.splitlines()[-1]).items():
        worst = max(errors, key=errors.__getitem__)
        assert errors[worst] < 1e-3, (name, worst, errors[worst])


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 10])
@pytest.mark.parametrize("side", [6, 7])
def test_the_fused_trajectory_equals_the_float64_reference(steps: int, side: int):
    """In full float32; ReLU masks that flip at zero leave the gradients a few 1e-3, states agree to 1e-5."""
    edges = [3.0 * m / steps for m in range(steps + 1)]
    errors = trajectory_errors(64, side, 64, edges, "dopri5", "fp32", "cuda", poison=True)
    assert errors["states"] < 1e-5 and errors["error norms"] < 1e-3 and errors["without saving"] < 1e-6
    assert max(v for k, v in errors.items() if k.startswith("grad")) < 2e-2, errors


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "states", "gradients"), [("tf32", 5e-3, 0.2), ("bf16", 2e-2, 0.3)])
def test_reduced_precision_stays_within_its_rounding(precision: str, states: float, gradients: float):
    """TF32 keeps 10 bits and bf16 8 in the convolutions' inputs; 13 evaluations and mask flips multiply that."""
    errors = trajectory_errors(64, 7, 256, [0.0, 1.4, 3.0], "dopri5", precision, "cuda", poison=True)
    assert errors["states"] < states
    assert max(v for k, v in errors.items() if k.startswith("grad")) < gradients, errors


@pytest.mark.gpu
def test_fused_norms_equal_their_layers():
    """Down-sampling block and head at CIFAR10 shapes against float64 layers; TF32 off."""
    for layers, shape in ((images.down_sampling(3), (32, 3, 32, 32)), (images.classifier(), (64, 64, 7, 7))):
        errors = layer_errors(layers, shape, "cuda")
        assert max(errors.values()) < 1e-3, errors


def test_the_reason_against_the_kernels_is_named():
    """A model that the kernels are not written for says why, so that the fallback can be reported."""
    vector = build("lt-node", "synthetic", seed=0)
    assert "TimeMLP" in str(why_not_fused(vector, torch.zeros(1, 1)))
    wide = build("lt-node", "mnist", seed=0, width=48)
    assert "48 channels" in str(why_not_fused(wide, torch.zeros(1, 1, 28, 28)))
    fits = build("lt-node", "mnist", seed=0)
    reason = why_not_fused(fits, torch.zeros(1, 1, 28, 28))
    assert reason is None if HAS_TRITON else "Triton" in str(reason)
