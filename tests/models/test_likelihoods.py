"""Gaussian likelihoods with several targets and with noise that varies with the input, from the loss to the exported file."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributions import Normal

import ltnode
from ltnode.errors import InputError
from ltnode.export.program import DeployedModel
from ltnode.models import InputSpec, Model, Prediction
from ltnode.objective import Gaussian
from ltnode.trained.rows import regression_rows
from ltnode.typing import Tensor

CASES = [(1, True), (3, False), (2, True)]


def likelihood(targets: int, varies: bool) -> Gaussian:
    result = Gaussian(0.7, targets=targets, input_dependent=varies).double()
    with torch.no_grad():
        result.log_std.add_(torch.arange(targets).reshape(result.log_std.shape) * 0.3)
    return result


@pytest.mark.parametrize(("targets", "varies"), CASES)
def test_the_density_is_that_of_independent_normal_distributions(targets: int, varies: bool, generator: torch.Generator) -> None:
    """Reference: torch.distributions; float64, hence 1e-12."""
    own = likelihood(targets, varies)
    outputs = torch.randn(4, 5, targets * (1 + varies), generator=generator, dtype=torch.float64)
    y = torch.randn(5, targets, generator=generator, dtype=torch.float64)
    std = own.log_std.exp().expand(4, 5, targets)
    if varies:
        std = std * (3 * torch.tanh(outputs[..., targets:] / 3)).exp()
    expected = Normal(outputs[..., :targets], std).log_prob(y).sum(dim=-1)
    torch.testing.assert_close(own.log_prob(outputs, y), expected, rtol=1e-12, atol=1e-12)
    means, noise = own.moments(outputs)
    assert torch.equal(means, outputs[..., :targets])
    torch.testing.assert_close(noise.expand(4, 5, targets), std.detach(), rtol=1e-12, atol=0)
    assert not noise.requires_grad


@pytest.mark.parametrize("size", [1e3, 1e30])
def test_no_output_makes_the_noise_zero_or_infinite(size: float) -> None:
    """The noise varies by a factor of at most exp(3) = 20.1, so that the density and its gradient stay finite in float32."""
    own = Gaussian(targets=2, input_dependent=True)
    outputs = torch.tensor([[[0.0, 1.0, size, -size]]], requires_grad=True)
    value = own.log_prob(outputs, torch.tensor([[0.5, -2.0]]))
    value.sum().backward()
    assert outputs.grad is not None
    assert bool(torch.isfinite(value).all()) and bool(torch.isfinite(outputs.grad).all())
    noise = own.moments(outputs)[1]
    torch.testing.assert_close(noise[0, 0].log(), torch.tensor([3.0, -3.0]), rtol=1e-5, atol=0)


def test_a_prediction_splits_the_variance_of_every_target(generator: torch.Generator) -> None:
    """Reference: the moments of the mixture of the members' Gaussians, law of total variance; 1e-12 in float64."""
    means = torch.randn(4, 6, 2, generator=generator, dtype=torch.float64)
    noise = torch.rand(6, 2, generator=generator, dtype=torch.float64) + 0.1
    prediction = Prediction("regression", means, torch.ones(4), noise=noise)
    assert prediction.mean.shape == prediction.std.shape == prediction.noise_std.shape == prediction.total_std.shape == (6, 2)
    variance = means.var(dim=0, correction=0) + noise.square()
    torch.testing.assert_close(prediction.aleatoric + prediction.epistemic, variance, rtol=1e-12, atol=0)
    entropy = Normal(prediction.mean, variance.sqrt()).entropy().sum(dim=1)
    torch.testing.assert_close(prediction.entropy, entropy, rtol=1e-12, atol=1e-12)
    parts = [Prediction("regression", means[:, rows], torch.ones(4), noise=noise[rows]) for rows in (slice(2), slice(2, None))]
    assert torch.equal(Prediction.cat(parts).total_std, prediction.total_std)
    constant = Prediction("regression", means, torch.ones(4), noise=noise[0])
    assert torch.equal(constant.noise_std, noise[0].expand(6, 2))


def fitted(name: str, targets: int, varies: bool, generator: torch.Generator) -> tuple[Model, Tensor]:
    """A model with random weights, and with familiarity, widening and ranks; half of the returned inputs are unfamiliar."""
    spec = InputSpec((3,), "regression", n_targets=targets)
    model = ltnode.build(name, spec, seed=0, width=8, noise="varying" if varies else "constant").double()
    for network in model.networks if name == "ensemble" else [model]:
        torch.nn.init.normal_(network.head.weight, generator=generator)
    x = torch.randn(120, 3, generator=generator, dtype=torch.float64)
    y = torch.stack([x[:, 0] - k * x[:, 1] for k in range(targets)], dim=1)
    model.finish_training(x[:60], y[:60])
    model.fit_familiarity(x[:60], y[:60])
    model.fit_widening(x[60:90], y[60:90])
    model.calibrate_familiarity(x[90:])
    return model, torch.cat([x[90:94], 6 * x[94:98]])


@pytest.mark.parametrize("name", ["lt-node", "ensemble"])
@pytest.mark.parametrize(("targets", "varies"), CASES)
def test_familiar_models_predict_several_targets_and_varying_noise(
    name: str, targets: int, varies: bool, generator: torch.Generator
) -> None:
    """One row alone agrees with the batch to 1e-5 (the contract of all models); distant rows are at least as wide as the data."""
    model, x = fitted(name, targets, varies, generator)
    prediction = model.predict(x)
    shape = (8,) if targets == 1 else (8, targets)
    for value in (prediction.mean, prediction.std, prediction.noise_std, prediction.total_std, prediction.aleatoric):
        assert value.shape == shape and bool(torch.isfinite(value).all())
    assert prediction.entropy.shape == prediction.familiarity.shape == (8,)
    alone = torch.cat([model.predict(row[None]).total_std for row in x])
    torch.testing.assert_close(alone, prediction.total_std, rtol=1e-5, atol=1e-5)
    assert bool((prediction.std[4:].mean(dim=0) > 0.5).all())
    if varies:
        assert float(prediction.noise_std.std(dim=0).min()) > 1e-3


@pytest.mark.parametrize(("targets", "varies"), CASES)
def test_a_restored_model_and_its_exported_program_agree(targets: int, varies: bool, generator: torch.Generator) -> None:
    """The state restores the same bits in a model of the same specification; the program in float32 agrees to 1e-4."""
    model, x = fitted("lt-node", targets, varies, generator)
    rebuilt = ltnode.models.build_from_spec(model.spec).double()
    rebuilt.load_state_dict(copy.deepcopy(model.state_dict()))
    for name in ("mean", "total_std", "familiarity"):
        assert torch.equal(getattr(rebuilt.predict(x), name), getattr(model.predict(x), name))
    single, raw = model.float(), x.float()
    program = DeployedModel(single, 10, "stored", raw, None, "float32")
    outputs, expected = program(raw), single.predict(raw)
    for name in ("mean", "std", "noise_std"):
        reference = getattr(expected, name)
        torch.testing.assert_close(outputs[name], reference.expand_as(outputs[name]), rtol=1e-4, atol=1e-4)


def test_rows_hold_the_noise_of_their_input_and_refuse_several_targets(generator: torch.Generator) -> None:
    model, x = fitted("lt-node", 1, True, generator)
    prediction = model.predict(x)
    assert [row.noise_std for row in regression_rows(prediction, None, 0.05)] == prediction.noise_std.tolist()
    model, x = fitted("lt-node", 2, False, generator)
    with pytest.raises(InputError, match="a row holds one target, but the model predicts 2"):
        regression_rows(model.predict(x), None, 0.05)


def test_targets_and_models_that_do_not_fit_are_refused() -> None:
    spec = InputSpec((3,), "regression", n_targets=2)
    model = ltnode.build("lt-node", spec, seed=0)
    with pytest.raises(InputError, match=r"must be floats of shape \(B, 2\), not torch.float32 \(4,\)"):
        model.loss(torch.zeros(4, 3), torch.zeros(4))
    with pytest.raises(InputError, match="has 1 targets per example, but the model predicts 2"):
        ltnode.fit(model, ltnode.data.Dataset.from_arrays(torch.zeros(9, 3), torch.zeros(9), task="regression"))
    for name in ("sde-net", "mc-dropout"):
        with pytest.raises(InputError, match=f"{name} predicts one target, not 2"):
            ltnode.build(name, spec)
    with pytest.raises(InputError, match="belongs to regression"):
        ltnode.build("lt-node", InputSpec((3,), "classification", 2), noise="varying")
    with pytest.raises(InputError, match="n_targets must be 1 for classification"):
        InputSpec((3,), "classification", 2, n_targets=2)
