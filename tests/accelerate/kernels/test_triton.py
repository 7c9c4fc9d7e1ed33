"""The Triton trajectory in Triton's interpreter, at sizes that a CPU can do; test_conv_trajectory.py has the tests on CUDA."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
sys.path[:0] = {paths!r}
import torch
from torch import nn
from kernels.comparisons import network_errors, trajectory_errors
from ltnode.models import images
torch.manual_seed(0)
x, shared, own = torch.randn(2, 1, 14, 14), torch.tensor([0.0, 0.4, 0.7, 2.0]), 2 * torch.rand(3, 2)
convolved = nn.Sequential(nn.Conv2d(32, 16, 1), nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
results = {{
    "dopri5": trajectory_errors(32, 3, 2, [0.0, 0.7, 2.0], "dopri5", "fp32", "cpu"),
    "bosh3": trajectory_errors(32, 3, 1, [0.0, 1.5], "bosh3", "fp32", "cpu"),
    "network": network_errors(x, own, [0.0, 2.0], images.classifier(3, 32), 32, own_weights=True),
    "network, another head": network_errors(x[:1], shared, [0.0, 2.0], convolved, 32, own_weights=False),
}}
print(json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed; its interpreter runs the kernels"
)
def test_the_trajectory_in_the_interpreter_equals_the_layers():
    """States, error norms, outputs, gradients against float64 layers: float32 sums in another order; 1e-3 for a flipped ReLU."""
    program = PROGRAM.format(paths=[str(Path(__file__).parents[1]), *sys.path])
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=280, check=False
    )
    if "only 0-dimensional arrays can be converted" in out.stderr:
        pytest.skip("this Triton's interpreter does not work with this numpy")
    assert out.returncode == 0, out.stderr[-2000:]
    for name, errors in json.loads(out.stdout.splitlines()[-1]).items():
        worst = max(errors, key=errors.__getitem__)
        assert errors[worst] < 1e-3, (name, worst, errors[worst])
