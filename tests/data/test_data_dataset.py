"""Data sets: user arrays are accepted or rejected with a remedy, splits are disjoint and seeded, problems are as defined."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ltnode.data import Augmentation, Dataset, Normalisation, Split, concentric_annuli, gap_data, gap_grid, reflection
from ltnode.errors import InputError


def vectors(n: int = 12, d: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def labels(n: int = 12, classes: int = 3) -> np.ndarray:
    return np.arange(n) % classes


def test_numpy_torch_and_lists_give_the_same_data_set() -> None:
    x, y = vectors().astype(np.float32), labels()
    sets = [Dataset.from_arrays(*pair) for pair in ((x, y), (torch.from_numpy(x), torch.from_numpy(y)), (x.tolist(), y.tolist()))]
    for data in sets:
        torch.testing.assert_close(data.train.x, sets[0].train.x, rtol=0, atol=0)
        assert torch.equal(data.train.y, sets[0].train.y)
        assert data.checksums == sets[0].checksums
    assert sets[0].train.x.dtype == torch.float32
    assert (sets[0].n_classes, sets[0].input_shape, sets[0].n_train) == (3, (3,), 10)


def test_an_own_test_split_is_kept_as_given() -> None:
    data = Dataset.from_arrays(vectors(), labels(), vectors(5, seed=1), labels(5))
    assert data.n_train == 12
    np.testing.assert_array_equal(data.test.x.numpy(), vectors(5, seed=1).astype(np.float32))


def test_images_get_a_channel_and_stay_uint8() -> None:
    data = Dataset.from_arrays(np.zeros((10, 8, 9), np.uint8), labels(10))
    assert data.input_shape == (1, 8, 9)
    assert data.train.x.dtype == torch.uint8
    assert data.is_image


@pytest.mark.parametrize("order", [">f4", "<f8", "<i2"])
def test_any_byte_order_and_number_type_of_vectors_is_taken(order: str) -> None:
    x = np.arange(24).reshape(8, 3).astype(order)
    data = Dataset.from_arrays(x, labels(8), x, labels(8))
    np.testing.assert_array_equal(data.train.x.numpy(), x.astype(np.float32))


def test_regression_targets_of_shape_n_1_become_n() -> None:
    data = Dataset.from_arrays(vectors(), vectors(d=1), task="regression", dtype=torch.float64)
    assert data.train.y.ndim == 1
    assert data.train.y.dtype == data.train.x.dtype == torch.float64
    assert data.n_classes is None


def _with(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array.flat[3] = value
    return array


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"x": _with(vectors(), np.nan)}, "NaN or inf in 1 of"),
        ({"x": _with(vectors(), np.inf)}, "NaN or inf in 1 of"),
        ({"x": _with(vectors(), 1e300)}, "NaN or inf in 1 of"),  # too large for float32
        ({"y": labels()[:-1]}, "12 inputs but 11 targets"),
        ({"y": labels().astype(float)}, "needs integer labels"),
        ({"y": labels() - 1}, "labels range from -1 to 1, but 2 classes allow 0 to 1"),
        ({"n_classes": 2}, "labels range from 0 to 2, but 2 classes allow 0 to 1"),
        ({"y": np.array(list("abcabcabcabc"))}, "numpy.unique"),
        ({"y": np.stack([labels(), labels()], 1)}, "must have shape"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, "x must not be empty"),
        ({"x_test": np.zeros((0, 3)), "y_test": np.zeros(0, int)}, "x_test must not be empty"),
        ({"x": vectors(1), "y": labels(1)}, "at least 2 examples, not 1"),
        ({"x": np.zeros((12, 0))}, "must not be empty"),
        ({"x": vectors()[:, 0]}, r"x.reshape\(-1, 1\)"),
        ({"x": np.zeros((12, 8, 8, 3), np.uint8)}, "channels-last"),
        ({"x": np.zeros((12, 8, 8), np.int64)}, "images must be uint8, or float"),
        ({"x": np.zeros((12, 2, 2, 2, 2))}, "must be"),
        ({"x": [[1.0, 2.0], [3.0]]}, "must be a numeric array"),
        ({"x": np.zeros((12, 3), complex)}, "real numbers"),
        ({"x_test": vectors()}, "pass both x_test and y_test"),
        ({"x_test": vectors(d=4), "y_test": labels()}, "same shape after the first dimension"),
        ({"x_test": vectors(), "y_test": labels() + 1}, "test: labels range from 1 to 3"),
        ({"task": "regresion", "y": vectors(d=1)}, "Did you mean 'regression'"),
        ({"task": "regression", "y": _with(vectors(d=1), np.nan)}, "NaN or inf in 1 of"),
        ({"task": "regression", "y": np.zeros((12, 3, 2)), "x": vectors()}, "must have shape"),
        ({"task": "regression", "n_classes": 3}, "regression has no classes"),
        ({"class_names": ("a", "b")}, "2 class names for 3 classes"),
        ({"test_fraction": 0.0}, "strictly between 0 and 1"),
        ({"augment": Augmentation(2)}, "need images"),
    ],
)
@pytest.mark.no_typecheck
def test_bad_arrays_get_an_error_that_says_what_to_do(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(InputError, match=why):
        Dataset.from_arrays(**({"x": vectors(), "y": labels(), "test_fraction": 0.1} | arguments))


def test_large_finite_values_are_not_mistaken_for_inf() -> None:
    """The sum of these values overflows in float32, but the values are finite."""
    x = np.full((12, 3), 3e38, np.float32)
    assert Dataset.from_arrays(x, labels(), standardise=False).n_train == 10


@given(n=st.integers(2, 60), fraction=st.floats(0.01, 0.99), seed=st.integers(0, 2**32))
def test_validation_and_training_examples_are_disjoint_and_complete(n: int, fraction: float, seed: int) -> None:
    x = torch.arange(n, dtype=torch.float32)[:, None]
    data = Dataset.from_arrays(x, torch.arange(n, dtype=torch.float32), x, x, task="regression")
    rest, held = data.with_validation(fraction, seed)
    assert sorted(rest.train.y.tolist() + held.y.tolist()) == list(range(n))
    assert len(held) == min(n - 1, max(1, round(n * fraction)))
    assert torch.equal(rest.train.x[:, 0], rest.train.y)
    again, _ = data.with_validation(fraction, seed)
    assert torch.equal(again.train.x, rest.train.x)


def test_a_subset_is_seeded_without_repetition_and_recorded() -> None:
    data = gap_data(100)
    parts = [data.subset(40, seed) for seed in (0, 0, 1)]
    assert torch.equal(parts[0].train.x, parts[1].train.x)
    assert not torch.equal(parts[0].train.x, parts[2].train.x)
    assert len(parts[0].train.x.unique()) == 40
    assert parts[0].checksums["train_indices"] != parts[2].checksums["train_indices"]
    assert data.subset(100) is data
    assert torch.equal(parts[0].test.x, data.test.x)
    for n in (0, 101):
        with pytest.raises(InputError, match=f"must lie in 1..100, .* not {n}"):
            data.subset(n)


def test_provenance_is_json_with_the_md5_of_the_arrays() -> None:
    data = reflection(10)
    told = json.loads(json.dumps(data.provenance()))
    assert told["checksums"]["train_x"] == "md5:" + hashlib.md5(data.train.x.numpy().tobytes()).hexdigest()
    assert (told["name"], told["source"], told["verified"]) == ("reflection", "generated", True)


def test_prepare_augments_only_with_indices_and_then_normalises() -> None:
    rng = np.random.default_rng(0)
    data = Dataset.from_arrays(rng.integers(0, 256, (10, 1, 8, 8), dtype=np.uint8), labels(10), augment=Augmentation(2))
    x, indices = data.train.x, torch.arange(8)
    assert data.normalise is not None
    assert torch.equal(data.prepare(x), data.normalise.apply(x))
    assert data.augment is not None
    augmented = data.augment.apply(x, seed=3, epoch=2, indices=indices)
    assert torch.equal(data.prepare(x, seed=3, epoch=2, indices=indices), data.normalise.apply(augmented))
    plain = Dataset.from_arrays(vectors(), labels(), standardise=False)
    assert plain.prepare(plain.train.x) is plain.train.x


def test_prepare_accepts_numpy() -> None:
    """In the dtype of the training inputs, and equal to the result for tensors; images may lack their channel."""
    data = Dataset.from_arrays(vectors(), labels())
    prepared = data.prepare(vectors(4, seed=1))
    assert prepared.dtype == torch.float32
    assert torch.equal(prepared, data.prepare(torch.from_numpy(vectors(4, seed=1)).float()))
    assert torch.equal(data.prepare(vectors(4, seed=1)[::-1]), prepared.flip(0))
    pixels = np.random.default_rng(0).integers(0, 256, (10, 8, 8), dtype=np.uint8)
    data = Dataset.from_arrays(pixels, labels(10))
    assert torch.equal(data.prepare(pixels), data.prepare(torch.from_numpy(pixels)[:, None]))
    with pytest.raises(InputError, match="must be a numeric array"):
        data.prepare("a name")


def test_printed_forms_are_one_line() -> None:
    data = Dataset.from_arrays(np.zeros((10, 1, 8, 8), np.uint8), labels(10), name="tiny")
    text = "tiny: classification with 3 classes, 8 training and 2 test examples of shape (1, 8, 8), uint8"
    assert repr(data) == f"Dataset({text})"
    assert repr(gap_data(10)) == "Dataset(gap: regression, 10 training and 2 test examples of shape (1,), float32)"
    assert repr(data.test) == "Split(2 examples: x uint8 of shape (2, 1, 8, 8), y int64 of shape (2,))"


def test_a_split_moves_as_a_whole_and_keeps_its_dtype() -> None:
    split = Split(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.arange(3)).to("meta")
    assert split.x.device.type == split.y.device.type == "meta"
    assert split.x.dtype == torch.uint8


def test_gap_data_is_foongs_function_on_two_intervals() -> None:
    """The std of the residuals is within 4 standard errors of 0.1: 0.1 * 4 / sqrt(2 * 1500) = 0.0073."""
    data = gap_data()
    x, y = data.train.x[:, 0], data.train.y
    left, right = x[:750], x[750:]
    assert data.train.x.shape == (1500, 1)
    assert len(data.test) == 300
    assert left.min() > -1 and left.max() < -0.7
    assert right.min() > 0.5 and right.max() < 1
    residual = y - torch.cos(4 * x + 0.8)
    assert abs(residual.std().item() - 0.1) < 0.0073
    assert abs(residual.mean().item()) < 4 * 0.1 / 1500**0.5
    assert data.normalise is None


def test_generated_data_depend_on_the_seed_alone() -> None:
    """Neither the global generator nor the default dtype has an effect."""
    reference = gap_data(50, seed=5)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(99)
    assert gap_data(50, seed=5).checksums == reference.checksums
    assert gap_data(50, seed=6).checksums != reference.checksums


def test_the_grid_has_the_known_positions() -> None:
    """Indices of the interval ends on the grid -2, -1.995, ... of the 1-D figures."""
    grid = gap_grid()
    assert grid.shape == (800, 1)
    np.testing.assert_allclose(grid[[0, 200, 260, 500, 799], 0], [-2, -1, -0.7, 0.5, 1.995], atol=1e-7)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_concentric_classes_lie_in_ball_and_annulus_uniformly(dim: int) -> None:
    """r^dim is uniform within each class, so its mean is at the middle of its range within 4 standard errors."""
    data = concentric_annuli(2000, seed=1, dim=dim)
    radius = data.train.x.norm(dim=1).double()
    for label, (low, high) in enumerate(((0.0, 0.5), (1.0, 1.5))):
        volume = radius[data.train.y == label] ** dim
        assert len(volume) == 1000
        assert volume.min() >= low**dim - 1e-6 and volume.max() <= high**dim + 1e-6
        span = high**dim - low**dim
        assert abs(volume.mean().item() - (low**dim + high**dim) / 2) < 4 * span / 12**0.5 / 1000**0.5
    assert data.train.x.mean(0).abs().max() < 0.2  # directions are balanced


def test_reflection_maps_x_to_minus_x() -> None:
    data = reflection(100)
    assert torch.equal(data.train.y, -data.train.x[:, 0])
    assert data.train.x.min() < -0.8 and data.train.x.max() > 0.8


@pytest.mark.parametrize("make", [gap_data, concentric_annuli, reflection])
def test_too_few_points_are_refused(make: object) -> None:
    with pytest.raises(InputError, match="at least 2"):
        make(1)  # type: ignore[operator]


def test_constant_features_are_normalised_to_zero() -> None:
    x = torch.stack([torch.full((10,), 7.0), torch.linspace(0, 1, 10)], 1)
    got = Normalisation.fitted(x).apply(x)
    assert torch.equal(got[:, 0], torch.zeros(10))
    torch.testing.assert_close(got[:, 1].std(correction=0), torch.tensor(1.0))
