"""What is kept between predictions is that of the current model: quantiles, and what densities and widenings prepare."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import ltnode
from ltnode.endtime import EndTime
from ltnode.models.familiarity import TiedGaussian
from ltnode.models.kept import Kept
from ltnode.models.quantiles import KeptQuantiles
from ltnode.models.widening import Widening

X = torch.zeros(3, 2)


def reference(end_time: EndTime, samples: int) -> torch.Tensor:
    return end_time.quantile((torch.arange(samples, dtype=torch.float64) + 0.5) / samples).detach()


@pytest.mark.parametrize("make", [ltnode.GammaTime, lambda: ltnode.GammaMixtureTime(components=2), lambda: ltnode.FixedTime(0.7)])
def test_kept_quantiles_follow_every_change(make):
    """After each change of parameters, prior, window, number, dtype or distribution they equal a new computation, bit for bit."""
    kept, end_time = KeptQuantiles(), make()
    for samples in (5, 5, 3):
        assert torch.equal(kept(end_time, X, samples), reference(end_time, samples))
    for value in [*end_time.parameters(), *end_time.buffers()]:
        value.data.mul_(1.25)  # the change that no version counter notices
        assert torch.equal(kept(end_time, X, 3), reference(end_time, 3))
    if end_time.learnable:
        end_time.truncate = False
        assert torch.equal(kept(end_time, X, 3), reference(end_time, 3))
    end_time = end_time.double()
    assert torch.equal(kept(end_time, X, 3), reference(end_time, 3))
    other = ltnode.GammaTime(3.0, 2.0)
    assert torch.equal(kept(other, X, 3), reference(other, 3))


def test_kept_quantiles_are_computed_once_and_belong_to_the_caller(monkeypatch: pytest.MonkeyPatch):
    """A second prediction does not invert the cdf, and a caller who changes the result changes no later one."""
    kept, end_time = KeptQuantiles(), ltnode.GammaTime()
    first = kept(end_time, X, 4)
    expected = first.clone()
    monkeypatch.setattr(type(end_time), "forward", lambda *_: pytest.fail("the distribution was built again"))
    first.zero_()
    assert torch.equal(kept(end_time, X, 4), expected)


def test_quantiles_at_other_levels_are_other_quantiles():
    """Those of the levels that were asked for, bit for bit, also right after others with as many levels."""
    kept, end_time = KeptQuantiles(), ltnode.GammaTime()
    for levels in ((0.05, 0.5, 0.95), (0.1, 0.2, 0.3), (0.1, 0.2, 0.3)):
        expected = end_time.quantile(torch.tensor(levels, dtype=torch.float64)).detach()
        assert torch.equal(kept.at(end_time, X, levels), expected)
    assert torch.equal(kept(end_time, X, 3), reference(end_time, 3))


def test_a_copy_of_a_model_keeps_its_own_quantiles():
    """Deep copies share nothing: a change of the copy's posterior does not reach the original."""
    model = ltnode.build("lt-node", ltnode.InputSpec((2,), "classification", 2), seed=0)
    before = model.prediction_times(X)
    twin = copy.deepcopy(model)
    twin.end_time.alpha.data.fill_(5.0)
    assert not torch.equal(twin.prediction_times(X), before)
    assert torch.equal(model.prediction_times(X), before)


def test_copies_and_pickles_keep_nothing():
    kept: Kept[list[int]] = Kept()
    value = kept.get(("object",), 1, lambda: [1])
    assert kept.get(("object",), 1, list) is value
    for twin in (copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert twin.get(("object",), 1, lambda: [2]) == [2]


def test_the_factor_of_a_density_follows_every_change():
    """The distance is that of a density that has kept nothing: after a fit, a change in place, a load, and in float64."""
    density, x = TiedGaussian(), torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    density.fit(x, None)

    def agrees(dtype: torch.dtype = torch.float32) -> bool:
        return torch.equal(density(x.to(dtype)), copy.deepcopy(density)(x.to(dtype)))

    assert agrees() and agrees()
    density.factor.mul_(2)
    assert agrees()
    density.fit(2 * x + 1, None)
    assert agrees()
    state = {name: value.clone() for name, value in density.state_dict().items()}
    state["factor"] *= 3
    density.load_state_dict(state)
    assert agrees()
    density.scale, density.means = density.scale.double(), density.means.double()
    assert agrees(torch.float64)


def test_the_rates_of_a_widening_follow_every_change():
    """Widened logits are those of a widening that has kept nothing, after its base rates have changed in place or as a whole."""
    widening, logits = Widening(), torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    widening.onset, widening.scale, widening.base = torch.tensor(0.0), torch.tensor(1.0), torch.tensor([0.1, 0.2, 0.3, 0.4])

    def widened() -> torch.Tensor:
        found = widening(logits, torch.ones(3), "classification")[0]
        assert torch.equal(found, copy.deepcopy(widening)(logits, torch.ones(3), "classification")[0])
        return found

    first = widened()
    widening.base.mul_(torch.tensor([4.0, 1.0, 1.0, 0.5]))
    second = widened()
    widening.base = torch.full((4,), 0.25)
    assert not torch.equal(first, second) and not torch.equal(second, widened())
