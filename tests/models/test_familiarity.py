"""The distance of a path, its rank, and what may not change them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from torch import nn

import ltnode
from ltnode.errors import InputError
from ltnode.models.familiarity import Ranks, TiedGaussian, check_calibration_size, shrunk_covariance
from ltnode.models.path import path_features

NAMES = ("node", "uni-node", "lt-node", "alt-node", "lt-node-mixture")


def vectors(n: int, seed: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (n,), generator=generator)
    centres = torch.tensor([[0.0, 0.0, 1.0, 1.0], [2.0, 0.0, -1.0, 0.0], [0.0, 2.0, 0.0, -1.0]])
    return scale * (centres[y] + 0.3 * torch.randn(n, 4, generator=generator)), y


def fitted(name: str = "lt-node", seed: int = 0) -> ltnode.Model:
    model = ltnode.build(name, ltnode.InputSpec((4,), "classification", 3), seed=seed)
    model.fit_familiarity(*vectors(200, 1))
    model.fit_widening(*vectors(60, 2))
    model.calibrate_familiarity(vectors(99, 3)[0])
    return model


def test_shrunk_covariance_equals_scikit_learn():
    """The OAS estimate of centred rows agrees with scikit-learn's, to the ridge of 1e-6 that ours adds."""
    x = np.random.default_rng(0).normal(size=(30, 50)) @ np.random.default_rng(1).normal(size=(50, 50))
    oracle = OAS(assume_centered=True).fit(x).covariance_
    ours = shrunk_covariance(torch.tensor(x)).numpy()
    np.testing.assert_allclose(ours, oracle, rtol=1e-9, atol=3e-6 * oracle.diagonal().mean())


def test_a_density_is_the_mahalanobis_distance_to_the_nearest_class():
    """The reference is the formula in float64; half-precision factors are accurate to about 1e-3."""
    x, y = vectors(500, 0)
    density = TiedGaussian()
    density.fit(x.double(), y)
    new = vectors(20, 5, scale=2.0)[0].double()
    means = torch.stack([x[y == c].double().mean(0) for c in range(3)])
    scale = x.double().std(0, correction=0)
    covariance = shrunk_covariance((x.double() - means[y]) / scale)
    deviations = (new[:, None] - means) / scale
    squared = torch.einsum("bci,ij,bcj->bc", deviations, torch.linalg.inv(covariance), deviations).amin(1)
    torch.testing.assert_close(density(new).exp() * 4, squared, rtol=1e-2, atol=1e-4)


def test_ranks_are_conformal_p_values():
    """p = (1 + #{calibration >= d}) / (n + 1), by counting."""
    ranks = Ranks()
    ranks.fit(torch.tensor([3.0, 1.0, 2.0, 2.0]))
    torch.testing.assert_close(
        ranks(torch.tensor([0.0, 2.0, 2.5, 9.0])), torch.tensor([5.0, 4.0, 2.0, 1.0], dtype=torch.float64) / 5
    )


def test_the_smallest_rank_of_19_examples_reaches_a_rate_of_5_percent():
    """1/20 must not be rounded above 0.05, or nothing could ever be flagged."""
    ranks = Ranks()
    ranks.fit(torch.arange(19.0))
    assert float(ranks(torch.tensor([100.0]))) <= 0.05


@pytest.mark.parametrize("name", NAMES)
def test_a_distance_depends_on_the_input_alone(name):
    """Samples, draw, seed, other inputs and order leave the distance unchanged, to float32 rounding of other batch shapes."""
    model = fitted(name)
    x = vectors(12, 7, scale=3.0)[0]
    expected = model.predict(x).distance
    for prediction in (model.predict(x, samples=3), model.predict(x, draw="random", seed=5)):
        torch.testing.assert_close(prediction.distance, expected, rtol=1e-5, atol=1e-5)
    alone = torch.cat([model.predict(row[None], samples=1).distance for row in x])
    torch.testing.assert_close(alone, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.distance(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_far_inputs_are_unfamiliar(name):
    """Inputs ten times as far out as any training input have a smaller familiarity than typical ones, which can be flagged."""
    model = fitted(name)
    near, far = model.predict(vectors(50, 8)[0]), model.predict(vectors(50, 8, scale=10.0)[0])
    assert far.distance.min() > near.distance.median()
    assert (far.familiarity <= 0.05).all()
    assert (near.familiarity > 0.05).float().mean() > 0.8


def test_a_saved_model_keeps_its_familiarity(tmp_path):
    """Distances, ranks and widened answers of a loaded model are the same bits; without a fit there is none."""
    model = fitted()
    x = vectors(9, 4, scale=4.0)[0]
    ltnode.save(model, tmp_path / "m")
    loaded = ltnode.load(tmp_path / "m")
    for name in ("distance", "familiarity", "probs"):
        assert torch.equal(getattr(loaded.predict(x), name), getattr(model.predict(x), name))
    plain = ltnode.build("lt-node", ltnode.InputSpec((4,), "classification", 3)).predict(x)
    assert plain.distance is None and plain.familiarity is None


def test_without_calibration_there_is_a_distance_but_no_familiarity():
    """A model that held nothing out says so by None."""
    model = ltnode.build("lt-node", ltnode.InputSpec((4,), "classification", 3))
    model.fit_familiarity(vectors(100, 0)[0])
    p = model.predict(vectors(5, 1)[0])
    assert p.distance.shape == (5,) and p.familiarity is None


def test_fewer_rows_than_features_are_enough():
    """Five rows in a space of 7 x 32 features still give finite distances that grow with the distance of the input."""
    model = ltnode.build("lt-node", ltnode.InputSpec((4,), "regression", None))
    x = vectors(5, 0)[0]
    model.fit_familiarity(x, x[:, 0])
    d = torch.stack([model.distance(s * x).mean() for s in (1.0, 10.0, 100.0)])
    assert torch.isfinite(d).all() and d[0] < d[1] < d[2]


class _Field(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, t: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(h))


@pytest.mark.parametrize(
    ("shape", "stem", "field", "head"),
    [
        ((6, 8), nn.Identity(), nn.Linear(8, 8), nn.Sequential(nn.Flatten(), nn.Linear(48, 3))),
        ((2, 5, 5), nn.Conv2d(2, 6, 3), nn.Conv2d(6, 6, 3, padding=1), nn.Sequential(nn.Flatten(), nn.Linear(54, 3))),
        ((1, 3, 3, 3), nn.Identity(), nn.Conv3d(1, 1, 3, padding=1), nn.Sequential(nn.Flatten(), nn.Linear(27, 3))),
        ((1300,), nn.Identity(), nn.Linear(1300, 1300), nn.Linear(1300, 3)),
    ],
    ids=["sequence", "image", "volume", "wide"],
)
def test_own_parts_of_any_state_shape_have_a_distance(shape, stem, field, head):
    """Inputs that are ten times larger than those of the fit are farther away, whatever the shape of the state is."""
    model = ltnode.LatentTimeODE(copy.deepcopy(stem), _Field(copy.deepcopy(field)), copy.deepcopy(head), ltnode.GammaTime())
    x = torch.randn(40, *shape)
    model.fit_familiarity(x, torch.randint(3, (40,)))
    assert model.distance(10 * x).min() > model.distance(x).median()


def test_wide_features_are_bounded():
    """The memory of the density does not grow with the width of the state."""
    assert path_features(torch.randn(7, 2, 5000), None).states.shape == (7, 2, 512)


def test_columns_that_make_a_row_unfamiliar_are_named():
    """A row that is typical but for one column gets its largest attribution there."""
    model = fitted()
    x = vectors(10, 6)[0]
    x[:, 2] += 30.0
    parts = model.attribute_distance(x)
    assert parts.shape == (10, 4) and (parts.argmax(1) == 2).all()


def test_the_profile_of_training_inputs_is_about_one():
    """The unit is the deviation of a typical input of the fit, at every time; far inputs deviate more."""
    model = fitted()
    times, profile = model.path_profile(vectors(200, 1)[0])
    assert times.shape == (7,) and profile.shape == (7, 200)
    torch.testing.assert_close(profile.median(1).values, torch.ones(7))
    assert (model.path_profile(vectors(20, 1, scale=10.0)[0])[1].mean(1) > 2 * profile.mean(1)).all()


def test_a_rate_that_no_rank_reaches_is_named():
    """With 18 examples the smallest p-value is 1/19 > 0.05; 19 examples suffice."""
    assert "0.0526" in check_calibration_size(18, 0.05) and "19 examples" in check_calibration_size(18, 0.05)
    assert check_calibration_size(19, 0.05) is None
    with pytest.raises(InputError, match="between 0 and 1"):
        check_calibration_size(10, 1.5)


def test_a_model_without_a_fit_explains_what_to_call():
    """Distances need a density."""
    model = ltnode.build("lt-node", ltnode.InputSpec((4,), "classification", 3))
    with pytest.raises(InputError, match="fit_familiarity"):
        model.calibrate_familiarity(vectors(5, 0)[0])
