"""The Gaussian process that a regression falls back on: exact where it can be compared, wide where there are no data."""

from __future__ import annotations

import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from ltnode.data import gap_data, gap_grid
from ltnode.errors import InputError
from ltnode.models.path_process import Fallback, PathProcess, _component
from ltnode.models.widening import mixed_means
from ltnode.report.gap import truth
from ltnode.typing import Tensor


def _fitted(rows: int = 300, seed: int = 0) -> tuple[PathProcess, Tensor, Tensor]:
    train = gap_data(rows, seed).train
    process = PathProcess()
    process.fit(train.x, train.y)
    return process, train.x, train.y


@pytest.mark.parametrize("length", [0.3, 1.0, 5.0])
def test_one_kernel_is_the_exact_process_if_every_row_is_a_centre(length: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z, new = (torch.randn(n, 2, generator=generator, dtype=torch.float64) for n in (40, 15))
    y = torch.sin(2 * z[:, 0]) + 0.1 * torch.randn(40, generator=generator, dtype=torch.float64)
    y = y - y.mean()
    part = _component(length, z, z, y, float(y.var(correction=0)))
    amplitude, noise = float(part.amplitude), float(part.noise)
    kernel = ConstantKernel(amplitude) * RBF(length) + ConstantKernel(10 * amplitude)
    oracle = GaussianProcessRegressor(kernel, alpha=noise, optimizer=None).fit(z.numpy(), y.numpy())
    mean, std = oracle.predict(new.numpy(), return_std=True)
    k = torch.exp(-0.5 * torch.cdist(new, z).square() / length**2) + 10
    variance = part.amplitude * (11 - (k @ part.projection).square().sum(dim=1))
    # The jitter of 1e-8 on the diagonal is the only difference.
    torch.testing.assert_close(k @ part.slope, torch.as_tensor(mean), rtol=0, atol=1e-4)
    torch.testing.assert_close(variance, torch.as_tensor(std).square(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("seed", [20, 21, 22])
def test_the_truth_lies_within_two_standard_deviations_everywhere_and_the_fit_is_close_on_the_data(seed: int) -> None:
    process, x, _ = _fitted(seed=seed)
    grid = gap_grid()
    mean, variance = process(grid)
    covered = (truth(grid) - mean).abs() <= 2 * (variance + 0.01).sqrt()
    assert covered.float().mean() >= 0.9
    # 300 points with noise 0.1 determine a smooth function to about 0.1 / sqrt(300 / 10) = 0.02.
    on_data = process(x)
    assert (on_data[0] - truth(x)).square().mean().sqrt() < 0.05
    assert on_data[1].mean().sqrt() < 0.05


def test_it_asks_for_nothing_on_the_data_and_for_everything_far_away() -> None:
    process, _, y = _fitted()
    noise = torch.tensor(0.1)
    inside = torch.cat([torch.linspace(-0.99, -0.71, 50), torch.linspace(0.51, 0.99, 50)])[:, None]
    assert process.fallback(inside, noise).weight.max() < 0.01
    far = process.fallback(torch.tensor([[-100.0], [100.0]]), noise)
    torch.testing.assert_close(far.weight, torch.ones(2), rtol=0, atol=1e-6)
    assert (far.variance >= y.var()).all()


@pytest.mark.parametrize(("features", "targets"), [("constant", "varying"), ("varying", "constant"), ("constant", "constant")])
def test_features_or_targets_without_spread_give_finite_answers(features: str, targets: str) -> None:
    values = torch.linspace(-1, 1, 30)
    x = (torch.ones(30) if features == "constant" else values)[:, None].expand(-1, 3)
    y = torch.full((30,), 5.0) if targets == "constant" else values
    process = PathProcess()
    process.fit(x, y)
    answer = process.fallback(torch.cat([x, 10 * x]), torch.tensor(0.1))
    assert all(bool(torch.isfinite(value).all()) for value in answer)


def test_a_fit_has_no_randomness_and_its_state_loads_into_an_unfitted_process_in_double_precision() -> None:
    process, x, _ = _fitted()
    again, _, _ = _fitted()
    for one, other in zip(process.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    restored = PathProcess().float()
    assert not restored.fitted
    restored.load_state_dict(process.state_dict())
    assert restored.fitted
    for precision in (restored, restored.float(), restored.half()):
        for one, other in zip(process(x), precision(x), strict=True):
            assert torch.equal(one, other)


def test_the_process_can_be_exported() -> None:
    process, x, _ = _fitted()
    exported = torch.export.export(process, (x[:8],)).module()
    for one, other in zip(process(x[:8]), exported(x[:8]), strict=True):
        torch.testing.assert_close(one, other)


def test_rows_without_targets_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 rows and one target for each, not 3 rows and 2 targets"):
        PathProcess().fit(torch.zeros(3, 1), torch.zeros(2))


def test_mixed_members_have_the_moments_of_the_mixture() -> None:
    members = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    other = Fallback(*(torch.tensor([value], dtype=torch.float64) for value in (-2.0, 3.0, 0.25)))
    moved, added = mixed_means(members[:, None, None], other)
    mean = 0.75 * members.mean() + 0.25 * -2.0
    second = 0.75 * members.square().mean() + 0.25 * (3.0 + 4.0)
    torch.testing.assert_close(moved.mean(), mean)
    torch.testing.assert_close(moved.var(correction=0) + added[0].square(), second - mean.square())
