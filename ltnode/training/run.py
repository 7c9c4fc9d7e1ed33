"""A training run and its folder.

config.json          training configuration, model specification, data description
model.safetensors    the trained model, written at the end
checkpoints/         the last few states, from which the run can be resumed
metrics.jsonl        one line per ``log_every`` steps
results.json         status, last metrics, provenance
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ltnode import files
from ltnode.checks import is_finite_number
from ltnode.errors import CheckpointError, ConfigError, FolderInUseError
from ltnode.models import Model
from ltnode.training import checkpoint
from ltnode.training.config import TrainConfig
from ltnode.training.run_config import CONFIG, RUN_FOLDER_FORMAT, read_run_config
from ltnode.training.status import RunStatus

_LOG = logging.getLogger("ltnode")
_MAX_LOG_BYTES = 4 << 30


@dataclass(repr=False)
class Run:
    """The result of `ltnode.fit`.

    Attributes:
        model: The trained model, in eval mode.
        config: Training configuration.
        path: The run folder; None if nothing was written.
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

    def __repr__(self) -> str:
        name = self.config.model or type(self.model).__name__
        steps = f"{self.results.get('steps', 0)} of {self.results.get('total_steps', '?')} steps"
        return f"Run({name}, {self.status.value}, {steps}, {'no folder' if self.path is None else self.path})"


class RunFolder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.config_path = path / CONFIG
        self.metrics = path / "metrics.jsonl"
        self.results = path / "results.json"
        self.identity: str | None = None
        """What tells this run from others with the same model; set by `open`."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against training by other processes; the operating system releases the lock of a killed process.

        Raises:
            FolderInUseError: Another process is training in the folder.
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
            raise FolderInUseError(f"another process is training in {self.path}; wait for it, or choose another folder") from None
        except OSError:
            _LOG.debug("%s: this file system has no locks", self.path)
        try:
            yield
        finally:
            os.close(descriptor)

    def open(
        self,
        description: dict[str, Any],
        config: TrainConfig,
        resume: bool,
        start: str = "",
        check: Callable[[checkpoint.Checkpoint], None] = lambda found: None,
    ) -> checkpoint.Checkpoint | None:
        """Start a run in this folder, or return the last usable checkpoint from which to continue it; None for step 0.

        ``start`` is a digest of the initial weights, and ``check`` raises a CheckpointError for an unusable checkpoint.

        Raises:
            CheckpointError: The folder holds a run and ``resume`` is False, holds something else, or is damaged.
            ConfigError: The existing run has another configuration, model or data.
        """
        content = {"format": RUN_FOLDER_FORMAT, "kind": "run", "train": config.to_json(), **description}
        if not self._holds_something():
            self._make()
            self.identity = content["run"] = _digest([config.hash, description, start])
            files.remove_leftovers(self.path)
            files.write_json(self.config_path, content)
            return None
        if not self.config_path.exists():
            raise CheckpointError(f"{self.path} exists but is not a run folder (it has no config.json); choose another folder")
        if not resume:
            raise CheckpointError(
                f"{self.path} already holds a run ({self.status().value}); continue it with resume=True (--resume), "
                "or choose another folder"
            )
        existing = read_run_config(self.path, "a run folder")
        if existing["kind"] != "run":
            raise CheckpointError(f"{self.path} holds a saved model, not a run; choose another folder")
        self._compare(existing, content)
        self.identity = existing.get("run")
        files.remove_leftovers(self.path)
        files.remove_leftovers(self.checkpoints)

        def check_all(found: checkpoint.Checkpoint) -> None:
            if found.run != self.identity:
                raise CheckpointError("it belongs to another run")
            check(found)

        return checkpoint.latest(self.checkpoints, check_all)

    def status(self) -> RunStatus:
        """Return the status in results.json; a run that was killed is still ``RUNNING``."""
        try:
            return RunStatus(self.read_results()["status"])
        except (CheckpointError, ValueError, KeyError, TypeError):
            return RunStatus.RUNNING

    def truncate_metrics(self, size: int) -> list[dict[str, Any]]:
        """Truncate the log to its size at a checkpoint, so that no line is repeated; returns the remaining lines."""
        content = files.read_bytes(self.metrics, _MAX_LOG_BYTES) if self.metrics.exists() else b""
        if len(content) < size:
            _LOG.warning("%s is shorter than at the checkpoint: some lines of the log are lost", self.metrics)
        kept = content[:size]
        kept = kept[: kept.rfind(b"\n") + 1]
        lines = parse_log(self.metrics, kept)
        if kept != content:
            files.write_bytes(self.metrics, kept)
        return lines

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the lines of the log."""
        return self.truncate_metrics(self.metrics.stat().st_size if self.metrics.exists() else 0)

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Append one line to the log."""
        try:
            with self.metrics.open("ab") as file:
                file.write((json.dumps(line) + "\n").encode())
        except OSError as error:
            raise files.write_error(self.metrics, error) from error

    def sync_metrics(self) -> int:
        """Flush the log to disk; returns its size, which a checkpoint records."""
        if not self.metrics.exists():
            return 0
        try:
            with self.metrics.open("ab") as file:
                os.fsync(file.fileno())
                return file.tell()
        except OSError as error:
            raise files.write_error(self.metrics, error) from error

    def read_results(self) -> dict[str, Any]:
        """Return the content of results.json.

        Raises:
            CheckpointError: It is missing, damaged, or not from ltnode; the status then counts as `RunStatus.RUNNING`.
        """
        results: dict[str, Any] = files.read_json(self.results, _are_results, "a run folder")
        return results

    def _holds_something(self) -> bool:
        return self.path.is_dir() and any(not entry.name.startswith(files.TEMPORARY) for entry in self.path.iterdir())

    def _make(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise CheckpointError(f"{self.path} is a file; a run needs a folder")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise files.write_error(self.path, error) from error

    def _compare(self, existing: dict[str, Any], requested: dict[str, Any]) -> None:
        try:
            differences = TrainConfig.from_json(existing["train"]).differences(TrainConfig.from_json(requested["train"]))
        except (KeyError, TypeError, ConfigError) as error:
            raise CheckpointError(
                f"{self.config_path} is damaged: its training configuration cannot be read ({error})"
            ) from error
        if json.dumps(existing.get("model"), sort_keys=True) != json.dumps(requested["model"], sort_keys=True):
            differences.append(f"model: {existing.get('model')} -> {requested['model']}")
        if existing.get("teacher") != requested.get("teacher"):
            differences.append(f"teacher: {existing.get('teacher')} -> {requested.get('teacher')}")
        old, new = (description.get("data") or {} for description in (existing, requested))
        differences += [
            f"data.{key}: {old.get(key)} -> {new.get(key)}"
            for key in ("name", "n_train", "checksums")
            if old.get(key) != new.get(key)
        ]
        if differences:
            raise ConfigError(
                f"{self.path} cannot be resumed with another configuration: {'; '.join(differences)}. "
                "Resume with the original values, or train in another folder"
            )


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a training log; none if the file does not exist.

    Raises:
        CheckpointError: The file is damaged, or not a regular file.
    """
    return parse_log(path, files.read_bytes(path, _MAX_LOG_BYTES)) if path.exists() else []


def parse_log(path: Path, content: bytes) -> list[dict[str, Any]]:
    """The lines of the content of a training log.

    Raises:
        CheckpointError: A line is not a JSON object.
    """
    try:
        lines = [files.parse_json(line) for line in content.splitlines()]
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged ({error}); repair or delete it") from error
    if not all(_is_log_line(line) for line in lines):
        raise CheckpointError(f"{path} is damaged (a line is not a table of numbers); repair or delete it")
    return lines


def _are_results(value: Any) -> bool:
    """Whether a value is what the end of a training writes, as far as commands read it again."""
    if not isinstance(value, dict) or not isinstance(value.get("message"), str | None):
        return False
    provenance = value.get("provenance")
    counts = all(isinstance(value.get(name), int) for name in ("steps", "total_steps"))
    return counts and isinstance(provenance, dict) and is_finite_number(provenance.get("wall_time_s"))


def _is_log_line(line: Any) -> bool:
    """Whether a value is what the loop writes: numbers and words, and groups of numbers such as ``validation``."""
    if not isinstance(line, dict) or not all(_is_number(line[name]) for name in ("loss", "step") if name in line):
        return False
    return all(
        all(_is_number(inner) for inner in value.values()) if isinstance(value, dict) else not isinstance(value, list)
        for value in line.values()
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]
