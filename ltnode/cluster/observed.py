"""How far a training of another process is, read from the log that it writes."""

from __future__ import annotations

from pathlib import Path

from ltnode import files
from ltnode.cluster.storage import RunStorage
from ltnode.cluster.trial import LOG
from ltnode.errors import LTNodeError


class Observed:
    """The log of one training.

    Args:
        folder: Its run folder.
        storage: Path or URL of its run folder in shared storage; None if the folder itself is shared.
    """

    def __init__(self, folder: Path, storage: str | None = None) -> None:
        self._log, self._storage = folder / LOG, None if storage is None else RunStorage(storage)
        self._size = 0
        self.steps = 0
        self.curve: dict[int, float] = {}
        """Log-likelihood of the held-out examples by step."""

    @property
    def newest(self) -> float | None:
        """The last held-out log-likelihood."""
        return self.curve[max(self.curve)] if self.curve else None

    def read(self) -> None:
        """Read the log if it has changed; a training that continues from a checkpoint may have shortened it."""
        content = self._content()
        if content is None:
            return
        self.steps, self.curve = 0, {}
        for text in content.splitlines():
            try:
                line = files.parse_json(text)
                self.steps = int(line["step"])
                if "validation" in line:
                    self.curve[self.steps] = float(line["validation"]["log_likelihood"])
            except (ValueError, KeyError, TypeError):
                continue  # the last line may not be whole yet

    def _content(self) -> bytes | None:
        """The log; None if it has the same length as before, or cannot be read now."""
        try:
            if self._storage is None:
                size = self._log.stat().st_size
                content = None if size == self._size else self._log.read_bytes()
            else:
                published = self._storage.published(LOG)
                size, content = len(published), None if len(published) == self._size else published
        except (OSError, LTNodeError):
            return None
        self._size = size
        return content
