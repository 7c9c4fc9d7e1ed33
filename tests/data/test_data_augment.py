"""Normalisation and augmentation: the formulas, and crops that depend only on (seed, epoch, index)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ltnode.counter_rng import split_mix_int
from ltnode.data import Augmentation, CropOffsets, Normalisation, augmentation_offsets
from ltnode.errors import InputError

CIFAR = Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def images(n: int = 6, channels: int = 3, size: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, channels, size, size), generator=generator, dtype=torch.uint8)


def test_normalisation_is_the_formula_in_float64() -> None:
    """Reference: numpy in float64; float32 rounding of values up to 2.8 is below 1e-6."""
    x = images()
    mean, std = (np.array(v)[None, :, None, None] for v in (CIFAR.mean, CIFAR.std))
    expected = (x.numpy() / 255 - mean) / std
    np.testing.assert_allclose(CIFAR.apply(x).numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(CIFAR.apply(x, dtype=torch.float64).numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(CIFAR.apply(x.double() / 255).numpy(), expected, atol=1e-12)


def test_normalisation_leaves_its_input_alone_and_has_a_gradient_for_float_input() -> None:
    raw = images()
    before = raw.clone()
    CIFAR.apply(raw)
    assert torch.equal(raw, before)
    x = (raw.double() / 255).requires_grad_()
    with torch.inference_mode():
        CIFAR.apply(x)  # the cached constants must also work outside of inference mode
    CIFAR.apply(x).sum().backward()
    torch.testing.assert_close(x.grad, (1 / torch.tensor(CIFAR.std, dtype=torch.float64))[None, :, None, None].expand_as(x))


def test_fitted_constants_are_numpys() -> None:
    x = images(20)
    fitted = Normalisation.fitted(x)
    np.testing.assert_allclose(fitted.mean, (x.numpy() / 255).mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(fitted.std, (x.numpy() / 255).std((0, 2, 3)), rtol=1e-12)
    vectors = torch.randn(30, 4)
    np.testing.assert_allclose(Normalisation.fitted(vectors).std, vectors.double().numpy().std(0), rtol=1e-12)


@pytest.mark.no_typecheck
def test_wrong_constants_and_shapes_are_refused() -> None:
    for mean, std in (((0.0,), (1.0, 1.0)), ((), ()), ((0.0,), (0.0,)), ((0.0,), (float("nan"),))):
        with pytest.raises(InputError):
            Normalisation(mean, std)
    with pytest.raises(InputError, match="must have 3 channels"):
        CIFAR.apply(images(channels=1))
    with pytest.raises(InputError, match="0 or more pixels"):
        Augmentation(-1)
    with pytest.raises(InputError, match="one index per image"):
        Augmentation(2).apply(images(6), seed=0, epoch=0, indices=torch.arange(5))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crops_are_slices_of_the_zero_padded_image(dtype: torch.dtype) -> None:
    """Reference: numpy slicing of the padded array, then a flip; exact."""
    x = images(6).to(dtype)
    offsets = CropOffsets(torch.tensor([0, 4, 2, 1, 3, 0]), torch.tensor([0, 4, 2, 3, 0, 4]), torch.tensor([False, True] * 3))
    got = Augmentation(padding=2, flip=True).crop(x, offsets).numpy()
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    for k, (top, left, flip) in enumerate(zip(*(o.tolist() for o in offsets), strict=True)):
        crop = padded[k, :, top : top + 8, left : left + 8]
        np.testing.assert_array_equal(got[k], crop[:, :, ::-1] if flip else crop)


def test_the_hash_is_splitmix64() -> None:
    """Published test vector: the first outputs of SplitMix64 from state 0."""
    golden = 0x9E3779B97F4A7C15
    first = [split_mix_int(k * golden) for k in range(3)]
    assert first == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(
    seed=st.integers(-(2**70), 2**70),
    epoch=st.integers(0, 2**40),
    index=st.integers(0, 2**62),
    padding=st.integers(0, 8),
)
def test_offsets_equal_a_computation_with_python_integers(seed: int, epoch: int, index: int, padding: int) -> None:
    """The tensor arithmetic wraps like unsigned 64-bit integers."""
    word = 1 << 64
    key = split_mix_int((split_mix_int(seed % word) + epoch) % word)
    z = split_mix_int((index * 0x9E3779B97F4A7C15 + key) % word)
    got = augmentation_offsets(seed, epoch, torch.tensor([index]), padding=padding, flip=True)
    draws = [(z >> shift) % 2**21 for shift in (0, 21)]
    assert [got.top.item(), got.left.item()] == [draw * (2 * padding + 1) >> 21 for draw in draws]
    assert got.flip.item() == bool((z >> 42) & 1)


@given(order=st.permutations(list(range(12))), cut=st.integers(1, 11), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_augmentation_does_not_depend_on_batching_or_order(order: list[int], cut: int, seed: int, epoch: int) -> None:
    """Two parts in any order, as in two processes, give exactly the crops of one batch."""
    x, augment = images(12), Augmentation(2, flip=True)
    whole = augment.apply(x, seed=seed, epoch=epoch, indices=torch.arange(12))
    shuffled = torch.tensor(order)
    for part in (shuffled[:cut], shuffled[cut:]):
        assert torch.equal(augment.apply(x[part], seed=seed, epoch=epoch, indices=part), whole[part])


def test_offsets_are_uniform_and_independent() -> None:
    """Chi-squared statistics of 100,000 draws below the 99.99 % quantile; fixed seeds, so the test is deterministic."""
    from scipy.stats import chi2

    n, span = 100_000, 9
    for seed, epoch in ((0, 0), (1, 0), (0, 1)):
        got = augmentation_offsets(seed, epoch, torch.arange(n), padding=4, flip=True)
        cells = (got.top * span + got.left) * 2 + got.flip
        counts = torch.bincount(cells, minlength=span * span * 2).double()
        expected = n / counts.numel()
        assert ((counts - expected) ** 2 / expected).sum().item() < chi2.ppf(0.9999, counts.numel() - 1)


@pytest.mark.parametrize("other", [(1, 0), (0, 1)])
def test_another_seed_or_epoch_gives_unrelated_crops(other: tuple[int, int]) -> None:
    """Two independent draws of 81 crops agree in 1/81 of 20,000 cases; 5 standard errors are 0.0039."""
    first, second = (augmentation_offsets(*key, torch.arange(20_000), padding=4) for key in ((0, 0), other))
    agree = ((first.top == second.top) & (first.left == second.left)).double().mean().item()
    assert abs(agree - 1 / 81) < 0.0039


def test_without_flip_nothing_is_mirrored_and_without_padding_nothing_moves() -> None:
    x = images(50)
    assert torch.equal(Augmentation().apply(x, seed=0, epoch=0, indices=torch.arange(50)), x)
    assert not augmentation_offsets(0, 0, torch.arange(50), padding=4).flip.any()


@pytest.mark.gpu
def test_the_device_gives_the_same_pixels_as_the_cpu() -> None:
    """Crops are exact due to integer arithmetic; the normalised batch is equal up to float32 rounding."""
    x, indices = images(64, size=32), torch.arange(64) * 1_000_003
    augment = Augmentation(4, flip=True)
    on_cpu = augment.apply(x, seed=7, epoch=3, indices=indices)
    on_gpu = augment.apply(x.cuda(), seed=7, epoch=3, indices=indices.cuda())
    assert torch.equal(on_gpu.cpu(), on_cpu)
    torch.testing.assert_close(CIFAR.apply(on_gpu).cpu(), CIFAR.apply(on_cpu), rtol=0, atol=1e-6)
