"""Ensembles of any model with an end-time: one solve, shares of the members, distance, widening, and saved models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ltnode
from ltnode.errors import InputError
from ltnode.models import Ensemble, InputSpec, LatentTimeODE, build
from ltnode.models.shared_grid import same_grid
from ltnode.training import tensor_file

VECTORS = InputSpec((2,), "classification", 3)
IMAGES = InputSpec((1, 10, 10), "classification", 3)
TARGETS = InputSpec((2,), "regression")
ROUNDING = {"rtol": 1e-5, "atol": 1e-5}
"""One batch of all networks and one batch per network round matrix products differently."""


def ensemble(of: str = "lt-node", data: InputSpec = VECTORS, members: int = 3, fitted: bool = True) -> Ensemble:
    model = build("ensemble", data, seed=0, width=4, members=members, of=of)
    assert isinstance(model, Ensemble)
    for scale, network in enumerate(model.networks, start=1):
        if isinstance(network, LatentTimeODE) and network.end_time.learnable and not network.end_time.amortized:
            with torch.no_grad():
                for p in network.end_time.parameters():
                    p.mul_(1 + 0.3 * scale)  # so that the networks have different end-times
    if fitted:
        x, y = inputs(40, data), targets(40, data)
        model.finish_training(x, y)
        model.fit_familiarity(x, y)
    return model.eval()


def inputs(n: int, data: InputSpec = VECTORS, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, *data.shape, generator=torch.Generator().manual_seed(seed))


def targets(n: int, data: InputSpec = VECTORS, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if data.task == "regression":
        return torch.randn(n, generator=generator)
    return torch.randint(data.n_classes or 0, (n,), generator=generator)


@pytest.mark.parametrize("of", ["node", "uni-node", "lt-node", "alt-node", "lt-node-mixture"])
@pytest.mark.parametrize("data", [VECTORS, IMAGES, TARGETS], ids=["vectors", "images", "regression"])
def test_the_networks_take_turns_at_their_own_end_times(of: str, data: InputSpec) -> None:
    """The reference are the members of every network alone; S = 5 of 3 networks gives two, two and one end-times."""
    model, x = ensemble(of, data), inputs(6, data, seed=1)
    networks = [network for network in model.networks if isinstance(network, LatentTimeODE)]
    assert same_grid(networks)
    with torch.no_grad():
        joint = model.members(x, 5)
        alone = [network.members(x, n) for network, n in zip(networks, (2, 2, 1), strict=True)]
    expected = torch.stack([alone[m].outputs[position] for position, m in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))])
    torch.testing.assert_close(joint.outputs, expected, **ROUNDING)
    distances = [part.distance for part in alone if part.distance is not None]
    torch.testing.assert_close(joint.distance, torch.stack(distances).mean(dim=0), **ROUNDING)
    assert joint.stats is not None
    assert joint.times.shape == ((5, 6) if of == "alt-node" else (5,))


def test_networks_with_different_grids_or_shapes_are_solved_one_by_one() -> None:
    """Their predictions are the averages of the networks', too."""
    mixed = Ensemble([build("node", VECTORS, seed=0, width=4), build("lt-node", VECTORS, seed=1, width=6)])  # type: ignore[list-item]
    first, second = mixed.networks
    assert isinstance(first, LatentTimeODE)
    assert isinstance(second, LatentTimeODE)
    x, y = inputs(30), targets(30)
    mixed.finish_training(x, y)
    mixed.fit_familiarity(x, y)
    assert not same_grid([first, second])
    assert mixed.spec is None
    expected = (first.predict(x, samples=1).probs + second.predict(x, samples=1).probs) / 2
    torch.testing.assert_close(mixed.predict(x, samples=2).probs, expected)
    torch.testing.assert_close(mixed.distance(x), (first.distance(x) + second.distance(x)) / 2)


@pytest.mark.parametrize("of", ["node", "lt-node"])
def test_the_distance_depends_on_the_input_alone(of: str) -> None:
    """Whatever samples, draw, seed and the rest of the batch are; S = 1 answers with one network and measures with all."""
    model, x = ensemble(of), inputs(5, seed=1)
    reference = model.predict(x, samples=10).distance
    assert reference is not None
    for options in ({"samples": 1}, {"samples": 4, "draw": "random", "seed": 3}):
        torch.testing.assert_close(model.predict(x, **options).distance, reference, **ROUNDING)  # type: ignore[arg-type]
    torch.testing.assert_close(model.predict(x[2:3]).distance, reference[2:3], **ROUNDING)
    torch.testing.assert_close(model.distance(x), reference, **ROUNDING)


def test_random_draws_differ_between_networks_and_seeds() -> None:
    model, x = ensemble("uni-node"), inputs(2)
    times = model.predict(x, samples=6, draw="random", seed=0).times
    assert len(times.unique()) == 6
    assert not torch.equal(times, model.predict(x, samples=6, draw="random", seed=1).times)


def test_ranks_and_widening_belong_to_the_ensemble() -> None:
    """The most probable class stays; far away the answer goes to the base rates; p-values are ranks of the mean distance."""
    model, x = ensemble("lt-node"), inputs(30, seed=2)
    plain = model.predict(10 * x)
    model.fit_widening(inputs(40, seed=3), targets(40, seed=3))
    model.calibrate_familiarity(inputs(19, seed=4))
    assert model.n_calibration == 19
    p = model.predict(10 * x)
    assert p.distance is not None
    assert p.familiarity is not None
    temperature_only = torch.softmax(plain.outputs / model.widening.temperature, dim=-1).mean(dim=0)
    assert torch.equal(p.labels, temperature_only.argmax(dim=-1))
    torch.testing.assert_close(p.probs, p.member_probs.mean(dim=0))
    assert bool((p.familiarity[p.distance > model.ranks.distances.max()] == 1 / 20).all())
    assert float(p.probs.max(dim=1).values.mean()) < float(plain.probs.max(dim=1).values.mean())
    model.fit_familiarity(inputs(40), targets(40))
    assert model.n_calibration == 0


def test_profile_and_attribution_are_those_of_the_networks() -> None:
    model, x = ensemble("lt-node"), inputs(3, seed=1)
    times, profile = model.path_profile(x)
    own = [network.path_profile(x)[1] for network in model.networks if isinstance(network, LatentTimeODE)]
    torch.testing.assert_close(profile, torch.stack(own).mean(dim=0))
    assert len(times) == len(profile)
    assert model.attribute_distance(x).shape == (3, 2)


def test_training_roles_are_those_of_the_networks() -> None:
    """The posteriors of an ensemble have the role that they have in one network."""
    model = ensemble("lt-node", fitted=False)
    assert len(model.parameter_roles()["variational"]) == 3 * len(model.networks[0].parameter_roles()["variational"])  # type: ignore[operator]
    assert model.soft_targets


@pytest.mark.parametrize("of", ["node", "alt-node"])
def test_ensembles_are_saved_and_loaded(tmp_path: Path, of: str) -> None:
    model, x = ensemble(of), inputs(4)
    model.fit_widening(inputs(20, seed=3), targets(20, seed=3))
    model.calibrate_familiarity(inputs(19, seed=4))
    again = ltnode.load(ltnode.save(model, tmp_path / "saved"))
    a, b = model.predict(x), again.predict(x)
    for name in ("outputs", "distance", "familiarity"):
        assert torch.equal(getattr(a, name), getattr(b, name))


def test_folders_of_earlier_versions_load(tmp_path: Path) -> None:
    """They called the networks members, and knew neither ``of`` nor familiarity."""
    model = build("ensemble", VECTORS, seed=0, width=4, members=2)
    folder = ltnode.save(model, tmp_path / "old")
    known = ("stem.", "field.", "head.", "grid", "end_time.")
    old = {}
    for name, value in tensor_file.read(folder / "model.safetensors").items():
        first, number, rest = name.split(".", 2) if name.startswith("networks.") else ("", "", name)
        if first and rest.startswith(known):
            old[f"members.{number}.{rest}"] = value
    (folder / "model.safetensors").write_bytes(tensor_file.to_bytes(old))
    loaded = ltnode.load(folder)
    x = inputs(3)
    assert torch.equal(loaded.predict(x).outputs, model.predict(x).outputs)
    assert not loaded.has_familiarity


@pytest.mark.no_typecheck
def test_what_cannot_be_an_ensemble_is_refused() -> None:
    with pytest.raises(InputError, match="models with an end-time such as node and lt-node, not of SDENet"):
        Ensemble([build("sde-net", VECTORS)])  # type: ignore[list-item]
    with pytest.raises(InputError, match="model of an ensemble"):
        build("ensemble", VECTORS, of="sde-net")


def test_weights_of_examples_count_in_every_network() -> None:
    """The reference is the sum of the networks' own losses at the same end-times, which are those of a network alone."""
    model, x, y = ensemble(fitted=False), inputs(6), targets(6)
    times = model.training_times(6, 3, 5)
    assert times is not None
    weights = torch.tensor([0.0, 2.0, 1.0, 1.0, 0.5, 1.5])
    networks = [network for network in model.networks if isinstance(network, LatentTimeODE)]
    torch.testing.assert_close(times, networks[1].training_times(6, 3, 5), rtol=0, atol=0)
    alone = sum(network.weighted_loss(x, y, weights, 100, times) for network in networks)
    torch.testing.assert_close(model.weighted_loss(x, y, weights, 100, times), alone, rtol=1e-6, atol=1e-6)
    assert not torch.allclose(alone, model.loss(x, y, 100, times))


def test_familiarity_is_forgotten_by_the_ensemble_and_its_networks() -> None:
    model = ensemble()
    model.calibrate_familiarity(inputs(20))
    model.forget_familiarity()
    assert not model.has_familiarity and model.n_calibration == 0
    assert model.predict(inputs(2)).distance is None
