"""CUDA kernels on a CPU: their sources compiled as C++, CUDA threads as fibres, against layers with the same rounding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kernels.comparisons import fill_free_memory, head_errors, relative, rough_field, rounded_norm_errors, trajectory_errors
from kernels.emulated import COMPILER, EmulatedKernels, emulated, emulated_gradients, emulated_head, emulated_norm_relu
from kernels.rounded import RoundedField
from ltnode.accelerate.fused import field_tensors
from ltnode.accelerate.kernels import conv_trajectory, interpolated_head, norm_relu, nvrtc
from ltnode.accelerate.kernels.cuda import conv_trajectory as conv_trajectory_cuda
from ltnode.accelerate.kernels.cuda.conv_trajectory import CudaTrajectory
from ltnode.accelerate.kernels.hopper import conv_gradients
from ltnode.ode.tableau import get_tableau

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")


def emulate(monkeypatch: pytest.MonkeyPatch, warpgroups: bool) -> None:
    """Let all trajectories run in the sources compiled as C++."""
    monkeypatch.setattr(conv_trajectory, "choose_kernels", lambda *_: CudaTrajectory(warpgroups, emulated))
    monkeypatch.setattr(conv_gradients, "_compiled_for", emulated_gradients)


def errors_of(
    monkeypatch: pytest.MonkeyPatch, side: int, batch: int, edges: list[float], method: str, warpgroups: bool
) -> dict[str, float]:
    emulate(monkeypatch, warpgroups)
    return trajectory_errors(64, side, batch, edges, method, "bf16", "cpu", poison=True, reference_field=RoundedField)


@pytest.mark.parametrize("warpgroups", [False, True])
@pytest.mark.parametrize(("side", "batch"), [(7, 1), pytest.param(6, 3, marks=pytest.mark.slow)])
def test_one_step_equals_layers_with_the_same_rounding(monkeypatch: pytest.MonkeyPatch, side: int, batch: int, warpgroups: bool):
    """Four evaluations, where rounding is not yet amplified: float32 sums in another order, a few values rounded the other way.

    Without warpgroups the kernels' gradients are torch's own bfloat16 convolution, which rounds result and partial sums: 2^-7.
    """
    errors = errors_of(monkeypatch, side, batch, [0.0, 0.5], "bosh3", warpgroups)
    if not warpgroups:
        kernels = [errors.pop(f"grad {name}.conv.weight") for name in ("conv1", "conv2")]
        assert max(kernels) < 2**-7, kernels
    assert max(errors.values()) < 5e-3, errors


@pytest.mark.parametrize(("trained", "warpgroups"), [(True, True), (True, False), (False, True)])
def test_one_evaluation_equals_the_field(monkeypatch: pytest.MonkeyPatch, trained: bool, warpgroups: bool):
    """Euler's only stage: the field itself, and its gradients also where the field is a constant; bounds as above.

    On one multiprocessor, so that a block has two pairs of samples, of which the second lacks one.
    """
    emulate(monkeypatch, warpgroups)
    monkeypatch.setattr(nvrtc, "multiprocessors", lambda *_, **__: 1)
    field, exact = rough_field(64, seed=3).requires_grad_(trained), RoundedField(64).double().requires_grad_(trained)
    exact.load_state_dict({k: v.double() for k, v in field.state_dict().items()})
    t, h, weight = torch.tensor(0.7), torch.randn(3, 64, 6, 6, requires_grad=True), torch.randn(3, 64, 6, 6)
    fill_free_memory("cpu")
    got = conv_trajectory.field_evaluation(t, h, field_tensors(field, 6), "bf16")
    h_exact = h.detach().double().requires_grad_()
    wanted = exact(t.double(), h_exact)
    assert got.dtype == torch.float32 and relative(got, wanted, 1e-9) < 5e-3
    grads = torch.autograd.grad((got * weight).sum(), [h, *(p for p in field.parameters() if trained)])
    references = torch.autograd.grad((wanted * weight.double()).sum(), [h_exact, *(p for p in exact.parameters() if trained)])
    floor = 1e-3 * float(references[0].norm())
    assert max(relative(a, b, floor) for a, b in zip(grads, references, strict=True)) < 2**-7


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
def test_what_the_kernels_are_not_written_for_goes_elsewhere(shape: tuple[int, ...], groups: int, precision: str, reason: str):
    """Each of them would compute something else; the reason names it."""
    assert reason in str(conv_trajectory_cuda.why_not(torch.zeros(shape), groups, get_tableau("euler"), precision))


@pytest.mark.slow
@pytest.mark.parametrize("warpgroups", [False, True])
def test_two_steps_of_dopri5_follow_the_layers(monkeypatch: pytest.MonkeyPatch, warpgroups: bool):
    """Three blocks of two samples for five, a part empty; 13 evaluations multiply differences at the ReLUs' corners."""
    errors = errors_of(monkeypatch, 7, 5, [0.0, 0.3, 0.5], "dopri5", warpgroups)
    assert errors["states"] < 1e-3 and errors["error norms"] < 1e-2 and errors["without saving"] == 0.0, errors
    assert max(errors.values()) < 0.1, errors


@pytest.mark.parametrize(
    ("ends", "side", "evaluations", "per_sample"),
    [(1, 3, 4, False), (7, 3, 19, False), (10, 2, 4, True), pytest.param(23, 7, 8, True, marks=pytest.mark.slow)],
)
def test_the_interpolated_head_equals_the_layers(
    monkeypatch: pytest.MonkeyPatch, ends: int, side: int, evaluations: int, per_sample: bool
):
    """One end-time, as many as a block holds, and more than twice that; more stages than its warps exchange at a time.

    Float32 sums in another order leave 1e-5, and ReLU masks flip where a state is zero up to rounding.
    """
    sizes = interpolated_head._cuda_sizes(evaluations, ends, side * side, 32)
    monkeypatch.setattr(interpolated_head, "_cuda_kernels", lambda *_: emulated_head(sizes))
    monkeypatch.setattr(interpolated_head, "_CUDA_BLOCKS", 1)  # of four multiprocessors: some of them have two pieces
    errors = head_errors(ends, side, "cpu", 32, 16, batch=3, evaluations=evaluations, per_sample=per_sample, poison=True)
    assert max(errors.values()) < 1e-4, errors


@pytest.mark.parametrize(
    ("shape", "biased"),
    [
        ((2, 16, 2, 1), True),
        ((3, 32, 5, 7), True),
        ((2, 16, 16, 16), False),
        ((1, 32, 17, 19), True),
        ((2, 64, 15, 15), True),
        ((2, 64, 30, 30), False),
        ((1, 16, 32, 32), True),
    ],
)
def test_the_norm_in_bf16_equals_the_layers(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int, int], biased: bool):
    """From two positions to as many as the kernels take, full and partial rows of threads, both numbers of threads.

    Output and gradient of x are the float64 values rounded once; float32 sums in another order leave 1e-6 of the others.
    """
    used = []

    def kernels(x: torch.Tensor, biased: bool) -> EmulatedKernels:
        used.append(x.shape)
        return emulated_norm_relu(x, biased)

    monkeypatch.setattr(norm_relu, "_cuda_kernels", kernels)
    errors = rounded_norm_errors(shape, biased, "cpu", poison=True)
    assert used == [shape]
    assert errors.pop("output") < 1 and errors.pop("grad x") < 1 and max(errors.values()) < 1e-5, errors


def test_the_norm_goes_to_cuda_only_where_its_source_is_written_for_it(monkeypatch: pytest.MonkeyPatch):
    """Everything else stays with Triton: another dtype, another number of channels a group, pooling, larger images."""
    monkeypatch.setattr(norm_relu, "_cuda_kernels", emulated_norm_relu)

    def chosen(norm: nn.GroupNorm, side: int = 2, dtype: torch.dtype = torch.bfloat16, pool: bool = False) -> str:
        x = torch.zeros(1, norm.num_channels, side, side, dtype=dtype)
        return type(norm_relu._choose(x, norm, pool, None)).__name__

    assert chosen(nn.GroupNorm(8, 16)) == "_Cuda"
    assert chosen(nn.GroupNorm(8, 16), dtype=torch.float32) == "_Triton"
    assert chosen(nn.GroupNorm(8, 16), pool=True) == "_Triton"
    assert chosen(nn.GroupNorm(8, 16), side=33) == "_Triton"
    assert chosen(nn.GroupNorm(8, 16).bfloat16()) == "_Triton"
    assert chosen(nn.GroupNorm(4, 16)) == "_Triton"
    assert chosen(nn.GroupNorm(4, 8)) == "_Triton"
