"""Image sets from one folder per class: any format, checked, split and normalised."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ltnode.data import Augmentation, contact_sheet, from_folder
from ltnode.errors import DataError, InputError


def picture(path: Path, seed: int, size: tuple[int, int] = (8, 6), mode: str = "RGB", **options: object) -> np.ndarray:
    """Write random pixels of (height, width) ``size`` and return them as read back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size, len(mode)) if mode != "L" else size
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return np.asarray(Image.open(path))


def test_classes_are_folders_and_every_image_lands_in_one_split(tmp_path: Path) -> None:
    """Pixels are exact (lossless formats), labels follow the alphabetical order of the folders."""
    written = {}
    for label, name in enumerate(("cat", "dog", "fish")):
        for k, ending in enumerate(("png", "bmp", "tiff", "gif", "ppm")[: 5 if name != "fish" else 3]):
            pixels = picture(tmp_path / name / f"{k}.{ending}", seed=10 * label + k)
            if ending != "gif":  # has a palette, so only the number of images is compared
                written[pixels.tobytes()] = label
    (tmp_path / "cat" / ".hidden").write_text("not an image")
    (tmp_path / "notes.txt").write_text("not a folder")
    data = from_folder(tmp_path)
    assert data.class_names == ("cat", "dog", "fish")
    assert (data.n_train, len(data.test)) == (10, 3)
    assert data.input_shape == (3, 8, 6)
    found = {}
    for split in (data.train, data.test):
        for x, y in zip(split.x, split.y, strict=True):
            found[np.ascontiguousarray(x.permute(1, 2, 0).numpy()).tobytes()] = int(y)
    assert len(found) == 13
    assert written.items() <= found.items()
    assert data.source == "folder"
    assert data.name == tmp_path.name


def test_train_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    train = [picture(tmp_path / "train" / name / "1.png", seed=k) for k, name in enumerate("ab")]
    test = [picture(tmp_path / "test" / name / "1.png", seed=5 + k) for k, name in enumerate("ab")]
    data = from_folder(tmp_path, augment=Augmentation(1, flip=True))
    np.testing.assert_array_equal(data.train.x.permute(0, 2, 3, 1).numpy(), np.stack(train))
    np.testing.assert_array_equal(data.test.x.permute(0, 2, 3, 1).numpy(), np.stack(test))
    assert data.test.y.tolist() == [0, 1]
    assert data.augment == Augmentation(1, flip=True)
    contact_sheet(data, tmp_path / "sheet.png")
    picture(tmp_path / "test" / "c" / "1.png", seed=9)
    with pytest.raises(DataError, match=r"classes of train \(a, b\) and test \(a, b, c\) differ"):
        from_folder(tmp_path)


def test_grey_images_have_one_channel_unless_one_is_in_colour(tmp_path: Path) -> None:
    grey = picture(tmp_path / "a" / "1.png", seed=1, mode="L")
    picture(tmp_path / "b" / "1.png", seed=2, mode="L")
    assert from_folder(tmp_path, test_fraction=0.5).input_shape == (1, 8, 6)
    picture(tmp_path / "b" / "2.png", seed=3, mode="RGBA")
    data = from_folder(tmp_path, test_fraction=0.4)
    assert data.input_shape == (3, 8, 6)
    images = np.concatenate([data.train.x.numpy(), data.test.x.numpy()])
    assert any(np.array_equal(image, np.stack([grey] * 3)) for image in images)


def test_normalisation_makes_the_training_images_standard(tmp_path: Path) -> None:
    """Mean 0 and std 1 per channel, up to float32 rounding."""
    for k in range(10):
        picture(tmp_path / "ab"[k % 2] / f"{k}.png", seed=k)
    data = from_folder(tmp_path)
    x = data.prepare(data.train.x).double()
    assert x.mean((0, 2, 3)).abs().max() < 1e-6
    assert (x.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6


def test_size_scales_and_crops(tmp_path: Path) -> None:
    """A 16 x 24 image becomes its central 16 x 16, halved, as in Pillow except at the sides, where the filter sees more."""
    pixels = picture(tmp_path / "a" / "1.png", seed=1, size=(16, 24))
    picture(tmp_path / "b" / "1.png", seed=2, size=(40, 30))
    with pytest.raises(DataError, match=r"different sizes \(1 of 16 x 24, 1 of 40 x 30; height x width\); pass size"):
        from_folder(tmp_path)
    data = from_folder(tmp_path, size=8, test_fraction=0.5)
    oracle = Image.fromarray(pixels[:, 4:20]).resize((8, 8), Image.Resampling.BILINEAR)
    images = np.concatenate([data.train.x.numpy(), data.test.x.numpy()])
    inner = np.asarray(oracle).transpose(2, 0, 1)[:, :, 1:-1]
    assert any(np.array_equal(image[:, :, 1:-1], inner) for image in images)
    assert from_folder(tmp_path, size=(10, 12), test_fraction=0.5).input_shape == (3, 10, 12)


def test_a_photograph_is_turned_as_its_camera_was_held(tmp_path: Path) -> None:
    """EXIF orientation 6 is a rotation by 90 degrees, so 8 x 6 becomes 6 x 8."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in "ab":
        picture(tmp_path / name / "1.png", seed=1, exif=exif)
    assert from_folder(tmp_path, test_fraction=0.5).input_shape == (3, 6, 8)


def test_files_that_are_not_images_are_named(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png", seed=1)
    whole = (tmp_path / "a" / "1.png").read_bytes()
    for name, data in (("broken.png", whole[:60]), ("notes.txt", b"text"), ("empty.jpg", b"")):
        path = tmp_path / "b" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        with pytest.raises(DataError, match=f"{name} is not an image"):
            from_folder(tmp_path)
        path.unlink()


def test_empty_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a folder"):
        from_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="contains no folders"):
        from_folder(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match="contains no images"):
        from_folder(tmp_path)
    with pytest.raises(InputError, match="size must be positive"):
        from_folder(tmp_path, size=0)
