"""The training loop of one run, from the first step or from where the run stopped."""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from ltnode import files
from ltnode.counter_rng import hash_counters
from ltnode.data import Dataset
from ltnode.data.streaming import resident
from ltnode.errors import CheckpointError
from ltnode.models import Model
from ltnode.ode import SolverError
from ltnode.progress import progress_bar
from ltnode.training import checkpoint, saving, tensor_file
from ltnode.training.batches import Teacher, TrainingData
from ltnode.training.callbacks import Callbacks
from ltnode.training.config import TrainConfig
from ltnode.training.distributed import Workers
from ltnode.training.finishing import averaged_weights, finish
from ltnode.training.metrics_log import MetricsLog, tensorboard
from ltnode.training.provenance import provenance
from ltnode.training.run import Run, RunFolder
from ltnode.training.status import RunStatus, TrainingError
from ltnode.training.step import make_averages, make_optimizers, make_step, set_learning_rates
from ltnode.training.stopping import stop_requests
from ltnode.training.transfer import freeze
from ltnode.training.validation import observing, validate

_LOG = logging.getLogger("ltnode")
_DESCRIBED = 256
"""Number of training inputs on which a line of the log describes the model."""

_CHECKPOINT_SECONDS = 25.0
"""Seconds between checkpoints where `checkpoint_minutes` allows more, so that a killed process loses less than 30 s of work."""
_CHECKPOINT_COST = 100.0
"""The interval is at least this many times as long as writing the last checkpoint took: it costs at most 1 % of the time."""

OnLog = Callable[[Mapping[str, Any]], None]


class Training:
    """One training and its progress. `run` trains to the end, `steps` one step at a time.

    ``concurrent_runs`` is the number of trainings of this process that take turns, and thereby share the wall time.
    """

    def __init__(
        self,
        model: Model,
        dataset: Dataset,
        config: TrainConfig,
        device: torch.device,
        workers: Workers,
        out: Path | None,
        on_log: OnLog | None,
        concurrent_runs: int = 1,
        teacher: Teacher | None = None,
        callbacks: Callbacks | None = None,
    ) -> None:
        self.model, self.config, self.device, self.workers, self.on_log = model, config, device, workers, on_log
        self.concurrent_runs, self.callbacks = concurrent_runs, callbacks or Callbacks()
        self.data = TrainingData.of(dataset, model, config, device, teacher)
        model.to(device).train()
        freeze(model, config.frozen)
        workers.same_start(model)
        self.optimizers = make_optimizers(model, config)
        self.averages = make_averages(self.optimizers, config)
        example, _ = self.data.evaluation_inputs(self.data.train, 1)
        self.step_function = make_step(
            model,
            self.optimizers,
            config,
            len(self.data.train),
            workers=workers,
            averages=self.averages,
            example=resident(example),
            concurrent_runs=concurrent_runs,
        )
        self.folder = None if out is None else RunFolder(out)
        self.result = Run(model, config, out)
        self.log = MetricsLog(device)
        self.steps_done = 0
        self.seconds_before = 0.0
        self.began = self.saved_at = time.monotonic()
        self.saved_step = -1
        self._checkpoint_interval = _CHECKPOINT_SECONDS

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole training."""
        return self.config.epochs * self.data.steps_per_epoch

    @property
    def seconds(self) -> float:
        """Wall time so far, including earlier processes of a resumed run."""
        return self.seconds_before + time.monotonic() - self.began

    def run(self, resume: bool) -> Run:
        """Start or continue, train, finish, and record the result; a signal to stop takes effect between two steps."""
        with (
            stop_requests(enabled=self.workers.world == 1) as stop,
            progress_bar("training", self.total_steps, "steps", self.workers.is_writer) as report,
            closing(self.steps(resume, lambda: stop.signal is not None)) as losses,
        ):
            for loss in losses:
                report.completed(self.steps_done, "" if loss is None else f"loss {loss:.4g}")
        if stop.signal is not None:
            signal.raise_signal(stop.signal)  # the run is saved, so the signal may now have its usual effect
        return self.result

    def steps(self, resume: bool, stopped: Callable[[], bool]) -> Generator[float | None]:
        """Train, and yield after every step: the loss if a line of the log was written, else None.

        The caller may do other work between two steps if it restores the random state of torch. ``stopped`` is called before
        every step; once it returns True, the state is saved and the training stops.
        """
        torch.manual_seed(hash_counters(self.config.seed, self.workers.rank) >> 1)
        self.began = self.saved_at = time.monotonic()
        with ExitStack() as stack:
            if self.folder is not None and self.workers.is_writer:
                stack.enter_context(self.folder.locked())
            if self.folder is not None and self._open(self.folder, resume):
                return
            try:
                yield from self._train(stopped)
                if self.steps_done < self.total_steps:
                    self._save()
                    self.model.eval()
                    self._end(RunStatus.INTERRUPTED, f"stopped at step {self.steps_done} of {self.total_steps}")
                else:
                    self._finish()
            except TrainingError as error:
                error.run = self.result
                self._end(error.status, str(error))
                raise

    def release(self) -> None:
        """Free what only further steps would need, such as captured graphs."""
        del self.step_function

    # -- starting ------------------------------------------------------------------------------------------------------------

    def _open(self, folder: RunFolder, resume: bool) -> bool:
        """Start or continue the run in a folder; returns True if it is already complete."""
        description = {"model": saving.portable_spec(self.model), "data": self.data.describe(), **self._taught_by()}
        latest, complete = self.workers.agree(
            lambda: (
                folder.open(description, self.config, resume, self._start_digest(), self._check_state),
                folder.status() is RunStatus.COMPLETE,
            )
        )
        if complete and self._load_complete(folder):
            return True
        if latest is not None:
            self._restore(folder, latest)
            return False
        if resume:
            _LOG.info("%s holds no checkpoint: training starts at step 0", folder.path)
        if self.workers.is_writer:
            folder.truncate_metrics(0)
        return False

    def _load_complete(self, folder: RunFolder) -> bool:
        try:
            weights = tensor_file.read(folder.path / "model.safetensors")
        except CheckpointError as error:
            _LOG.warning("%s: the model cannot be read and is rebuilt from the last checkpoint: %s", folder.path, error)
            return False
        checkpoint.restore_model(self.model, weights, folder.path)
        self.model.eval()
        self.result.results = folder.read_results()
        self.result.history = folder.read_metrics()
        self.result.status = RunStatus.COMPLETE
        _LOG.info("%s: the run is already complete", folder.path)
        return True

    def _start_digest(self) -> str:
        weights = checkpoint.model_tensors(self.model)
        return tensor_file.digest({name: value.detach().cpu().contiguous() for name, value in weights.items()})

    def _check_state(self, found: checkpoint.Checkpoint) -> None:
        """Refuse a checkpoint whose counters cannot be those of this run."""
        state = found.state
        place = divmod(found.step, self.data.steps_per_epoch)
        if found.step > self.total_steps or (state.get("epoch"), state.get("position")) != place:
            raise CheckpointError(f"it is at step {found.step} of {self.total_steps}, in an epoch that does not fit")
        size, seconds = state.get("metrics_bytes"), state.get("seconds")
        if not isinstance(size, int) or size < 0 or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
            raise CheckpointError("its size of the log or its time is not a number >= 0")
        if not isinstance(state.get("solver"), dict) or not isinstance(state.get("log"), dict):
            raise CheckpointError("its state of the solver or of the log is missing")

    def _restore(self, folder: RunFolder, latest: checkpoint.Checkpoint) -> None:
        try:
            checkpoint.restore_training(self.model, self.optimizers, latest, folder.checkpoints, self.averages)
            self.model.load_solver_state(latest.state["solver"])
            self.log.load_state(latest.state["log"])
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = f"the state in {folder.checkpoints} cannot be restored ({type(error).__name__}: {error})"
            raise CheckpointError(f"{reason}; restore it from a backup, or train in another folder") from error
        self.steps_done = self.saved_step = latest.step
        if self.workers.is_writer:
            checkpoint.restore_generators(latest.tensors)
            self.result.history = folder.truncate_metrics(latest.state["metrics_bytes"])
        else:
            torch.manual_seed(hash_counters(self.config.seed, self.workers.rank, latest.step) >> 1)
        self.seconds_before = latest.state["seconds"]
        epoch, position = divmod(self.steps_done, self.data.steps_per_epoch)
        _LOG.info("%s: resumed from step %d (epoch %d, batch %d)", folder.path, self.steps_done, epoch, position)

    # -- the loop ------------------------------------------------------------------------------------------------------------

    def _train(self, stopped: Callable[[], bool]) -> Generator[float | None]:
        config, data, workers = self.config, self.data, self.workers
        first_epoch, done = divmod(self.steps_done, data.steps_per_epoch)
        events = self.folder.path / "tensorboard" if self.folder and config.tensorboard and workers.is_writer else None
        with tensorboard(events, self.steps_done) as write_events:
            for epoch in range(first_epoch, config.epochs):
                set_learning_rates(self.optimizers, config.lr_factor(epoch))
                for batch in data.batches(epoch, done, workers.rank, workers.world):
                    if stopped():
                        return
                    parts = self.step_function(batch)
                    self.steps_done += 1
                    self.log.add(parts, batch.n_examples or len(batch.indices), self.model.solve_stats)
                    loss = None
                    if self._log_is_due():
                        line = self._write_line(epoch)
                        write_events(line)
                        loss = line["loss"]
                    self.callbacks.on_step(self._event(epoch, total_steps=self.total_steps, loss=parts["loss"]))
                    if self._checkpoint_is_due():
                        self._save()
                    yield loss
                done = 0
                self.callbacks.on_epoch(self._event(epoch, log=self.result.history[-1] if self.result.history else None))
        self._save()

    def _event(self, epoch: int, **facts: Any) -> dict[str, Any]:
        return {"step": self.steps_done, "epoch": epoch, **facts}

    def _log_is_due(self) -> bool:
        return self.steps_done % self.config.log_every == 0 or self.steps_done == self.total_steps or self._validation_is_due()

    def _validation_is_due(self) -> bool:
        """Whether an epoch has ended and the last validation is at least ``log_every`` steps ago."""
        epochs, position = divmod(self.steps_done, self.data.steps_per_epoch)
        if self.data.validation is None or position:
            return False
        every = -(-self.config.log_every // self.data.steps_per_epoch)
        return epochs % every == 0 or self.steps_done == self.total_steps

    def _write_line(self, epoch: int) -> dict[str, Any]:
        if not self.log.is_finite():
            raise TrainingError(RunStatus.NON_FINITE, f"the loss became NaN or infinite before step {self.steps_done}")
        line: dict[str, Any] = {"step": self.steps_done, "epoch": epoch, **self.log.take()}
        line["lr"] = {f"{phase}.{g['role']}": g["lr"] for phase, o in self.optimizers.items() for g in o.param_groups}
        x, _ = self.data.evaluation_inputs(self.data.train, _DESCRIBED)
        with observing(self.model, self.device):
            line["learnt"] = self.model.describe(x)
        line |= self.step_function.counts()
        if self._validation_is_due() and self.workers.is_writer:
            with averaged_weights(self.model, self.averages, self.data), observing(self.model, self.device):
                line["validation"] = validate(self.model, self.data)
        self.result.history.append(line)
        if self.folder is not None and self.workers.is_writer:
            self.folder.append_metrics(line)
        if self.on_log is not None:
            self.on_log(line)
        self.log.restart_clock()
        return line

    def _checkpoint_is_due(self) -> bool:
        if self.folder is None or not self.workers.is_writer:
            return False
        epochs, position = divmod(self.steps_done, self.data.steps_per_epoch)
        every, minutes = self.config.checkpoint_epochs, self.config.checkpoint_minutes
        return (every is not None and position == 0 and epochs % every == 0) or (
            minutes is not None and time.monotonic() - self.saved_at >= min(60 * minutes, self._checkpoint_interval)
        )

    def _save(self) -> None:
        """Write a checkpoint of the current state, unless it exists already.

        Raises:
            TrainingError: A parameter or the loss is not finite.
        """
        if self.folder is None or not self.workers.is_writer or self.steps_done == self.saved_step:
            return
        began = time.monotonic()
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters()) or not self.log.is_finite():
            raise TrainingError(RunStatus.NON_FINITE, f"a parameter became NaN or infinite before step {self.steps_done}")
        epoch, position = divmod(self.steps_done, self.data.steps_per_epoch)
        state = {
            "epoch": epoch,
            "position": position,
            "metrics_bytes": self.folder.sync_metrics(),
            "log": self.log.state(),
            "solver": self.model.solver_state(),
            "seconds": self.seconds,
        }
        tensors = checkpoint.training_tensors(self.model, self.optimizers, self.averages)
        reached = checkpoint.Checkpoint(self.steps_done, tensors, state, self.folder.identity)
        path = checkpoint.write(self.folder.checkpoints, reached, self.config.keep_checkpoints)
        self.saved_at, self.saved_step = time.monotonic(), self.steps_done
        self._checkpoint_interval = max(_CHECKPOINT_SECONDS, _CHECKPOINT_COST * (self.saved_at - began))
        self.callbacks.on_checkpoint({"step": self.steps_done, "path": path})

    # -- ending --------------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Use the averaged weights, fit what predictions need besides weights, save the model, and record the result."""
        try:
            finish(self.model, self.data, self.averages)
        except SolverError as error:
            raise TrainingError(RunStatus.SOLVER_FAILED, f"fitting the prediction grid after the last step: {error}") from error
        if self.folder is not None and self.workers.is_writer:
            saving.write_weights(self.model, self.folder.path)
        self._end(RunStatus.COMPLETE)

    def _taught_by(self) -> dict[str, Any]:
        """What a teacher says about itself, for the records of the run."""
        record = getattr(self.data.teacher, "record", None)
        return {} if record is None else {"teacher": record}

    def _end(self, status: RunStatus, message: str | None = None) -> None:
        self.result.status = status
        self.result.results = {
            "status": status.value,
            "message": message,
            "steps": self.steps_done,
            "total_steps": self.total_steps,
            "concurrent_runs": self.concurrent_runs,
            "last": self.result.history[-1] if self.result.history else None,
            "provenance": provenance(self.config, self.data.describe(), self.device, self.seconds),
            **self._taught_by(),
        }
        if self.folder is not None and self.workers.is_writer:
            files.write_json(self.folder.results, self.result.results)
