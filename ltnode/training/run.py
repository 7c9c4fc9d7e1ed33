"""A training run and the folder that holds it.

config.json          training configuration, model specification, data description
model.safetensors    the trained model, at the end
checkpoints/         the last few states, to resume from
metrics.jsonl        one line per ``log_every`` steps
results.json         status, last numbers, provenance
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ltnode import files as atomic
from ltnode.errors import CheckpointError, ConfigError
from ltnode.models import Model
from ltnode.training import checkpoint
from ltnode.training.config import TrainConfig
from ltnode.training.run_config import RUN_FOLDER_FORMAT, read_run_config
from ltnode.training.status import RunStatus

_LOG = logging.getLogger("ltnode")


@dataclass
class Run:
    """What `ltnode.fit` gives back.

    Attributes:
        model: The trained model, in eval mode.
        config: Its training configuration.
        path: The run folder; None when nothing was written.
        history: The lines of metrics.jsonl.
        status: How the run ended.
        results: The content of results.json.
    """

    model: Model
    config: TrainConfig
    path: Path | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    status: RunStatus = RunStatus.RUNNING
    results: dict[str, Any] = field(default_factory=dict)


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    @property
    def config_path(self) -> Path:
        """Of config.json."""
        return self.path / "config.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in the same folder meanwhile; the system ends it even for a killed one.

        Raises:
            CheckpointError: Another process trains there.
        """
        try:
            import fcntl
        except ImportError:  # not a POSIX system
            yield
            return
        self._make()
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise CheckpointError(f"another process is training in {self.path}; wait for it, or choose another folder") from None
        except OSError:
            _LOG.debug("%s: this file system has no locks", self.path)
        try:
            yield
        finally:
            os.close(descriptor)

    def open(self, description: dict[str, Any], config: TrainConfig, resume: bool) -> checkpoint.Checkpoint | None:
        """Begin a run in this folder, or find where to continue it.

        Args:
            description: Model and data, as they go into config.json.
            config: Of the run.
            resume: Continue a run that is already there.

        Returns:
            The last whole checkpoint; None to begin at step 0.

        Raises:
            CheckpointError: The folder holds a run and ``resume`` is False, or something that is not a run, or is damaged.
            ConfigError: The run that is there has another configuration, model or data.
        """
        content = {"format": RUN_FOLDER_FORMAT, "kind": "run", "train": config.to_json(), **description}
        if not self._holds_something():
            self._create(content)
            return None
        if not self.config_path.exists():
            raise CheckpointError(f"{self.path} exists and is not a run folder (no config.json); choose another folder")
        if not resume:
            raise CheckpointError(
                f"{self.path} already holds a run ({self.status().value}); continue it with resume=True (--resume), "
                "or choose another folder"
            )
        found = read_run_config(self.path, "a run folder")
        if found["kind"] != "run":
            raise CheckpointError(f"{self.path} holds a saved model, not a run; choose another folder")
        self._compare(found, content)
        atomic.remove_leftovers(self.path)
        atomic.remove_leftovers(self.checkpoints)
        return checkpoint.latest(self.checkpoints)

    def status(self) -> RunStatus:
        """As results.json says; a run that was killed is still ``RUNNING``."""
        try:
            return RunStatus(json.loads((self.path / "results.json").read_text(encoding="utf-8"))["status"])
        except (OSError, ValueError, KeyError, TypeError):
            return RunStatus.RUNNING

    def truncate_metrics(self, size: int) -> list[dict[str, Any]]:
        """Cut the log back to what it held at a checkpoint, so that no line comes twice, and return its lines."""
        content = self.metrics.read_bytes() if self.metrics.exists() else b""
        if len(content) < size:
            _LOG.warning("%s is shorter than at the checkpoint: lines of the log are lost", self.metrics)
        whole = content[:size]
        whole = whole[: whole.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise CheckpointError(f"{self.metrics} is damaged ({error}); repair or delete it") from error
        if whole != content:
            atomic.write_bytes(self.metrics, whole)
        return lines

    def read_metrics(self) -> list[dict[str, Any]]:
        """The lines of the log."""
        return self.truncate_metrics(self.metrics.stat().st_size if self.metrics.exists() else 0)

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add one line."""
        try:
            with self.metrics.open("ab") as file:
                file.write((json.dumps(line) + "\n").encode())
        except OSError as error:
            raise atomic.write_error(self.metrics, error) from error

    def sync_metrics(self) -> int:
        """Make the log durable; returns its size, which a checkpoint records."""
        if not self.metrics.exists():
            return 0
        try:
            with self.metrics.open("ab") as file:
                os.fsync(file.fileno())
                return file.tell()
        except OSError as error:
            raise atomic.write_error(self.metrics, error) from error

    def write_results(self, results: dict[str, Any]) -> None:
        """Replace results.json."""
        atomic.write_json(self.path / "results.json", results)

    def read_results(self) -> dict[str, Any]:
        """The content of results.json."""
        results: dict[str, Any] = atomic.read_json(self.path / "results.json", lambda v: isinstance(v, dict), "a run folder")
        return results

    def _holds_something(self) -> bool:
        return self.path.is_dir() and any(not entry.name.startswith(atomic.TEMPORARY) for entry in self.path.iterdir())

    def _make(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file; a run needs a folder of its own")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise atomic.write_error(self.path, error) from error

    def _create(self, content: dict[str, Any]) -> None:
        self._make()
        atomic.remove_leftovers(self.path)
        atomic.write_json(self.config_path, content)

    def _compare(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        try:
            differences = TrainConfig.from_json(found["train"]).differences(TrainConfig.from_json(wanted["train"]))
        except (KeyError, TypeError, ConfigError) as error:
            raise CheckpointError(
                f"{self.config_path} is damaged: its training configuration cannot be read ({error})"
            ) from error
        if json.dumps(found.get("model"), sort_keys=True) != json.dumps(wanted["model"], sort_keys=True):
            differences.append(f"model: {found.get('model')} -> {wanted['model']}")
        old, new = (description.get("data") or {} for description in (found, wanted))
        differences += [
            f"data.{key}: {old.get(key)} -> {new.get(key)}"
            for key in ("name", "n_train", "checksums")
            if old.get(key) != new.get(key)
        ]
        if differences:
            raise ConfigError(
                f"{self.path} cannot be resumed with another configuration: {'; '.join(differences)}. "
                "Resume with the values it began with, or train in another folder"
            )
