"""Decoding of image files: every format and mode is read as by Pillow and `from_folder`; everything else is refused."""

from __future__ import annotations

import io
import pickle
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from PIL import Image

from ltnode.data.folder import from_folder
from ltnode.errors import InputError, MissingExtraError
from ltnode.trained.images import FORMATS, LOCAL_FORMATS, decode_image, to_png

GREY, COLOUR = (1, 12, 12), (3, 12, 12)


def picture(mode: str = "RGB", size: tuple[int, int] = (12, 12)) -> Image.Image:
    """Random pixels."""
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,), "CMYK": (4,)}[mode]
    values = np.random.default_rng(1).integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    return Image.fromarray(values, mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_header(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_pixels_that_pillow_gives(kind: str) -> None:
    """An image of the right size is only decoded: the pixels equal Pillow's, and there is no note except for palettes."""
    data = encoded(picture(), kind)
    decoded = decode_image(data, COLOUR)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(decoded.pixels.numpy(), expected)
    assert decoded.notes == (("palette -> RGB",) if kind == "GIF" else ())


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP"])
def test_lossless_formats_round_trip(kind: str) -> None:
    """A lossless file returns exactly the bytes that were written."""
    original = picture()
    decoded = decode_image(encoded(original, kind, **({"lossless": True} if kind == "WEBP" else {})), COLOUR)
    assert np.array_equal(decoded.pixels.permute(1, 2, 0).numpy(), np.asarray(original))


def test_tiff_is_for_local_files_only() -> None:
    data = encoded(picture(), "TIFF")
    assert decode_image(data, COLOUR, formats=LOCAL_FORMATS).notes == ()
    with pytest.raises(InputError, match="PNG, JPEG, BMP, GIF, WEBP"):
        decode_image(data, COLOUR)


@given(st.sampled_from([1, 3]), st.integers(1, 9), st.integers(1, 9), st.integers(0, 255))
def test_png_of_pixels_and_back(channels: int, height: int, width: int, first: int) -> None:
    """`decode_image` undoes `to_png` exactly."""
    pixels = ((torch.arange(channels * height * width) * 37 + first) % 256).to(torch.uint8).reshape(channels, height, width)
    decoded = decode_image(to_png(pixels), (channels, height, width))
    assert torch.equal(decoded.pixels, pixels)
    assert decoded.notes == ()


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (5, 7), (12, 200), (24, 24)])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_scaling_is_that_of_training_images(tmp_path: Path, size: tuple[int, int], mode: str) -> None:
    """A network trained by `from_folder` sees the same pixels of the same file, bit for bit."""
    for name in ("a/one", "b/two", "b/three"):
        file = tmp_path / f"{name}.png"
        file.parent.mkdir(exist_ok=True)
        picture(mode, size).save(file)
    trained_on = from_folder(tmp_path, size=12)
    decoded = decode_image((tmp_path / "a/one.png").read_bytes(), trained_on.input_shape)
    assert torch.equal(decoded.pixels, trained_on.train.x[0])


@pytest.mark.parametrize(
    ("size", "notes"),
    [
        ((640, 480), ("centre-cropped 640x480 -> 480x480", "resized 480x480 -> 12x12")),
        ((24, 24), ("resized 24x24 -> 12x12",)),
        ((12, 20), ("centre-cropped 12x20 -> 12x12",)),
        ((12, 12), ()),
    ],
)
def test_notes_tell_crops_and_sizes(size: tuple[int, int], notes: tuple[str, ...]) -> None:
    assert decode_image(encoded(picture("RGB", size)), COLOUR).notes == notes


def test_notes_tell_channels() -> None:
    assert decode_image(encoded(picture("RGB")), GREY).notes == ("colour -> grey",)
    assert decode_image(encoded(picture("L")), COLOUR).notes == ("grey -> three equal channels",)
    assert decode_image(encoded(picture("CMYK"), "JPEG"), COLOUR).notes == ("CMYK -> RGB",)


def test_nothing_is_inverted() -> None:
    """A dark digit on white stays dark on white, whatever the network was trained on."""
    image = Image.new("L", (12, 12), 255)
    image.putpixel((3, 4), 0)
    pixels = decode_image(encoded(image), GREY).pixels[0]
    assert pixels[4, 3] == 0
    assert pixels[0, 0] == 255


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    """The file is stored so that a viewer that follows the orientation table of EXIF 2.3 shows the original (PNG is lossless)."""
    seen = np.arange(12 * 12, dtype=np.uint8).reshape(12, 12)
    # The stored pixels are the inverse of the rotation that the orientation asks for.
    stored = {
        1: seen, 2: seen[:, ::-1], 3: seen[::-1, ::-1], 4: seen[::-1], 5: seen.T, 6: np.rot90(seen), 7: seen[::-1, ::-1].T,
        8: np.rot90(seen, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    decoded = decode_image(encoded(Image.fromarray(np.ascontiguousarray(stored)), exif=exif), GREY)
    assert np.array_equal(decoded.pixels[0].numpy(), seen)
    assert decoded.notes == (() if orientation == 1 else (f"rotated upright (EXIF orientation {orientation})",))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_unreadable_exif_does_not_matter() -> None:
    data = encoded(picture("L"), "JPEG", exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\xff\xff\x01\x12")
    decoded = decode_image(data, GREY)
    assert decoded.pixels.shape == GREY


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_parts_lie_over_white(mode: str) -> None:
    """``a v + (1 - a) 255`` per pixel; Pillow blends in 8 bits, hence 1 grey level (and 1 more for the luma)."""
    image = picture(mode)
    shape = COLOUR if mode == "RGBA" else GREY
    decoded = decode_image(encoded(image), shape)
    values = np.asarray(image).astype(float)
    alpha = values[..., -1:] / 255
    expected = (alpha * values[..., :-1] + (1 - alpha) * 255).transpose(2, 0, 1)
    assert np.abs(decoded.pixels.numpy() - expected).max() <= 2
    assert decoded.notes == ("transparency filled with white",)


def test_opaque_alpha_is_no_change() -> None:
    image = picture("RGB")
    image.putalpha(255)
    decoded = decode_image(encoded(image), COLOUR)
    assert decoded.notes == ()
    assert np.array_equal(decoded.pixels.permute(1, 2, 0).numpy(), np.asarray(image)[..., :3])


def test_palette_with_a_transparent_colour() -> None:
    image = picture("L").convert("P")
    decoded = decode_image(encoded(image, transparency=int(np.asarray(image)[0, 0])), COLOUR)
    assert decoded.notes == ("palette -> RGB", "transparency filled with white")
    assert decoded.pixels[:, 0, 0].tolist() == [255, 255, 255]


def test_sixteen_bits_are_rounded_to_eight() -> None:
    """``round(v / 257)``: 0 and 65535 are the ends of both scales."""
    values = np.random.default_rng(0).integers(0, 65536, (12, 12), dtype=np.uint16)
    values[0, :2] = 0, 65535
    decoded = decode_image(encoded(Image.fromarray(values)), GREY)
    assert np.array_equal(decoded.pixels[0].numpy(), np.round(values / 257).astype(np.uint8))
    assert decoded.notes == ("16 bits -> 8 bits",)


def test_sixteen_bit_colour_is_noted() -> None:
    """Pillow cannot write such a file, so it is assembled here: 12 rows, each a filter byte and 36 big-endian numbers."""
    rows = b"".join(b"\x00" + struct.pack(">36H", *([0x8000 + 256 * row] * 36)) for row in range(12))
    data = png_header(12, 12, depth=16) + png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    decoded = decode_image(data, COLOUR)
    assert decoded.notes == ("16 bits -> 8 bits",)
    assert decoded.pixels[0, :, 0].tolist() == [0x80 + row for row in range(12)]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_counts(kind: str) -> None:
    first, second = Image.new("L", (12, 12), 0), Image.new("L", (12, 12), 255)
    data = encoded(first, kind, save_all=True, append_images=[second], **({"lossless": True} if kind == "WEBP" else {}))
    decoded = decode_image(data, GREY)
    assert decoded.pixels.max() == 0
    assert "animation: only the first frame is used" in decoded.notes


def test_float_pixels_have_an_unknown_range() -> None:
    data = encoded(Image.fromarray(np.zeros((12, 12), dtype=np.float32)), "TIFF")
    with pytest.raises(InputError, match="unknown range"):
        decode_image(data, GREY, formats=LOCAL_FORMATS)


# -- hostile files -------------------------------------------------------------------------------------------------------------


def webp(chunk: bytes, content: bytes) -> bytes:
    body = b"WEBP" + chunk + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(body)) + body


class Evil:
    """A pickle whose loading would end the process."""

    def __reduce__(self) -> Any:
        return sys.exit, (77,)


def gif(screen: int, frame: int) -> bytes:
    """A GIF whose only frame has no content."""
    return (
        b"GIF89a"
        + struct.pack("<HHBBB", screen, screen, 0, 0, 0)
        + b","
        + struct.pack("<HHHHB", 0, 0, frame, frame, 0)
        + b"\x02\0;"
    )


def bmp_header(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)


JPEG_65535 = encoded(picture(), "JPEG").replace(struct.pack(">BHH", 8, 12, 12), struct.pack(">BHH", 8, 65535, 65535), 1)
IDAT = png_chunk(b"IDAT", zlib.compress(b""))
ZEROS = zlib.compress(bytes(1 << 27), 9)

HOSTILE = {
    "empty": (b"", "empty"),
    "text": (b"hello " * 100, "not an image"),
    "svg": (b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', "not an image"),
    "html": (b"<!doctype html><script>alert(1)</script>", "not an image"),
    "pickle": (pickle.dumps(Evil()), "not an image"),
    "zip": (b"PK\x03\x04" + bytes(100), "not an image"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) run\n", "not an image"),
    "ppm": (b"P6 12 12 255\n" + bytes(432), "not an image"),
    "ico": (encoded(picture("RGBA"), "ICO"), "not an image"),
    "png bomb by header": (png_header(100_000, 100_000) + IDAT, "too many pixels"),
    "png just too large": (png_header(10_000, 5_001) + IDAT, "10000x5001 = 50,010,000 pixels; at most 50,000,000"),
    "png without pixels": (png_header(0, 12) + IDAT, "not an image"),
    "png without data": (png_header(12, 12) + IDAT, "damaged"),
    "png header only": (png_header(12, 12), "not an image"),
    "png of wrong checksum": (encoded(picture())[:30] + b"xx" + encoded(picture())[32:], "not an image"),
    "png text bomb": (png_header(12, 12) + png_chunk(b"zTXt", b"k\0\0" + ZEROS) + IDAT, "damaged|not an image"),
    "gif bomb by header": (gif(65535, 65535), "pixels"),
    "gif bomb by frame": (gif(9, 60000), "pixels"),
    "bmp bomb by header": (bmp_header(2**30, 2**30), "pixels"),
    "bmp upside down and too large": (bmp_header(9000, -9000), "9000x9000"),
    "webp bomb, extended": (webp(b"VP8X", bytes(4) + b"\xff\xff\x00" + b"\xff\xff\x00"), "65536x65536"),
    "webp bomb, lossless": (webp(b"VP8L", b"\x2f" + struct.pack("<I", 0x0FFFFFFF) + bytes(20)), "16384x16384"),
    "webp bomb, lossy": (webp(b"VP8 ", b"\x10\0\0\x9d\x01\x2a" + struct.pack("<HH", 16383, 16383) + bytes(20)), "16383x16383"),
    "jpeg bomb by header": (JPEG_65535, "pixels"),
    "jpeg of two bytes": (b"\xff\xd8", "damaged|not an image"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_with_a_reason(name: str) -> None:
    data, reason = HOSTILE[name]
    with pytest.raises(InputError, match=reason):
        decode_image(data, COLOUR)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP"])
def test_a_file_cut_anywhere_is_refused_or_whole(kind: str) -> None:
    """At every 7th length: an InputError, or pixels of the right shape if only the trailer is missing; no other exception."""
    data = encoded(picture("RGB", (40, 40)), kind)
    refused = 0
    for length in range(0, len(data), 7):
        try:
            assert decode_image(data[:length], COLOUR).pixels.shape == COLOUR
        except InputError as error:
            refused += 1
            assert str(error)
    assert refused > 0.8 * len(range(0, len(data), 7))


@given(st.sampled_from(FORMATS), st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=8))
def test_altered_bytes_never_escape_as_another_error(kind: str, changes: list[tuple[float, int]]) -> None:
    """Flipped bytes give pixels of the right shape or an InputError."""
    data = bytearray(encoded(picture("RGB", (20, 20)), kind))
    for where, value in changes:
        data[int(where * len(data))] = value
    try:
        assert decode_image(bytes(data), COLOUR).pixels.shape == COLOUR
    except InputError as error:
        assert str(error)


def test_the_limit_is_checked_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture above the limit is never decoded; one at the limit is."""
    from PIL import ImageFile

    data = encoded(picture("L", (12, 12)))
    assert decode_image(data, GREY, max_pixels=144).notes == ()
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    with pytest.raises(InputError, match="at most 143"):
        decode_image(data, GREY, max_pixels=143)


def test_networks_of_other_channels_take_no_image_files() -> None:
    with pytest.raises(InputError, match="give arrays"):
        decode_image(encoded(picture()), (4, 12, 12))


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"ltnode\[images\]"):
        decode_image(b"x", GREY)
    with pytest.raises(MissingExtraError, match=r"ltnode\[images\]"):
        to_png(torch.zeros(1, 2, 2, dtype=torch.uint8))
