"""The masked update: torch's own SGD where the flag holds, nothing where it does not."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from kernels.emulated import COMPILER, emulated_sgd
from ltnode.kernels.masked_sgd import Rule, launch_sgd, masked_sgd

emulated = pytest.param(
    partial(launch_sgd, compiled=emulated_sgd), marks=pytest.mark.skipif(COMPILER is None, reason="no C++ compiler"), id="kernel"
)


@pytest.mark.parametrize("update", [pytest.param(masked_sgd, id="torch"), emulated])
@pytest.mark.parametrize("nesterov", [False, True])
def test_steps_equal_those_of_torch(update: object, nesterov: bool):
    """Three steps with momentum and decay against `torch.optim.SGD`, and a masked one between: float32 rounding (1e-6)."""
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(777))
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov)
    flat, momentum = p.detach().clone(), torch.zeros(777)
    rule = Rule(torch.full((777,), 0.1), torch.full((777,), 0.01), 0.9, nesterov)
    for step in range(4):
        gradient = torch.randn(777)
        valid = torch.tensor(step != 2)
        before = flat.clone(), momentum.clone()
        flat = update(flat, gradient, momentum, valid, rule)  # type: ignore[operator]
        if not valid:
            assert torch.equal(flat, before[0]) and torch.equal(momentum, before[1])
            continue
        p.grad = gradient
        optimizer.step()
        torch.testing.assert_close(flat, p.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(momentum, optimizer.state[p]["momentum_buffer"], rtol=1e-6, atol=1e-6)
