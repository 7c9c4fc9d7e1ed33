"""Stacked training steps with hand-written gradients: the reference is the loss of every network, and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ltnode.accelerate.stacked.adam import StackedAdam
from ltnode.accelerate.stacked.average import StackedAverage
from ltnode.accelerate.stacked.parameters import StackedParameters
from ltnode.accelerate.stacked.step import StackedStep, unsupported_reason_stacked, with_ones
from ltnode.models import InputSpec, LatentTimeODE, build
from ltnode.models.averaging import WeightAverage
from ltnode.ode import SolverError

SEED, N_DATA, STEP = 3, 100, 5
CASES = {
    "labels": ("lt-node", InputSpec((5,), "classification", 3), {}),
    "two steps": ("lt-node", InputSpec((5,), "regression"), {"solver": {"rtol": 1e-4, "atol": 1e-4}}),
    "many steps": ("lt-node", InputSpec((5,), "regression"), {"solver": {"rtol": 1e-6, "atol": 1e-6}}),
    "another method": ("lt-node", InputSpec((5,), "classification", 2), {"solver": {"method": "bosh3"}}),
    "varying noise of two targets": ("uni-node", InputSpec((2,), "regression", None, 2), {"noise": "varying"}),
    "fixed end-time": ("node", InputSpec((5,), "regression"), {"noise": "varying", "width": 7}),
    "weights": ("lt-node", InputSpec((5,), "classification", 2), {}),
    "literal bound": ("lt-node", InputSpec((5,), "classification", 2), {"objective": {"kl_weight": "elbo"}}),
}


def networks(case: str, count: int = 3) -> list[LatentTimeODE]:
    """Return different networks away from their initial weights, some of which are zero."""
    name, spec, options = CASES[case]
    found = []
    for k in range(count):
        network = build(name, spec, seed=k, **options)
        assert isinstance(network, LatentTimeODE)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        found.append(network)
    return found


def batch(case: str) -> tuple[torch.Tensor, torch.Tensor]:
    _, spec, _ = CASES[case]
    x = torch.randn(17, *spec.shape)
    y = torch.randint(spec.n_classes, (17,)) if spec.n_classes else torch.randn(17, spec.n_targets).squeeze(-1)
    return x, y


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_those_of_autograd_in_float64(case):
    """Every network by itself, in float64 on the same steps: float32 sums over 17 rows agree within 2e-5 of the largest entry."""
    models = networks(case)
    assert unsupported_reason_stacked(models) is None
    x, y = batch(case)
    weights = torch.rand(3, 17) if case == "weights" else None
    step = StackedStep(models, SEED, N_DATA)
    losses = step.losses(with_ones(x), y.numpy(), STEP, None if weights is None else weights.numpy())
    edges = models[0].training_grid.edges
    assert edges is not None and len(edges) > {"two steps": 2, "many steps": 4}.get(case, 1)
    for k, network in enumerate(models):
        times = network.double().training_times(17, SEED, STEP)
        network.training_grid.edges = list(edges)  # its own solve would choose steps for its rows only
        target = y.double() if y.is_floating_point() else y
        own_weights = None if weights is None else weights[k].double()
        loss = network.weighted_loss(x.double(), target, own_weights, N_DATA, times)
        loss.backward()
        assert losses[k] == pytest.approx(float(loss.detach()), rel=1e-5)
        named = dict(network.named_parameters())
        for place in step.parameters.places:
            expected = named[place.parameter].grad
            found = torch.tensor(step.parameters.gradients[place.block][(k, *place.where)])
            scale = float(expected.abs().max())
            torch.testing.assert_close(found.double(), expected[place.part], rtol=2e-5, atol=2e-5 * scale)


def test_several_steps_of_the_solver_are_checked_and_refined():
    """A grid that is too coarse for the field fails its check and is searched again; the new one is used."""
    models = networks("many steps")
    x, y = batch("many steps")
    models[0].training_grid.edges = [0.0, 3.0]
    step = StackedStep(models, SEED, N_DATA)
    step.losses(with_ones(x), y.numpy(), STEP)
    grid = models[0].training_grid
    assert grid.edges is not None and len(grid.edges) > 4
    searches = grid.n_searches
    step.parameters.values["A"][:] *= 4
    step.losses(with_ones(x), y.numpy(), STEP + 1)
    assert grid.n_failed_checks >= 1 and grid.n_searches > searches


def test_a_field_that_cannot_be_solved_is_an_error():
    models = networks("labels")
    x, y = batch("labels")
    step = StackedStep(models, SEED, N_DATA)
    step.parameters.values["B"][:] = np.nan
    with pytest.raises(SolverError):
        step.losses(with_ones(x), y.numpy(), STEP)


def test_end_times_of_a_step_do_not_depend_on_the_steps_before():
    """Losses of step 40 in the middle of a training, and of a new step function that begins there, are equal bit for bit."""
    x, y = batch("labels")
    first = StackedStep(networks("labels", 2), SEED, N_DATA)
    torch.manual_seed(0)
    inputs, labels = with_ones(x), y.numpy()
    for number in (0, 31, 32):
        first.losses(inputs, labels, number)
    second = StackedStep(first.parameters.networks, SEED, N_DATA)
    np.testing.assert_array_equal(first.losses(inputs, labels, 40), second.losses(inputs, labels, 40))


def test_updates_are_those_of_torch():
    """Ten updates with random gradients and a changing rate, as `torch.optim.Adam`; float32, hence 1e-5."""
    parameters = StackedParameters(networks("labels", 2))
    reference = nn.Parameter(torch.tensor(parameters.flat))
    ours, theirs = StackedAdam(parameters), torch.optim.Adam([reference], lr=0.01)
    for number in range(10):
        reference.grad = torch.randn_like(reference)
        parameters.flat_gradient[...] = reference.grad.numpy()
        if number == 5:
            state = ours.state_dict()
            ours = StackedAdam(parameters)
            ours.load_state_dict(state)
        ours.lr = theirs.param_groups[0]["lr"] = 0.01 * (1 - number / 10)
        ours.step()
        theirs.step()
    torch.testing.assert_close(torch.tensor(parameters.flat), reference.detach(), rtol=1e-5, atol=1e-6)


def test_averages_are_those_of_the_reference():
    """Ten updates, as `WeightAverage`, from the first one on; float32, hence 1e-6."""
    parameters = StackedParameters(networks("labels", 2))
    copy = torch.tensor(parameters.flat)
    ours, theirs = StackedAverage(parameters, 0.8), WeightAverage([copy], 0.8)
    np.testing.assert_array_equal(ours.value(), parameters.flat)
    for _ in range(10):
        copy += torch.randn_like(copy)
        parameters.flat[...] = copy.numpy()
        ours.update()
        theirs.update()
        torch.testing.assert_close(torch.tensor(ours.value()), theirs.averaged()[0], rtol=1e-6, atol=1e-6)


def test_parameters_survive_the_way_through_the_stack():
    """Loading and storing changes no bit, and an update of the stack reaches every parameter of every network."""
    models = networks("varying noise of two targets")
    before = [[p.detach().clone() for p in network.parameters()] for network in models]
    parameters = StackedParameters(models)
    parameters.store()
    after = [[p.detach() for p in network.parameters()] for network in models]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    parameters.flat += 1
    parameters.store()
    torch.testing.assert_close(after, [[p + 1 for p in own] for own in before])


def test_weight_decay_spares_the_posterior():
    """The gradient grows by the decay times the weights, as in `torch.optim.Adam`, except that of shape and rate."""
    x, y = batch("labels")
    models = networks("labels", 1)
    plain, decayed = StackedStep(models, SEED, N_DATA), StackedStep(models, SEED, N_DATA, weight_decay=0.5)
    for step in (plain, decayed):
        step.losses(with_ones(x), y.numpy(), STEP)
    for name, gradient in plain.parameters.gradients.items():
        share = 0.0 if name.startswith("end_time.") else 0.5
        expected = gradient + share * plain.parameters.values[name]
        np.testing.assert_allclose(decayed.parameters.gradients[name], expected, rtol=1e-5, atol=1e-6)


def test_the_posterior_stays_in_its_range():
    step = StackedStep(networks("labels", 2), SEED, N_DATA)
    step.parameters.values["end_time.alpha"][:] = [-1.0, 1000.0]
    step.constrain()
    np.testing.assert_allclose(step.parameters.values["end_time.alpha"], [0.01, 100.0])


def test_other_networks_are_told_apart():
    spec = InputSpec((3,), "classification", 2)
    supported = [build("lt-node", spec, seed=0)]
    hooked = build("lt-node", spec, seed=0)
    hooked.field.register_forward_hook(lambda *_: None)
    reasons = {
        "augmented": [build("lt-node", spec, seed=0, augment=1)],
        "Gamma": [build("lt-node-mixture", spec, seed=0)],
        "uniform": [build("alt-node", spec, seed=0)],
        "normalised": [build("lt-node", spec, seed=0, objective={"weighting": "integral"})],
        "grid": [build("lt-node", spec, seed=0, solver={"training": "adaptive"})],
        "hook": [hooked],
        "architecture": [*supported, build("lt-node", spec, seed=0, width=8)],
        "options": [*supported, build("lt-node", spec, seed=0, solver={"rtol": 1e-3})],
    }
    assert unsupported_reason_stacked(supported) is None  # type: ignore[arg-type]
    for word, models in reasons.items():
        reason = unsupported_reason_stacked(models)  # type: ignore[arg-type]
        assert reason is not None and word in reason
