"""Euler-Maruyama: moments of the Ornstein-Uhlenbeck process, torchsde with the same noise, the Euler method without noise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torchsde
from torch import Tensor, nn

from ltnode.errors import InputError
from ltnode.ode import odesolve
from ltnode.ode.sde import euler_maruyama

THETA, SIGMA, START, END = 1.3, 0.8, 1.5, 1.0
EXACT_MEAN = START * math.exp(-THETA * END)
EXACT_VARIANCE = SIGMA**2 / (2 * THETA) * (1 - math.exp(-2 * THETA * END))


def edges_of(n: int, end: float = END) -> list[float]:
    return [end * m / n for m in range(n + 1)]


def ornstein_uhlenbeck(n: int, noise: Tensor) -> Tensor:
    """Last state of ``dy = -theta y dt + sigma dW`` for noise (n, paths)."""
    y0 = torch.full(noise.shape[1:], START, dtype=torch.float64)
    return euler_maruyama(lambda t, y: -THETA * y, torch.tensor(SIGMA, dtype=torch.float64), y0, edges_of(n), noise)


def exact_moments_of_the_method(n: int) -> tuple[float, float]:
    """Exact mean and variance of the last state of the method.

    The state is linear in the noise, ``y = m + sum_k c_k z_k``: zero noise gives m, unit noise in step k gives m + c_k.
    """
    noise = torch.cat([torch.zeros(n, 1), torch.eye(n)], dim=1).double()
    last = ornstein_uhlenbeck(n, noise)
    return float(last[0]), float((last[1:] - last[0]).square().sum())


def test_weak_order_is_one():
    """The errors of mean and variance are O(h): slopes of 1.0 within 0.06 for h = 1/8 to 1/256.

    The moments of the method are exact (no sampling), so deviations come from the next term of the expansion, relative O(h).
    """
    counts = [8, 16, 32, 64, 128, 256]
    moments = np.array([exact_moments_of_the_method(n) for n in counts])
    for column, exact in ((0, EXACT_MEAN), (1, EXACT_VARIANCE)):
        errors = np.abs(moments[:, column] - exact)
        slope = -np.polyfit(np.log(counts), np.log(errors), 1)[0]
        assert slope == pytest.approx(1.0, abs=0.06)


def test_sampled_moments_are_those_of_the_process(generator: torch.Generator):
    """With 40,000 paths of 256 steps: within 4 standard errors plus the bias of the method."""
    n, paths = 256, 40_000
    last = ornstein_uhlenbeck(n, torch.randn(n, paths, generator=generator, dtype=torch.float64))
    mean, variance = exact_moments_of_the_method(n)
    std = math.sqrt(EXACT_VARIANCE)
    assert abs(float(last.mean()) - EXACT_MEAN) < 4 * std / math.sqrt(paths) + abs(mean - EXACT_MEAN)
    assert abs(float(last.var()) - EXACT_VARIANCE) < 4 * EXACT_VARIANCE * math.sqrt(2 / paths) + abs(variance - EXACT_VARIANCE)


class Nonlinear(nn.Module):
    """A time-dependent field with multiplicative diagonal noise, as torchsde expects it."""

    noise_type, sde_type = "diagonal", "ito"

    def f(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.sin(3 * t) - y**3

    def g(self, t: Tensor, y: Tensor) -> Tensor:
        return 0.3 + 0.2 * torch.cos(y) + 0.1 * t


def test_agrees_with_torchsde_on_the_same_noise():
    """torchsde's Euler method on a Brownian path whose increments are our noise: equal up to float64 rounding, 1e-12.

    Steps of 1/16 are exact in floating point, so both evaluate the path at the same times.
    """
    sde, n = Nonlinear(), 16
    y0 = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    path = torchsde.BrownianInterval(0.0, END, size=y0.shape, dtype=torch.float64, entropy=3)
    edges = edges_of(n)
    increments = torch.stack([path(a, b) for a, b in itertools.pairwise(edges)])
    theirs = torchsde.sdeint(sde, y0, torch.tensor([0.0, END], dtype=torch.float64), bm=path, method="euler", dt=END / n)[-1]
    ours = euler_maruyama(sde.f, sde.g, y0, edges, increments / math.sqrt(END / n))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_without_diffusion_it_is_the_euler_method():
    """With g = 0 and uneven steps the result equals `odesolve(method="euler")` on the same grid."""
    sde, edges = Nonlinear(), [0.0, 0.1, 0.35, 0.6, 1.0]
    y0 = torch.randn(5, 2, dtype=torch.float64)
    ours = euler_maruyama(sde.f, torch.zeros((), dtype=torch.float64), y0, edges, torch.randn(4, 5, 2, dtype=torch.float64))
    theirs = odesolve(sde.f, y0, [1.0], method="euler", grid=edges).states[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_broadcast_paths_are_those_of_a_loop_and_share_the_first_drift():
    """y0 (1, B, D), noise (n, S, 1, D): path s equals a separate solve; the drift gets B rows first, then S B rows per step."""
    rows: list[int] = []
    sde, n, samples, batch = Nonlinear(), 3, 4, 5

    def drift(t: Tensor, y: Tensor) -> Tensor:
        rows.append(y[..., 0].numel())
        return sde.f(t, y)

    y0, scale = torch.randn(batch, 2), torch.rand(batch, 1)
    noise = torch.randn(n, samples, 1, 2)
    together = euler_maruyama(drift, scale, y0[None], edges_of(n), noise)
    assert rows == [batch, samples * batch, samples * batch]
    for s in range(samples):
        alone = euler_maruyama(sde.f, scale, y0, edges_of(n), noise[:, s])
        torch.testing.assert_close(together[s], alone)


def test_gradients_in_state_noise_and_diffusion():
    """Compared with finite differences (torch's gradcheck, float64)."""
    sde = Nonlinear()
    y0 = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    scale = torch.rand(2, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda y, z, g: euler_maruyama(sde.f, g, y, edges_of(3), z), (y0, noise, scale))
    assert torch.autograd.gradcheck(lambda y, z: euler_maruyama(sde.f, sde.g, y, edges_of(3), z), (y0, noise))


@pytest.mark.parametrize("edges", [[0.0], [0.0, 0.0], [1.0, 0.5], [0.0, math.inf]])
def test_impossible_edges_are_refused(edges: list[float]):
    with pytest.raises(InputError, match="increasing"):
        euler_maruyama(lambda t, y: y, torch.ones(()), torch.ones(2), edges, torch.zeros(max(len(edges) - 1, 1), 2))


def test_noise_of_the_wrong_length_is_refused():
    with pytest.raises(InputError, match="3 steps, not 2"):
        euler_maruyama(lambda t, y: y, torch.ones(()), torch.ones(2), edges_of(3), torch.zeros(2, 2))
