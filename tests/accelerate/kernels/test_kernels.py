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
from torch import nn

from kernels.comparisons import head_errors, layer_errors, relative, rounded_norm_errors, trajectory_errors
from ltnode.accelerate.fused import stage_weights, why_not_fused
from ltnode.accelerate.kernels.cuda import conv_trajectory as conv_trajectory_cuda
from ltnode.accelerate.kernels.interpolated_head import padded_ends
from ltnode.accelerate.kernels.norm_relu import run_fused
from ltnode.device import product_precision
from ltnode.models import build, images
from ltnode.ode.dense import dense_weights
from ltnode.ode.tableau import get_tableau

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = """
import json, sys
sys.path[:0] = {paths!r}
import torch
from torch import nn
from kernels.comparisons import head_errors, layer_errors, network_errors, trajectory_errors
from ltnode.models import images
torch.manual_seed(0)
x, shared, own = torch.randn(2, 1, 14, 14), torch.tensor([0.0, 0.4, 0.7, 2.0]), 2 * torch.rand(3, 2)
odd = nn.Sequential(nn.Conv2d(1, 12, 3), nn.GroupNorm(4, 12), nn.ReLU(), nn.Conv2d(12, 16, 3, bias=False), nn.GroupNorm(8, 16),
                    nn.ReLU(), nn.Conv2d(16, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1, padding_mode="reflect"))
convolved = nn.Sequential(nn.Conv2d(32, 16, 1), nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
results = {{
    "dopri5": trajectory_errors(32, 3, 2, [0.0, 0.7, 2.0], "dopri5", "fp32", "cpu"),
    "bosh3": trajectory_errors(32, 3, 1, [0.0, 1.5], "bosh3", "fp32", "cpu"),
    "stem": layer_errors(images.down_sampling(1, 64), (2, 1, 20, 20), "cpu"),
    "stem, one channel a group": layer_errors(images.down_sampling(1, 32), (1, 1, 12, 12), "cpu"),
    "layers beside kernels": layer_errors(odd, (2, 1, 9, 9), "cpu"),
    "head": layer_errors(images.classifier(3, 32), (2, 32, 3, 3), "cpu"),
    "one end-time": head_errors(1, 3, "cpu"),
    "ten end-times": head_errors(10, 3, "cpu", batch=1, per_sample=True),
    "sixteen end-times": head_errors(16, 6, "cpu", width=16, groups=8, per_sample=True),
    "twenty end-times": head_errors(20, 7, "cpu", width=8, groups=4),
    "forty end-times": head_errors(40, 2, "cpu", width=32, groups=2, per_sample=True),
    "network": network_errors(x, own, [0.0, 2.0], images.classifier(3, 32), 32, beside=True),
    "network, another head": network_errors(x[:1], shared, [0.0, 2.0], convolved, 32, beside=False),
}}
print(json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed; its interpreter runs the kernels on a CPU")
def test_kernels_in_the_interpreter_equal_the_layers():
    """States, error norms, outputs, gradients against float64 layers: float32 sums in another order; 1e-3 for a flipped ReLU."""
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


def test_an_error_that_is_no_number_passes_no_bound():
    """Poisoned memory shows as NaN, over which `max` passes."""
    numbers, poisoned = torch.ones(2), torch.tensor([1.0, float("nan")])
    assert max(relative(numbers, numbers, 1.0), relative(poisoned, numbers, 1.0), relative(numbers, numbers, 1.0)) > 1e9


@pytest.mark.gpu
def test_products_of_warps_stay_within_bf16_too(monkeypatch: pytest.MonkeyPatch):
    """What cards without products of warpgroups run; the bounds of bf16 above."""
    monkeypatch.setattr(conv_trajectory_cuda, "has_warpgroups", lambda _: False)
    errors = trajectory_errors(64, 7, 255, [0.0, 1.4, 3.0], "dopri5", "bf16", "cuda", poison=True)
    assert errors["states"] < 2e-2
    assert max(v for k, v in errors.items() if k.startswith("grad")) < 0.3, errors


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("layers", "shape"),
    [
        (images.down_sampling(3), (256, 3, 32, 32)),
        (images.down_sampling(1), (256, 1, 28, 28)),
        (images.classifier(), (256, 64, 7, 7)),
        (images.down_sampling(3), (4, 3, 64, 64)),
    ],
    ids=["CIFAR10 stem", "MNIST stem", "head", "images too large for the registers"],
)
def test_fused_norms_equal_their_layers(layers: nn.Sequential, shape: tuple[int, ...]):
    """At the sizes of training against float64 layers, without TF32. Of the millions of ReLU masks some flip at zero: 5e-3."""
    with product_precision("fp32"):
        errors = layer_errors(layers, shape, "cuda", poison=True)
    assert errors["output"] < 1e-4 and max(errors.values()) < 5e-3, errors


@pytest.mark.gpu
def test_fused_norms_in_bf16_stay_within_its_rounding():
    """The stem under autocast against float64; a float32 result without cast.

    8 bits in three convolutions leave .006 of the output; some masks in a thousand flip, which is .06 of a gradient (.08 with the
    plain layers under autocast).
    """
    torch.manual_seed(0)
    stem = images.down_sampling(3).cuda()
    x = torch.randn(256, 3, 32, 32, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        fused = run_fused(stem, x.to(dtype=torch.bfloat16, memory_format=torch.channels_last))
    assert fused.dtype == torch.float32 and fused.is_contiguous(memory_format=torch.channels_last)
    weight = torch.randn_like(fused)
    got = torch.autograd.grad((fused * weight).sum(), list(stem.parameters()))
    exact = stem.double()(x.double())  # in place: the gradients above are those of the float32 parameters
    wanted = torch.autograd.grad((exact * weight.double()).sum(), list(stem.parameters()))
    assert relative(fused, exact, 1e-9) < 2e-2
    floor = 1e-2 * max(float(b.norm()) for b in wanted)
    assert max(relative(a, b, floor) for a, b in zip(got, wanted, strict=True)) < 0.15


@pytest.mark.gpu
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("side", [30, 15, 26, 13, 40])
def test_the_norm_in_bf16_equals_float64_on_the_rounded_numbers(side: int, biased: bool):
    """The stems of CIFAR10 and MNIST, and an image for Triton; values rounded once, float32 sums leave 1e-6 of the others."""
    errors = rounded_norm_errors((256, 64, side, side), biased, "cuda", poison=True)
    assert errors.pop("output") < 1 and errors.pop("grad x") < 1 and max(errors.values()) < 1e-5, errors


@pytest.mark.gpu
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("side", [6, 7])
@pytest.mark.parametrize("ends", [1, 10, 16, 20, 100])
def test_the_interpolated_head_equals_the_float64_reference(ends: int, side: int, per_sample: bool):
    """At the sizes of training; float32 sums in another order leave 1e-6, a ReLU mask that flips at zero 1e-3 of a gradient."""
    errors = head_errors(ends, side, "cuda", batch=256 if ends < 100 else 16, evaluations=13, per_sample=per_sample, poison=True)
    assert errors["output"] < 1e-5 and max(errors.values()) < 5e-3, errors


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3"])
@pytest.mark.parametrize("shape", [(1,), (10,), (20, 3)])
@pytest.mark.parametrize("edges", [[0.0, 3.0], [0.0, 0.2, 0.2, 1.7, 3.0]])
def test_stage_weights_are_the_dense_weights_with_shared_stages_merged(method: str, shape: tuple[int, ...], edges: list[float]):
    """`dense_weights` added by hand, at times inside steps, on edges and with a step of length zero; float32 rounding."""
    tableau = get_tableau(method)
    times = 3.0 * torch.rand(shape)
    on_edges = torch.tensor(edges[1:])[: times.numel()]
    times.view(-1)[: len(on_edges)] = on_edges
    grid = torch.tensor(edges, dtype=torch.float64)
    full = dense_weights(tableau, grid, times)
    per_step = tableau.stages - 1
    wanted = torch.zeros(*shape, (len(edges) - 1) * per_step + 1, dtype=torch.float64)
    for m in range(len(edges) - 1):
        wanted[..., m * per_step : m * per_step + tableau.stages] += full[..., m, :]
    got = stage_weights(tableau, grid, times)
    assert got.dtype == torch.float32 and got.shape == wanted.shape
    assert torch.allclose(got.double(), wanted, rtol=1e-6, atol=1e-6)
    assert padded_ends(got) is got


def test_the_reason_against_the_kernels_is_named():
    """A model that the kernels are not written for says why, so that the fallback can be reported."""
    vector = build("lt-node", "synthetic", seed=0)
    assert "TimeMLP" in str(why_not_fused(vector, torch.zeros(1, 1)))
    wide = build("lt-node", "mnist", seed=0, width=48)
    assert "48 channels" in str(why_not_fused(wide, torch.zeros(1, 1, 28, 28)))
    precise = build("lt-node", "mnist", seed=0).double()
    assert "float64" in str(why_not_fused(precise, torch.zeros(1, 1, 28, 28, dtype=torch.float64)))
    fits = build("lt-node", "mnist", seed=0)
    reason = why_not_fused(fits, torch.zeros(1, 1, 28, 28))
    assert reason is None if HAS_TRITON else "Triton" in str(reason)


def test_a_field_that_computes_something_else_is_not_fused():
    """A subclass, another eps, a hook: the kernels would silently compute the plain field instead."""

    class Damped(images.ConvField):
        def forward(self, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return super().forward(t, h) - h

    x = torch.zeros(1, 1, 28, 28)
    model = build("lt-node", "mnist", seed=0)
    model.field = Damped()
    assert "Damped" in str(why_not_fused(model, x))
    model = build("lt-node", "mnist", seed=0)
    model.field.norm2.eps = 1e-3
    assert "eps" in str(why_not_fused(model, x))
    model = build("lt-node", "mnist", seed=0)
    model.field.register_forward_hook(lambda *_: None)
    assert "hook" in str(why_not_fused(model, x))
