"""A corpus of hostile uploads: each gets a 4xx with a reason, the server keeps running, and its memory stays bounded."""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ltnode.serve.metrics import resident_memory
from serve.serving import images

MIB = 1024 * 1024
FLAT = [[0.5] * 28] * 28


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, depth: int = 8, colour: int = 0, more: bytes = b"") -> bytes:
    """A PNG file with an arbitrary header."""
    head = struct.pack(">IIBBBBB", width % 2**32, height % 2**32, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + more + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")


def saved(format: str, size: tuple[int, int] = (28, 28)) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.effect_noise(size, 50).convert("L").save(file, format)
    return file.getvalue()


class Exploding:
    """A pickle that would run code when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('unpickled')",)


def zip_file(names: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in names.items():
            archive.writestr(name, data)
    return file.getvalue()


def numpy_file(descr: str, shape: str) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode()
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def torch_file() -> bytes:
    file = io.BytesIO()
    torch.save({"weights": torch.zeros(3)}, file)
    return file.getvalue()


def files() -> dict[str, bytes]:
    """Contents of uploads that are not valid images."""
    good = {format: saved(format) for format in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF")}
    zeros = zlib.compress(bytes(64 * MIB), 9)
    found = {
        "empty": b"",
        "one byte": b"\x89",
        "text": b"hello",
        "text that is no UTF-8": b"\xff\xfe\xfa\x80" * 10,
        "html": b"<html><script>alert(1)</script></html>",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "xml that doubles": b'<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><l>&b;</l>',
        "pdf": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(/etc/passwd) (r) file\n",
        "elf": b"\x7fELF" + bytes(60),
        "pickle": pickle.dumps(Exploding()),
        "torch pickle": torch_file(),
        "npy": numpy_file("<f8", "(1, 28, 28)"),
        "npy of objects": numpy_file("|O", "(1,)") + pickle.dumps([Exploding()]),
        "npy of terabytes": numpy_file("<f8", "(1000000000000,)"),
        "zip": zip_file({"a.png": good["PNG"]}),
        "zip with a path": zip_file({"../../../../tmp/a.png": good["PNG"]}),
        "zip bomb": zip_file({"zeros": bytes(64 * MIB)}),
        "gzip bomb": gzip.compress(bytes(64 * MIB)),
        "zlib bomb": zeros,
        "png of 65535 squared": png(65535, 65535, zeros),
        "png of 2^31 - 1 squared": png(2**31 - 1, 2**31 - 1, b""),
        "png of negative size": png(-1, -1, b""),
        "png of width 0": png(0, 28, zlib.compress(b"\0")),
        "png of height 0": png(28, 0, zlib.compress(b"\0")),
        "png without pixels": png(28, 28, b""),
        "png that is no zlib": png(28, 28, b"\0" * 100),
        "png of an impossible depth": png(28, 28, zlib.compress(bytes(28 * 29)), depth=77),
        "png of an impossible colour type": png(28, 28, zlib.compress(bytes(28 * 29)), colour=99),
        "png with a text bomb": png(28, 28, b"", more=png_chunk(b"zTXt", b"a\0\0" + zeros) * 3),
        "png of a wrong checksum": good["PNG"][:20] + b"\xff\xff\xff\xff" + good["PNG"][24:],
        "gif of 65535 squared": b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\x80\0\0" + bytes(6) + b"\x2c",
        "bmp of 2^30 squared": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 2**30, 2**30, 1, 24, 0, 0, 0, 0, 0, 0),
        "bmp of negative size": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, -5, -5, 1, 24, 0, 0, 0, 0, 0, 0),
        "pgm of 10^9 squared": b"P5 1000000000 1000000000 255\n\0",
        "webp of 16 million squared": b"RIFF"
        + struct.pack("<I", 30)
        + b"WEBPVP8X"
        + struct.pack("<I", 10)
        + bytes(4)
        + b"\xff" * 6,
        "jpeg of 65500 squared": b"\xff\xd8\xff\xc0\0\x0b\x08" + struct.pack(">HH", 65500, 65500) + b"\1\1\x11\0\xff\xd9",
        "tiff that points at itself": b"II*\0\x08\0\0\0\1\0\0\1\3\0\1\0\0\0\x1c\0\0\0\x08\0\0\0",
        "large picture": saved("PNG", (4100, 4000)),
    }
    for format, data in good.items():
        for part in (4, len(data) // 4, len(data) // 2):
            found[f"{format} cut to {part} bytes"] = data[:part]
    return found


FILES = files()


def json_bodies() -> Iterator[tuple[str, bytes]]:
    """Bodies of /api/predict that are not valid requests."""

    def around(text: str) -> bytes:
        return ('{"model": "lt", "inputs": ' + text + "}").encode()

    row = ", ".join(["0.5"] * 28)
    yield "empty", b""
    yield "null", b"null"
    yield "a list", b"[]"
    yield "a number", b"1e5"
    yield "cut off", around("[[[1, 2")
    yield "no UTF-8", b'{"model": "\xff\xfe"}'
    yield "a lone surrogate", b'{"model": "\\ud800", "inputs": [[1]]}'
    yield "bytes of zero", bytes(1000)
    yield "utf-16", json.dumps({"model": "lt"}).encode("utf-16")
    yield "NaN", around(f"[[{', '.join([f'[{row}]'] * 27)}, [NaN{', 0.5' * 27}]]]")
    yield "Infinity", around(f"[[{', '.join([f'[{row}]'] * 27)}, [-Infinity{', 0.5' * 27}]]]")
    yield "1e999", around(f"[[{', '.join([f'[{row}]'] * 27)}, [1e999{', 0.5' * 27}]]]")
    yield "a number of 4000 digits", around(f"[[{', '.join([f'[{row}]'] * 27)}, [{'9' * 4000}{', 0.5' * 27}]]]")
    yield "a number of 100000 digits", around("[[" + "9" * 100_000 + "]]")
    yield "ragged", around(f"[[{', '.join([f'[{row}]'] * 27)}, [0.5]]]")
    yield "a text for a number", around(f'[[{", ".join([f"[{row}]"] * 27)}, [{", ".join(["0.5"] * 27)}, "0.5"]]]')
    yield "a long text for a number", around(f'[["{"x" * MIB}"]]')
    yield "null for a number", around(f"[[{', '.join([f'[{row}]'] * 27)}, [{', '.join(['0.5'] * 27)}, null]]]")
    yield "an object for a number", around('[[{"a": 1}]]')
    yield "100000 levels", around("[" * 100_000 + "]" * 100_000)
    yield "100 levels", around("[" * 100 + "1" + "]" * 100)
    yield "objects in objects", b'{"model":' * 50_000 + b"1" + b"}" * 50_000
    yield "a million empty lists", around("[" + ",".join(["[]"] * 1_000_000) + "]")
    yield "a million numbers", around("[[" + ",".join(["1"] * 1_000_000) + "]]")
    yield "a hundred thousand keys", json.dumps({str(n): n for n in range(100_000)}).encode()
    yield "a hundred thousand wrong images", json.dumps({"model": "lt", "images": [1] * 100_000}).encode()
    yield "17 images of 16", json.dumps({"model": "lt", "inputs": [FLAT] * 17}).encode()
    yield "no inputs", around("[]")
    yield "negative samples", json.dumps({"model": "lt", "inputs": [FLAT], "samples": -1}).encode()
    yield "2^70 samples", json.dumps({"model": "lt", "inputs": [FLAT], "samples": 2**70}).encode()
    yield "samples of 1.5", json.dumps({"model": "lt", "inputs": [FLAT], "samples": 1.5}).encode()
    yield "a path for a model", json.dumps({"model": "../../../etc/passwd", "inputs": [FLAT]}).encode()
    yield "a long name", json.dumps({"model": "x" * MIB, "inputs": [FLAT]}).encode()
    yield "a list for a model", json.dumps({"model": ["lt"], "inputs": [FLAT]}).encode()
    yield "no base64", json.dumps({"model": "lt", "images": ["!!!"]}).encode()
    yield "base64 of another alphabet", json.dumps({"model": "lt", "images": ["äöü"]}).encode()
    yield "9 MiB", around("[[" + "1" * (9 * MIB) + "]]")


BODIES = dict(json_bodies())
FORM = {"content-type": "multipart/form-data; boundary=xx"}
PART = b'--xx\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n'


def forms() -> dict[str, tuple[dict[str, str], bytes]]:
    """Bodies that are not valid forms."""
    picture = saved("PNG")
    file = PART % (b"file", b'; filename="a.png"') + picture + b"\r\n"
    end = b"--xx--\r\n"
    return {
        "no boundary": ({"content-type": "multipart/form-data"}, file + end),
        "another boundary": ({"content-type": "multipart/form-data; boundary=yy"}, file + end),
        "an endless boundary": ({"content-type": "multipart/form-data; boundary=" + "y" * 5000}, file + end),
        "nothing": (FORM, b""),
        "no parts": (FORM, end),
        "no end": (FORM, file[:-40]),
        "no header end": (FORM, b"--xx\r\nContent-Disposition: form-data; name=file"),
        "no name": (FORM, b"--xx\r\nContent-Disposition: form-data\r\n\r\nabc\r\n" + end),
        "a text for a file": (FORM, PART % (b"file", b"") + b"abc\r\n" + end),
        "a file for a model": (FORM, file + PART % (b"model", b'; filename="m"') + b"lt\r\n" + end),
        "an unknown field": (FORM, file + PART % (b"path", b"") + b"/etc/passwd\r\n" + end),
        "an unknown model": (FORM, file + PART % (b"model", b"") + b"../lt\r\n" + end),
        "negative samples": (FORM, file + PART % (b"model", b"") + b"lt\r\n" + PART % (b"samples", b"") + b"-1\r\n" + end),
        "samples in words": (
            FORM,
            file + PART % (b"model", b"") + b"lt\r\n" + PART % (b"samples", b"") + "١٢".encode() + b"\r\n" + end,
        ),
        "a hundred files": (FORM, file * 100 + end),
        "a thousand fields": (FORM, (PART % (b"model", b"") + b"lt\r\n") * 1000 + end),
        "a field of 100000 bytes": (FORM, PART % (b"model", b"") + b"x" * 100_000 + b"\r\n" + end),
        "a header of 100000 bytes": (FORM, b"--xx\r\nX: " + b"y" * 100_000 + b"\r\n\r\n\r\n" + end),
        "another type": ({"content-type": "application/x-www-form-urlencoded"}, b"model=lt"),
        "xml": ({"content-type": "text/xml"}, b"<a/>"),
        "a type of nonsense": ({"content-type": "\xff/\xfe;;;="}, b"{}"),
    }


FORMS = forms()


def refused(answer: Any) -> None:
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:300])
    error = answer.json()["error"]
    assert error["code"] and len(error["reason"]) > 10
    assert len(answer.content) < 4096
    assert "Traceback" not in answer.text and ".py" not in answer.text


def alive(client: Any) -> None:
    answer = client.post("/api/predict", json={"model": "lt", "inputs": images(1).tolist(), "samples": 1})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused(client: Any, name: str):
    """Sent as a form whose file name is a path, and in base64 for a prediction and a trajectory."""
    data = FILES[name]
    text = base64.b64encode(data).decode()
    refused(client.post("/api/predict", data={"model": "lt"}, files={"file": ("../../etc/passwd\0.png", data)}))
    refused(client.post("/api/predict", json={"model": "lt", "images": [text]}))
    refused(client.post("/api/trajectory", json={"model": "lt", "image": text}))


@pytest.mark.parametrize("name", BODIES)
def test_a_hostile_body_is_refused(client: Any, name: str):
    for path in ("predict", "trajectory", "sweep"):
        refused(client.post(f"/api/{path}", content=BODIES[name], headers={"content-type": "application/json"}))


@pytest.mark.parametrize("name", FORMS)
def test_a_hostile_form_is_refused(client: Any, name: str):
    headers, body = FORMS[name]
    raw = {key: value.encode("latin-1") for key, value in headers.items()}
    refused(client.post("/api/predict", content=body, headers=raw))


def restart_peak() -> None:
    """Reset the peak memory of this process, if the system can (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int | None:
    """Peak resident memory since the last reset in bytes; None if the system does not report it."""
    status = Path("/proc/self/status")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE) if status.exists() else None
    return int(found[1]) * 1024 if found else None


def test_the_server_keeps_running_and_its_memory_is_bounded(client: Any):
    """After the whole corpus, memory has grown by less than 100 MiB, and the peak was below 500 MiB.

    The peak comes from the copies of the largest image (16 million pixels in up to 4 channels) and its file.
    """
    assert len(FILES) + len(BODIES) + len(FORMS) >= 100
    alive(client)
    before = resident_memory()
    restart_peak()
    if (peak_memory() or 0) > before + 50 * MIB:
        pytest.skip("this system cannot reset the peak memory")
    for data in FILES.values():
        refused(client.post("/api/predict", data={"model": "lt"}, files={"file": ("a", data)}))
    for body in BODIES.values():
        refused(client.post("/api/predict", content=body, headers={"content-type": "application/json"}))
    alive(client)
    assert resident_memory() - before < 100 * MIB
    assert (peak_memory() or before) - before < 500 * MIB


def test_the_complete_files_are_accepted(client: Any):
    """Guards the corpus: the files that it cuts and breaks are accepted when they are complete."""
    for format in ("PNG", "JPEG", "GIF", "BMP", "WEBP"):
        assert client.post("/api/predict", data={"model": "lt"}, files={"file": ("a", saved(format))}).status_code == 200
    whole = png(28, 28, zlib.compress(bytes(28 * 29)))
    assert client.post("/api/predict", data={"model": "lt"}, files={"file": ("a", whole)}).status_code == 200
    end = b"--xx--\r\n"
    form = PART % (b"file", b'; filename="a.png"') + saved("PNG") + b"\r\n" + PART % (b"model", b"") + b"lt\r\n" + end
    assert client.post("/api/predict", content=form, headers=FORM).status_code == 200
