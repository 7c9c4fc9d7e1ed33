"""The masked update equals torch's SGD where the flag holds, and changes nothing where it does not."""

from __future__ import annotations

import pytest
import torch

from kernels.emulated import emulate, needs_compiler
from ltnode.accelerate.kernels.cuda.masked_sgd import FlatAverage, Rule, masked_sgd, unsupported_reason
from ltnode.models.averaging import WeightAverage


@pytest.mark.parametrize("kernel", [False, pytest.param(True, marks=needs_compiler)])
@pytest.mark.parametrize(("nesterov", "averaged"), [(False, False), (True, False), (False, True), (True, True)])
def test_steps_equal_those_of_torch(monkeypatch: pytest.MonkeyPatch, kernel: bool, nesterov: bool, averaged: bool):
    """Three steps with momentum and decay against `torch.optim.SGD`, and a masked one in between: float32 rounding (1e-6).

    The average of the parameters is that of the reference, which does not count the masked step.

    Parameters of several blocks, of a part of one and of exactly one; gradients with another memory layout than their parameters.
    """
    if kernel:
        emulate(monkeypatch)
    torch.manual_seed(0)
    shapes = [(1500, 3), (1,), (5, 7), (1024,)]
    reference = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    optimizer = torch.optim.SGD(reference, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    own, count = [p.detach().clone() for p in reference], sum(p.numel() for p in reference)
    momentum = torch.zeros(count)
    average = FlatAverage(torch.zeros(count), torch.zeros((), dtype=torch.int64), 0.25) if averaged else None
    expected = WeightAverage(reference, 0.75)
    rule = Rule(torch.full((count,), 0.1), torch.full((count,), 0.01), 0.9, nesterov)
    for step in range(4):
        gradients = [torch.randn(shape[::-1]).T if len(shape) > 1 else torch.randn(shape) for shape in shapes]
        valid = torch.tensor(step != 2)
        state = [*own, momentum, *(() if average is None else (average.sums, average.count))]
        before = [tensor.clone() for tensor in state]
        assert (unsupported_reason(own) is None) == kernel
        masked_sgd(own, gradients, momentum, valid, rule, average)
        if not valid:
            assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True))
            continue
        for p, gradient in zip(reference, gradients, strict=True):
            p.grad = gradient.contiguous()
        optimizer.step()
        expected.update()
        for a, b in zip(own, reference, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-6, atol=1e-6)
    buffers = [optimizer.state[p]["momentum_buffer"].reshape(-1) for p in reference]
    torch.testing.assert_close(momentum, torch.cat(buffers), rtol=1e-6, atol=1e-6)
    if average is not None:
        torch.testing.assert_close(average.sums, torch.cat([s.reshape(-1) for s in expected.sums]), rtol=1e-6, atol=1e-6)
        assert int(average.count) == int(expected.count) == 3


def test_torch_updates_parameters_that_the_kernel_does_not_support(monkeypatch: pytest.MonkeyPatch):
    """Strided parameters, and more of them than a launch holds; also in place."""
    emulate(monkeypatch)
    torch.manual_seed(0)
    for parameters, words in (([torch.randn(4, 3).T], "contiguous"), ([torch.randn(2) for _ in range(150)], "150 parameters")):
        assert words in str(unsupported_reason(parameters))
        gradients, count = [torch.randn(p.shape) for p in parameters], sum(p.numel() for p in parameters)
        expected = [p - 0.5 * g for p, g in zip(parameters, gradients, strict=True)]
        rule = Rule(torch.full((count,), 0.5), torch.zeros(count), 0.0, False)
        masked_sgd(parameters, gradients, torch.zeros(count), torch.tensor(True), rule)
        for a, b in zip(parameters, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
