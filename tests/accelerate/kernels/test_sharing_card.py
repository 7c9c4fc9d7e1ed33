"""Several runs on one card: how many multiprocessors a kernel takes, and that its results do not depend on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from emulated_graphs import emulate
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from training.tiny import tiny_config, tiny_data, tiny_model

import ltnode
from kernels.comparisons import relative, rough_field
from kernels.emulated import COMPILER, emulated, emulated_gradients, emulated_halving, emulated_head
from ltnode.accelerate import recorder as capture
from ltnode.accelerate.fused import field_tensors
from ltnode.accelerate.kernels import conv_trajectory, interpolated_head, nvrtc
from ltnode.accelerate.kernels.cuda.conv_trajectory import CudaTrajectory
from ltnode.accelerate.kernels.hopper import conv_gradients, halving_conv
from ltnode.training import fit_seeds, step

CPU = torch.device("cpu")
Differentiated = tuple[torch.Tensor, ...]


def test_a_part_of_the_card_while_runs_share_it():
    """Half of the emulated card's four, or another part, and all of them before, after and alone; an error changes nothing."""
    assert nvrtc.multiprocessors(CPU) == 4
    with pytest.raises(RuntimeError), nvrtc.sharing_card(5):
        assert [nvrtc.multiprocessors(CPU, parts) for parts in (2, 3, 9)] == [2, 1, 1]
        with nvrtc.sharing_card(1):
            assert nvrtc.multiprocessors(CPU) == 4
        assert nvrtc.multiprocessors(CPU) == 2
        raise RuntimeError
    assert nvrtc.multiprocessors(CPU) == 4


@given(items=st.integers(1, 10_000), most=st.integers(1, 200))
def test_even_blocks_are_as_few_as_take_no_longer(items: int, most: int):
    """The fullest block has as many items as with the most blocks; with one block fewer it would have more."""
    blocks, fullest = nvrtc.even_blocks(items, most), -(-items // most)
    assert 1 <= blocks <= min(items, most) and -(-items // blocks) == fullest
    assert blocks == 1 or -(-items // (blocks - 1)) > fullest


def test_every_training_knows_how_many_share_its_device(monkeypatch: pytest.MonkeyPatch):
    """What chooses the step is told the number of runs that take turns, and one where a training is alone."""
    told: list[int] = []
    choose = step.accelerated_step
    monkeypatch.setattr(step, "accelerated_step", lambda *given: told.append(given[3]) or choose(*given))
    config = tiny_config(epochs=1)
    fit_seeds(lambda _: tiny_model("node"), tiny_data(), config, (0, 1, 2))
    ltnode.fit(tiny_model("node"), tiny_data(), config)
    assert told == [3, 3, 3, 1]


@pytest.mark.no_typecheck  # an emulated stream is not a torch.cuda.Stream
@pytest.mark.parametrize("runs", [1, 5])
def test_what_is_recorded_finds_the_card_shared(monkeypatch: pytest.MonkeyPatch, runs: int):
    """Trial passes and the recorded one; afterwards kernels fill the card again."""
    record = capture.Recorder.record
    emulate(monkeypatch)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(capture.Recorder, "_warm_up", lambda self, run, rehearse: run())
    monkeypatch.setattr(capture.Recorder, "_capture", lambda self, graph, run: run())
    found: list[int] = []
    record(capture.Recorder(CPU, runs), tiny_model("node"), lambda: found.append(nvrtc.multiprocessors(CPU)))
    assert found == [4 if runs == 1 else 2] * 2 and nvrtc.multiprocessors(CPU) == 4


def field_results() -> Differentiated:
    field, h = rough_field(64, seed=3), torch.randn(9, 64, 2, 2, requires_grad=True)
    out = conv_trajectory.field_evaluation(torch.tensor(0.7), h, field_tensors(field, 2), "bf16")
    return out, *torch.autograd.grad(out.square().sum(), [h, *field.parameters()])


def head_results() -> Differentiated:
    norm, stages = nn.GroupNorm(16, 32), torch.randn(7, 19, 2, 2, 32).permute(0, 1, 4, 2, 3).requires_grad_()
    base = torch.randn(19, 32, 2, 2).contiguous(memory_format=torch.channels_last).requires_grad_()
    out = interpolated_head.interpolated_head(stages, base, torch.randn(10, 7), norm)
    return out, *torch.autograd.grad(out.square().sum(), [stages, base, *norm.parameters()])


def halving_results() -> Differentiated:
    conv, x = nn.Conv2d(64, 64, 4, 2, 1), torch.randn(9, 64, 8, 8, requires_grad=True)
    out = halving_conv.halving_conv(x, conv)
    return out, *torch.autograd.grad(out.float().square().sum(), [x, conv.weight])


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate CUDA with")
@pytest.mark.parametrize("results", [field_results, head_results, halving_results])
def test_results_do_not_depend_on_the_part_of_the_card(monkeypatch: pytest.MonkeyPatch, results: Callable[[], Differentiated]):
    """What belongs to samples, output and gradient of the input, bit for bit; sums over them in another order, to 1e-5."""
    monkeypatch.setattr(conv_trajectory, "choose_kernels", lambda *_: CudaTrajectory(True, emulated))
    monkeypatch.setattr(conv_gradients, "_compiled_for", emulated_gradients)
    monkeypatch.setattr(halving_conv, "_compiled_for", emulated_halving)
    sizes = interpolated_head._cuda_sizes(7, 10, 4, 32)
    monkeypatch.setattr(interpolated_head, "_cuda_kernels", lambda *_: emulated_head(sizes))
    torch.manual_seed(0)
    alone = results()
    torch.manual_seed(0)
    with nvrtc.sharing_card(5):
        beside = results()
    assert all(torch.equal(a, b) for a, b in zip(alone[:2], beside[:2], strict=True))
    assert max(relative(b, a, 1e-9) for a, b in zip(alone[2:], beside[2:], strict=True)) < 1e-5
