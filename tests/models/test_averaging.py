"""The averaged weights are the bias-corrected exponential moving average, and swapping them in leaves no trace."""

from __future__ import annotations

import pytest
import torch

from ltnode.errors import ConfigError
from ltnode.models.averaging import WeightAverage, swapped_in


@pytest.mark.parametrize("decay", [0.5, 0.99, 0.999])
def test_the_average_is_the_weighted_mean_of_all_steps(decay: float):
    """Reference: the formula in float64, sum (1 - d) d^(n - k) w_k / (1 - d^n); float64 rounding (1e-12)."""
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.zeros(shape, dtype=torch.float64) for shape in ((3, 2), (4,), ())]
    average = WeightAverage(parameters, decay)
    history = []
    for n in range(1, 31):
        for p in parameters:
            p.copy_(5 + torch.randn(p.shape, generator=generator, dtype=torch.float64))
        average.update()
        history.append([p.clone() for p in parameters])
        weights = torch.tensor([(1 - decay) * decay ** (n - k) for k in range(1, n + 1)], dtype=torch.float64)
        weights /= 1 - decay**n
        assert float(weights.sum()) == pytest.approx(1.0, rel=1e-12)
        for index, value in enumerate(average.averaged()):
            stacked = torch.stack([entry[index] for entry in history])
            torch.testing.assert_close(value, torch.tensordot(weights, stacked, 1), rtol=1e-12, atol=1e-12)


def test_constant_weights_are_their_own_average_from_the_first_step_on():
    """Without the correction of the bias, a decay of 0.999 would give 0.001 of the weights after one step."""
    weight = torch.full((5,), 3.0)
    average = WeightAverage([weight], 0.999)
    torch.testing.assert_close(average.averaged()[0], weight)
    for _ in range(3):
        average.update()
        torch.testing.assert_close(average.averaged()[0], weight, rtol=1e-4, atol=0)


def test_swapping_in_and_out_restores_the_weights_bit_for_bit_also_after_an_error():
    weight = torch.nn.Parameter(torch.randn(7))
    average = WeightAverage([weight], 0.9)
    average.update()
    with torch.no_grad():
        weight.add_(1.0)
    before, address = weight.detach().clone(), weight.data_ptr()
    with pytest.raises(KeyError), swapped_in({"main": average}):
        torch.testing.assert_close(weight.detach(), before - 1.0, rtol=1e-5, atol=1e-5)
        raise KeyError
    assert torch.equal(weight.detach(), before)
    assert weight.data_ptr() == address  # captured graphs hold the address


def test_the_state_can_be_stored_and_restored():
    weight = torch.randn(4)
    one, two = WeightAverage([weight], 0.9), WeightAverage([weight], 0.9)
    for _ in range(3):
        one.update()
    two.load({name: tensor.clone() for name, tensor in one.tensors().items()})
    assert int(two.count) == 3 and torch.equal(one.averaged()[0], two.averaged()[0])


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5])
def test_impossible_decays_are_refused(decay: float):
    with pytest.raises(ConfigError, match="> 0 and < 1"):
        WeightAverage([torch.zeros(1)], decay)
