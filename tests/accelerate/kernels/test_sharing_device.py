"""Concurrent runs on one device: how many multiprocessors a kernel takes, and that its results do not depend on it."""

from __future__ import annotations

from collections.abc import Callable

import emulated_graphs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from training.tiny import tiny_config, tiny_data, tiny_model

import ltnode
from kernels.comparisons import relative, rough_field
from kernels.emulated import emulate, needs_compiler
from ltnode.accelerate import recorder as capture
from ltnode.accelerate.fused import field_tensors
from ltnode.accelerate.kernels import conv_trajectory, devices
from ltnode.accelerate.kernels.cuda import interpolated_head
from ltnode.accelerate.kernels.hopper import halving_conv
from ltnode.training import fit_seeds, step

CPU = torch.device("cpu")
Differentiated = tuple[torch.Tensor, ...]


def test_a_kernel_takes_a_part_of_a_shared_device(monkeypatch: pytest.MonkeyPatch):
    """Half of four multiprocessors or another part while runs share the device; all of them before, after and for one run."""
    emulate(monkeypatch, multiprocessors=4)
    assert devices.multiprocessors(CPU) == 4
    with pytest.raises(RuntimeError), devices.sharing_device(5):
        assert [devices.multiprocessors(CPU, parts) for parts in (2, 3, 9)] == [2, 1, 1]
        with devices.sharing_device(1):
            assert devices.multiprocessors(CPU) == 4
        assert devices.multiprocessors(CPU) == 2
        raise RuntimeError
    assert devices.multiprocessors(CPU) == 4


@given(items=st.integers(1, 10_000), limit=st.integers(1, 200))
def test_even_blocks_are_as_few_as_take_no_longer(items: int, limit: int):
    """The fullest block has as many items as with the largest number of blocks; with one block fewer it would have more."""
    blocks, fullest = devices.even_blocks(items, limit), -(-items // limit)
    assert 1 <= blocks <= min(items, limit) and -(-items // blocks) == fullest
    assert blocks == 1 or -(-items // (blocks - 1)) > fullest


def test_every_training_knows_how_many_share_its_device(monkeypatch: pytest.MonkeyPatch):
    """`accelerated_step` receives the number of concurrent runs, and 1 for a single training."""
    runs: list[int] = []
    choose = step.accelerated_step
    monkeypatch.setattr(step, "accelerated_step", lambda *given: runs.append(given[3]) or choose(*given))
    config = tiny_config(epochs=1)
    fit_seeds(lambda _: tiny_model("node"), tiny_data(), config, (0, 1, 2))
    ltnode.fit(tiny_model("node"), tiny_data(), config)
    assert runs == [3, 3, 3, 1]


@pytest.mark.no_typecheck  # an emulated stream is not a torch.cuda.Stream
@pytest.mark.parametrize("runs", [1, 5])
def test_recorded_passes_find_the_device_shared(monkeypatch: pytest.MonkeyPatch, runs: int):
    """The trial passes and the recorded one; afterwards kernels fill the device again."""
    record = capture.Recorder.record
    emulated_graphs.emulate(monkeypatch)
    emulate(monkeypatch)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(capture.Recorder, "_warm_up", lambda self, run, rehearse: run())
    monkeypatch.setattr(capture.Recorder, "_capture", lambda self, graph, run: run())
    found: list[int] = []
    record(capture.Recorder(CPU, runs), tiny_model("node"), lambda: found.append(devices.multiprocessors(CPU)))
    assert found == [4 if runs == 1 else 2] * 2 and devices.multiprocessors(CPU) == 4


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


@needs_compiler
@pytest.mark.parametrize("results", [field_results, head_results, halving_results])
def test_results_do_not_depend_on_the_part_of_the_device(monkeypatch: pytest.MonkeyPatch, results: Callable[[], Differentiated]):
    """Output and gradient of the input, which belong to samples, bit for bit; sums over samples in another order, to 1e-5."""
    emulate(monkeypatch)
    torch.manual_seed(0)
    alone = results()
    torch.manual_seed(0)
    with devices.sharing_device(5):
        concurrent = results()
    assert all(torch.equal(a, b) for a, b in zip(alone[:2], concurrent[:2], strict=True))
    assert max(relative(b, a, 1e-9) for a, b in zip(alone[2:], concurrent[2:], strict=True)) < 1e-5
