"""The masked update: torch's own SGD where the flag holds, nothing where it does not."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from kernels.emulated import COMPILER, emulated_sgd
from ltnode.accelerate.kernels.cuda.masked_sgd import Rule, launch_sgd, masked_sgd

emulated = pytest.param(
    partial(launch_sgd, compiled=emulated_sgd), marks=pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"), id="kernel"
)


@pytest.mark.parametrize("update", [pytest.param(masked_sgd, id="torch"), emulated])
@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_equal_those_of_torch(update: object, nesterov: bool):
    """Three steps with momentum and decay against `torch.optim.SGD`, and a masked one between: float32 rounding (1e-6).

    Arrays of several blocks, of a part of one and of one exactly; gradients that do not lie like their parameters.
    """
    torch.manual_seed(0)
    shapes = [(1500, 3), (1,), (5, 7), (1024,)]
    torchs = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    optimizer = torch.optim.SGD(torchs, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    own, count = [p.detach().clone() for p in torchs], sum(p.numel() for p in torchs)
    momentum = torch.zeros(count)
    rule = Rule(torch.full((count,), 0.1), torch.full((count,), 0.01), 0.9, nesterov)
    for step in range(4):
        gradients = [torch.randn(shape[::-1]).T if len(shape) > 1 else torch.randn(shape) for shape in shapes]
        valid = torch.tensor(step != 2)
        before = [*(p.clone() for p in own), momentum.clone()]
        update(own, gradients, momentum, valid, rule)  # type: ignore[operator]
        if not valid:
            assert all(torch.equal(a, b) for a, b in zip(before, [*own, momentum], strict=True))
            continue
        for p, gradient in zip(torchs, gradients, strict=True):
            p.grad = gradient.contiguous()
        optimizer.step()
        for a, b in zip(own, torchs, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-6, atol=1e-6)
    buffers = [optimizer.state[p]["momentum_buffer"].reshape(-1) for p in torchs]
    torch.testing.assert_close(momentum, torch.cat(buffers), rtol=1e-6, atol=1e-6)


def test_updates_a_strided_parameter_and_more_than_a_launch_holds():
    """What the kernel is not written for goes through torch, in place all the same."""
    torch.manual_seed(0)
    for parameters in ([torch.randn(4, 3).T], [torch.randn(2) for _ in range(150)]):
        gradients, count = [torch.randn(p.shape) for p in parameters], sum(p.numel() for p in parameters)
        wanted = [p - 0.5 * g for p, g in zip(parameters, gradients, strict=True)]
        rule = Rule(torch.full((count,), 0.5), torch.zeros(count), 0.0, False)
        masked_sgd(parameters, gradients, torch.zeros(count), torch.tensor(True), rule)
        for a, b in zip(parameters, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
