"""The fused trajectory: on CUDA at the sizes of training against float64, and emulated against layers with the same rounding."""

from __future__ import annotations

import pytest
import torch

from kernels.comparisons import fill_free_memory, relative, rough_field, trajectory_errors
from kernels.emulated import emulate, needs_compiler
from kernels.rounded import RoundedField
from ltnode.accelerate.fused import field_tensors
from ltnode.accelerate.kernels import conv_trajectory, devices
from ltnode.accelerate.kernels.cuda import conv_trajectory as cuda

WARPS, WARPGROUPS = (8, 0), (9, 0)
"""Compute capabilities: the convolutions are products of warps or of warpgroups."""


def errors_of(side: int, batch: int, edges: list[float], method: str) -> dict[str, float]:
    return trajectory_errors(64, side, batch, edges, method, "bf16", "cpu", poison=True, reference_field=RoundedField)


@needs_compiler
@pytest.mark.parametrize("capability", [WARPS, WARPGROUPS])
@pytest.mark.parametrize(("side", "batch"), [(7, 1), pytest.param(6, 3, marks=pytest.mark.slow)])
def test_one_step_equals_layers_with_the_same_rounding(
    monkeypatch: pytest.MonkeyPatch, side: int, batch: int, capability: tuple[int, int]
):
    """Four evaluations do not amplify rounding yet: float32 sums in another order, a few values rounded the other way.

    Without warpgroups, torch computes the weight gradients in bfloat16 and rounds results and partial sums: 2^-7.
    """
    emulate(monkeypatch, capability)
    errors = errors_of(side, batch, [0.0, 0.5], "bosh3")
    if capability == WARPS:
        weights = [errors.pop(f"grad {name}.conv.weight") for name in ("conv1", "conv2")]
        assert max(weights) < 2**-7, weights
    assert max(errors.values()) < 5e-3, errors


@needs_compiler
@pytest.mark.parametrize(("trained", "capability"), [(True, WARPGROUPS), (True, WARPS), (False, WARPGROUPS)])
def test_one_evaluation_equals_the_field(monkeypatch: pytest.MonkeyPatch, trained: bool, capability: tuple[int, int]):
    """The only stage of Euler's method is the field itself; its gradients also for a frozen field. Bounds as above.

    On one multiprocessor, a block has two pairs of samples, and the second pair has only one.
    """
    emulate(monkeypatch, capability, multiprocessors=1)
    field, exact = rough_field(64, seed=3).requires_grad_(trained), RoundedField(64).double().requires_grad_(trained)
    exact.load_state_dict({k: v.double() for k, v in field.state_dict().items()})
    t, h, weight = torch.tensor(0.7), torch.randn(3, 64, 6, 6, requires_grad=True), torch.randn(3, 64, 6, 6)
    fill_free_memory("cpu")
    actual = conv_trajectory.field_evaluation(t, h, field_tensors(field, 6), "bf16")
    h_exact = h.detach().double().requires_grad_()
    expected = exact(t.double(), h_exact)
    assert actual.dtype == torch.float32 and relative(actual, expected, 1e-9) < 5e-3
    grads = torch.autograd.grad((actual * weight).sum(), [h, *(p for p in field.parameters() if trained)])
    references = torch.autograd.grad((expected * weight.double()).sum(), [h_exact, *(p for p in exact.parameters() if trained)])
    floor = 1e-3 * float(references[0].norm())
    assert max(relative(a, b, floor) for a, b in zip(grads, references, strict=True)) < 2**-7


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("capability", [WARPS, WARPGROUPS])
def test_two_steps_of_dopri5_follow_the_layers(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]):
    """Five samples in three blocks, one half empty; 13 evaluations amplify differences where ReLUs switch."""
    emulate(monkeypatch, capability)
    errors = errors_of(7, 5, [0.0, 0.3, 0.5], "dopri5")
    assert errors["states"] < 1e-3 and errors["error norms"] < 1e-2 and errors["without saving"] == 0.0, errors
    assert max(errors.values()) < 0.1, errors


@pytest.mark.parametrize(
    ("shape", "groups", "precision", "reason"),
    [
        ((2, 64, 7, 7), 32, "tf32", "bf16"),
        ((2, 32, 7, 7), 16, "bf16", "64 channels"),
        ((2, 64, 6, 7), 32, "bf16", "squares"),
        ((2, 64, 8, 8), 32, "bf16", "squares"),
        ((2, 64, 7, 7), 32, "bf16", "cpu"),
    ],
)
def test_unsupported_problems_are_named(shape: tuple[int, ...], groups: int, precision: str, reason: str):
    """The kernels would compute something else; the reason says what is not supported."""
    assert reason in str(cuda.unsupported_reason(torch.zeros(shape), groups, precision))


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 10])
@pytest.mark.parametrize("side", [6, 7])
def test_the_fused_trajectory_equals_the_float64_reference(steps: int, side: int):
    """In full float32, states agree to 1e-5; ReLU masks that flip at zero leave the gradients a few 1e-3."""
    edges = [3.0 * m / steps for m in range(steps + 1)]
    errors = trajectory_errors(64, side, 64, edges, "dopri5", "fp32", "cuda", poison=True)
    assert errors["states"] < 1e-5 and errors["error norms"] < 1e-3 and errors["without saving"] < 1e-6
    assert max(v for k, v in errors.items() if k.startswith("grad")) < 2e-2, errors


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "states", "gradients"), [("tf32", 5e-3, 0.2), ("bf16", 2e-2, 0.3)])
def test_reduced_precision_stays_within_its_rounding(precision: str, states: float, gradients: float):
    """TF32 keeps 10 bits and bf16 8 bits of the convolutions' inputs; 13 evaluations and mask flips multiply that."""
    errors = trajectory_errors(64, 7, 256, [0.0, 1.4, 3.0], "dopri5", precision, "cuda", poison=True)
    assert errors["states"] < states
    assert max(v for k, v in errors.items() if k.startswith("grad")) < gradients, errors


@pytest.mark.gpu
def test_products_of_warps_stay_within_bf16_too(monkeypatch: pytest.MonkeyPatch):
    """The variant for GPUs without warpgroup MMA; the bounds of bf16 above."""
    monkeypatch.setattr(devices, "has_warpgroup_mma", lambda _: False)
    errors = trajectory_errors(64, 7, 255, [0.0, 1.4, 3.0], "dopri5", "bf16", "cuda", poison=True)
    assert errors["states"] < 2e-2
    assert max(v for k, v in errors.items() if k.startswith("grad")) < 0.3, errors


def test_nan_passes_no_error_bound():
    """Poisoned memory shows as NaN, which `max` would ignore."""
    values, poisoned = torch.ones(2), torch.tensor([1.0, float("nan")])
    assert max(relative(values, values, 1.0), relative(poisoned, values, 1.0), relative(values, values, 1.0)) > 1e9
