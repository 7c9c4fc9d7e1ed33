"""Hostile image files: small to send, expensive to decode."""

from __future__ import annotations

import io
import struct


def progressive_bomb(scans: int = 300, side: int = 4000) -> bytes:
    """A progressive JPEG whose refinement scans each visit every block: 300 scans of 16 megapixels take about 11 s."""

    def segment(marker: int, body: bytes) -> bytes:
        return b"\xff" + bytes([marker]) + struct.pack(">H", len(body) + 2) + body

    blocks = (side // 8) ** 2
    # The end-of-band runs cover all blocks: as many runs of 2^14 + (2^14 - 1) blocks as fit, and one for the rest.
    runs, rest = divmod(blocks, 32767)
    bits = ("0" + "1" * 14) * runs + "0" + format(max(0, rest - 16384), "014b")
    refinement = int(bits + "1" * (-len(bits) % 8), 2).to_bytes(-(-len(bits) // 8), "big").replace(b"\xff", b"\xff\0")
    head = b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64)
    head += segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    head += segment(0xC4, b"\0\1" + b"\0" * 16) + segment(0xC4, b"\x10\1\1" + b"\0" * 14 + b"\xe0\0")
    head += segment(0xDA, b"\1\1\0\0\0\0") + bytes(blocks // 8)
    return head + (segment(0xDA, b"\1\1\0\1\x3f\x10") + refinement) * scans + b"\xff\xd9"


def picture(width: int, height: int, mode: str = "L", file_format: str = "PNG") -> bytes:
    """A black picture."""
    from PIL import Image

    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, file_format)
    return file.getvalue()
