"""Shifts of images: rotation is compared with Pillow, corruptions with scipy, matplotlib and Pillow."""

from __future__ import annotations

import io

import matplotlib.colors
import numpy as np
import pytest
import scipy.ndimage
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from ltnode.errors import InputError, MissingExtraError
from ltnode.evaluation import shifts


def photo_patches(size: int, n: int = 12) -> torch.Tensor:
    """(n, 3, size, size) uint8 patches of a photograph: smooth areas, texture and edges, bright up to the border."""
    photo = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)
    corners = np.random.default_rng(0).integers(0, (photo.shape[1] - size, photo.shape[2] - size), (n, 2))
    return torch.stack([photo[:, r : r + size, c : c + size] for r, c in corners])


def structured(height: int, width: int) -> torch.Tensor:
    """White, a frame of one pixel, a chessboard, a ramp, and noise, with one channel."""
    frame = torch.zeros(height, width)
    frame[0], frame[-1], frame[:, 0], frame[:, -1] = 255, 255, 255, 255
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    noise = torch.randint(256, (height, width))
    images = [torch.full_like(frame, 255), frame, (rows + columns) % 2 * 255, columns * 255 // width, noise]
    return torch.stack([image.to(torch.uint8) for image in images])[:, None]


def to_pillow(image: torch.Tensor) -> Image.Image:
    pixels = image.permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def from_pillow(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1)


def rotate_with_pillow(images: torch.Tensor, degrees: float) -> torch.Tensor:
    fill = 0 if images.shape[1] == 1 else (0, 0, 0)
    rotated = (
        to_pillow(image).rotate(degrees, resample=Image.Resampling.BILINEAR, expand=False, fillcolor=fill) for image in images
    )
    return torch.stack([from_pillow(image) for image in rotated])


@pytest.mark.parametrize("size", [28, 32])
@pytest.mark.parametrize("degrees", shifts.PAPER_ROTATIONS)
def test_rotation_equals_pillow(size, degrees):
    """uint8 images agree bit for bit (the same float64 formula); unrounded floats differ by less than one level of 255."""
    for images in (structured(size, size), photo_patches(size), photo_patches(size)[:, :1]):
        expected = rotate_with_pillow(images, degrees)
        rotated = shifts.rotate(images, degrees)
        assert rotated.dtype == torch.uint8
        assert torch.equal(rotated, expected)
        as_float = shifts.rotate(images.double() / 255, degrees)
        assert (as_float - expected.double() / 255).abs().max() <= 1 / 255


@pytest.mark.parametrize("degrees", [-30, 0, 1e-3, 37.5, 90, 180, 225.0, 270, 359.9, 400])
def test_rotation_of_other_shapes_and_angles_equals_pillow(degrees):
    """Images that are not square have no exact quarter turn of the same size: Pillow interpolates, and so does `rotate`."""
    for height, width in ((5, 8), (9, 4), (1, 3)):
        images = structured(height, width)
        assert torch.equal(shifts.rotate(images, degrees), rotate_with_pillow(images, degrees))


def test_rotation_is_counter_clockwise_and_quarter_turns_compose():
    """A mark at the right edge moves to the top by 90 degrees; four quarter turns are the identity."""
    images = torch.zeros(1, 1, 5, 5, dtype=torch.uint8)
    images[0, 0, 2, 4] = 200
    assert shifts.rotate(images, 90)[0, 0, 0, 2] == 200
    noise = structured(28, 28)
    turned = noise
    for _ in range(4):
        turned = shifts.rotate(turned, 90)
    assert torch.equal(turned, noise)


def test_rotation_in_blocks_equals_one_by_one():
    """More images than one block, and each image alone, give the same result: images do not influence each other."""
    images = torch.randint(256, (shifts._ROTATION_BLOCK + 3, 1, 6, 6), dtype=torch.uint8)
    rotated = shifts.rotate(images, 33)
    for i in (0, shifts._ROTATION_BLOCK - 1, shifts._ROTATION_BLOCK, len(images) - 1):
        assert torch.equal(rotated[i : i + 1], shifts.rotate(images[i : i + 1], 33))


def level(name: str, severity: int) -> float:
    return shifts.CORRUPTIONS[name].levels[severity - 1]


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_corruptions_equal_their_references(severity):
    """References: scipy (blur), matplotlib's HSV (brightness), numpy (contrast); one level of 255 for rounding in float32."""
    images = photo_patches(32, 4)
    exact = images.double().numpy() / 255

    def check(name: str, expected: np.ndarray) -> None:
        corrupted = shifts.corrupt(images, name, severity)
        assert corrupted.dtype == torch.uint8
        assert np.abs(corrupted.numpy() - 255 * np.clip(expected, 0, 1)).max() <= 1

    sigma = level("gaussian-blur", severity)
    check("gaussian-blur", scipy.ndimage.gaussian_filter(exact, (0, 0, sigma, sigma), mode="nearest", truncate=4.0))
    mean = exact.mean((2, 3), keepdims=True)
    check("contrast", (exact - mean) * level("contrast", severity) + mean)
    hsv = matplotlib.colors.rgb_to_hsv(exact.transpose(0, 2, 3, 1))
    hsv[..., 2] = np.clip(hsv[..., 2] + level("brightness", severity), 0, 1)
    check("brightness", matplotlib.colors.hsv_to_rgb(hsv).transpose(0, 3, 1, 2))


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_equals_pillow(channels):
    """Reference: encoding and decoding image by image with Pillow at the listed quality; the result is identical."""
    images = photo_patches(28, 3)[:, :channels]
    for severity, quality in zip(range(1, 6), (80, 65, 58, 50, 40), strict=True):
        for image, corrupted in zip(images, shifts.corrupt(images, "jpeg", severity), strict=True):
            buffer = io.BytesIO()
            to_pillow(image).save(buffer, format="JPEG", quality=quality)
            assert torch.equal(corrupted, from_pillow(Image.open(buffer)))


def test_noise_has_the_stated_deviation_and_is_seeded():
    """On mid-grey nothing is clipped: the deviation is within 2 % (40 standard errors at 7e5 draws) and depends on the seed."""
    grey = torch.full((300, 3, 28, 28), 0.5)
    for severity in range(1, 6):
        noise = shifts.corrupt(grey, "gaussian-noise", severity, seed=1).double() / 255 - 0.5
        assert noise.std().item() == pytest.approx(level("gaussian-noise", severity), rel=0.02)
        assert abs(noise.mean().item()) < 0.003  # 0.5 itself lies half a level off the grid of 255
    first, again, other = (shifts.corrupt(grey, "gaussian-noise", 3, seed=s) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[:44], first[256:])  # a new block draws new noise


@pytest.mark.parametrize("name", shifts.CORRUPTIONS)
def test_a_corruption_of_a_part_is_the_part_of_the_corruption(name):
    """The first n results depend only on the first n images; uint8 images and the same values as floats agree."""
    images = photo_patches(32, 5)
    everything = shifts.corrupt(images, name, 2, seed=3)
    assert torch.equal(shifts.corrupt(images[:2], name, 2, seed=3), everything[:2])
    assert torch.equal(shifts.corrupt(images.double() / 255, name, 2, seed=3), everything)


@pytest.mark.parametrize("name", shifts.CORRUPTIONS)
def test_damage_grows_with_severity(name):
    """Mean absolute change increases strictly from severity 1 to 5, on colour and on grey images."""
    for images in (photo_patches(32), photo_patches(28)[:, :1]):
        damage = [(shifts.corrupt(images, name, s).float() - images.float()).abs().mean().item() for s in range(1, 6)]
        assert damage == sorted(damage)
        assert damage[0] > 0
        assert len(set(damage)) == 5


def test_black_and_white_images_survive_brightness_and_contrast():
    """There is no division by zero: black becomes grey, white stays white; a constant image has no contrast to reduce."""
    black, white = torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    assert shifts.corrupt(black, "brightness", 5).unique().tolist() == [round(0.3 * 255)]
    assert torch.equal(shifts.corrupt(white, "brightness", 5), white)
    assert torch.equal(shifts.corrupt(white, "contrast", 5), white)


def test_jpeg_without_pillow_names_the_extra(monkeypatch):
    """A missing Pillow is a MissingExtraError with the command to install it."""
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"ltnode\[images\]"):
        shifts.corrupt(torch.zeros(1, 1, 8, 8), "jpeg", 1)


@pytest.mark.no_typecheck
@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: shifts.rotate(x[0], 15), "shape"),
        (lambda x: shifts.rotate(x[:0], 15), "empty"),
        (lambda x: shifts.rotate(x * 2 - 1, 15), "before they are normalised"),
        (lambda x: shifts.rotate(x * float("nan"), 15), r"\[0, 1\]"),
        (lambda x: shifts.rotate(x.long(), 15), "uint8"),
        (lambda x: shifts.rotate(x.numpy(), 15), "torch.Tensor"),
        (lambda x: shifts.rotate(x, float("inf")), "degrees"),
        (lambda x: shifts.corrupt(x, "gausian-noise", 1), "Did you mean 'gaussian-noise'"),
        (lambda x: shifts.corrupt(x, "jpeg", 0), "severity"),
        (lambda x: shifts.corrupt(x, "jpeg", 6), "severity"),
        (lambda x: shifts.corrupt(x, "jpeg", True), "severity"),
        (lambda x: shifts.corrupt(x, "jpeg", 1, seed=-1), "seed"),
        (lambda x: shifts.corrupt(x[:, :2], "jpeg", 1), "channels"),
    ],
)
def test_bad_input_is_refused(call, match):
    """Invalid images, unknown names and severities outside 1..5 are InputErrors that say what is allowed."""
    with pytest.raises(InputError, match=match):
        call(torch.full((2, 3, 8, 8), 0.25))


@pytest.mark.gpu
def test_a_cuda_device_gives_the_same_images():
    """One level of 255 is allowed for fused multiply-adds on the device; the noise is the same."""
    images = photo_patches(32)
    pairs = [(shifts.rotate(images.cuda(), d), shifts.rotate(images, d)) for d in (15, 45, 90, 165)]
    pairs += [(shifts.corrupt(images.cuda(), n, 3), shifts.corrupt(images, n, 3)) for n in shifts.CORRUPTIONS]
    for on_device, on_host in pairs:
        assert on_device.is_cuda
        assert (on_device.cpu().int() - on_host.int()).abs().max() <= 1
