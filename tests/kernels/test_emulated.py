"""The CUDA trajectory on a CPU: its source compiled as C++, CUDA threads as fibres, against layers with the same rounding."""

from __future__ import annotations

import pytest

from kernels.comparisons import head_errors, trajectory_errors
from kernels.emulated import COMPILER, emulated, emulated_head
from kernels.rounded import RoundedField
from ltnode.kernels import conv_trajectory, interpolated_head
from ltnode.kernels.conv_trajectory_cuda import CudaTrajectory

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")


def errors_of(
    monkeypatch: pytest.MonkeyPatch, side: int, batch: int, edges: list[float], method: str, samples: int = 2
) -> dict[str, float]:
    monkeypatch.setattr(conv_trajectory, "choose_kernels", lambda *_: CudaTrajectory(samples, emulated))
    return trajectory_errors(64, side, batch, edges, method, "bf16", "cpu", poison=True, reference_field=RoundedField)


@pytest.mark.parametrize(("side", "batch"), [(7, 1), pytest.param(6, 3, marks=pytest.mark.slow)])
def test_one_step_equals_layers_with_the_same_rounding(monkeypatch: pytest.MonkeyPatch, side: int, batch: int):
    """Four evaluations, where rounding is not yet amplified: float32 sums in another order, a few values rounded the other way.

    The kernels' gradients come from torch's own bfloat16 convolution, which rounds its result and its partial sums: 2^-7.
    """
    errors = errors_of(monkeypatch, side, batch, [0.0, 0.5], "bosh3")
    kernels = [errors.pop(f"grad {name}.conv.weight") for name in ("conv1", "conv2")]
    assert max(kernels) < 2**-7, kernels
    assert max(errors.values()) < 5e-3, errors


@pytest.mark.slow
def test_two_steps_of_dopri5_follow_the_layers(monkeypatch: pytest.MonkeyPatch):
    """Two blocks of three samples for four, a part empty; 13 evaluations multiply differences at the ReLUs' corners."""
    errors = errors_of(monkeypatch, 7, 4, [0.0, 0.3, 0.5], "dopri5", samples=3)
    assert errors["states"] < 1e-3 and errors["error norms"] < 1e-2 and errors["without saving"] == 0.0, errors
    assert max(errors.values()) < 0.1, errors


@pytest.mark.parametrize(
    ("ends", "side", "per_sample"), [(1, 3, False), (10, 2, True), pytest.param(23, 7, True, marks=pytest.mark.slow)]
)
def test_the_interpolated_head_equals_the_layers(monkeypatch: pytest.MonkeyPatch, ends: int, side: int, per_sample: bool):
    """One end-time, as many as a thread holds, and more than twice that; float32 sums in another order (1e-5), flipped masks."""
    sizes = interpolated_head._cuda_sizes(ends, side * side, 32)
    monkeypatch.setattr(interpolated_head, "_cuda_kernels", lambda *_: emulated_head(sizes))
    errors = head_errors(ends, side, "cpu", batch=3, width=32, groups=16, per_sample=per_sample)
    assert max(errors.values()) < 1e-4, errors
