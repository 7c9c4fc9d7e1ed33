"""What one import may hold in memory: a small file can claim, or unpack to, many gigabytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ltnode.errors import DataError

LARGEST_IMPORT = 768 << 20
"""Bytes of the files of one image set together with what they unpack to; the largest, SVHN, needs 551 MB."""


@dataclass
class Budget:
    """Bytes that an import may still read or unpack."""

    left: int = LARGEST_IMPORT

    def take(self, size: int, source: Path | str) -> None:
        """Count bytes before they are read.

        Raises:
            DataError: They are more than the import may hold.
        """
        if size > self.left:
            raise DataError(
                f"{source} would unpack to more than an import may hold ({size:,} bytes, {self.left:,} are left); "
                "check where the file comes from, and download it again"
            )
        self.left -= size
