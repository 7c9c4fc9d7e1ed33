"""``ltnode.fit``: the training loop, from the first step or from where it stopped."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import torch

from ltnode import metrics
from ltnode.counter_rng import hash_counters
from ltnode.data import Dataset
from ltnode.device import choose_device, product_precision
from ltnode.errors import CheckpointError, ConfigError
from ltnode.models import Model
from ltnode.ode import SolverError
from ltnode.training import checkpoint, saving, tensor_file
from ltnode.training.batches import TrainingData, as_dataset
from ltnode.training.config import TrainConfig
from ltnode.training.distributed import Workers
from ltnode.training.metrics_log import MetricsLog
from ltnode.training.presets import train_preset
from ltnode.training.progress import progress_bar, tensorboard, tensorboard_writer
from ltnode.training.provenance import provenance
from ltnode.training.run import Run, RunFolder
from ltnode.training.status import RunStatus, TrainingError
from ltnode.training.step import make_optimizers, make_step, set_learning_rates
from ltnode.training.stopping import stop_requests
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")
_DESCRIBED = 256
_FINISHING = 2048
_VALIDATION_BATCH = 1024

OnLog = Callable[[Mapping[str, Any]], None]


def fit(
    model: Model,
    data: Any,
    config: TrainConfig | None = None,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    on_log: OnLog | None = None,
) -> Run:
    """Train a model.

    On the CPU the same configuration gives the same numbers, and a run that was interrupted and resumed ends with the same
    weights, bit for bit, as one that was not. Under ``torchrun`` every batch is shared by the processes.

    Args:
        model: Trained in place; it is moved to the device of the configuration and left in eval mode.
        data: A `Dataset`, or a pair (x, y) of arrays or tensors, which are used as they are.
        config: By default `train_preset` of the model and the data.
        out: The run folder; None writes nothing.
        resume: Continue the run in ``out``, or begin it when there is none.
        on_log: Called with every line of the log.

    Raises:
        TrainingError: The loss became NaN or infinite, the solve failed, or another process died; ``status`` and the message
            say what to change. The last checkpoint stays.
        CheckpointError: ``out`` holds a run (and ``resume`` is False) or something else, is damaged, or cannot be written.
        ConfigError: The configuration does not fit the model, or not the run that is resumed.
        InputError: The data do not fit the model.
    """
    dataset = as_dataset(data, model)
    config = checked_config(config, model, dataset, out, resume)
    device = choose_device(config.device)
    workers = Workers.start(device)
    try:
        with ExitStack() as stack:
            # The caller's random numbers go on as if nothing had happened.
            stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
            stack.enter_context(product_precision(config.precision))
            training = Training(model, dataset, config, device, workers, None if out is None else Path(out), on_log)
            return training.run(resume)
    finally:
        workers.stop()


def checked_config(
    config: TrainConfig | None, model: Model, dataset: Dataset, out: str | Path | None, resume: bool
) -> TrainConfig:
    """The configuration of a training, by default the preset's; refused before anything is written.

    Raises:
        ConfigError: It is for another model, there is no folder to resume from, or something is not installed.
    """
    name = None if model.spec is None else model.spec["model"]
    if config is None:
        config = train_preset(name or "lt-node", dataset).replace(model=name)
    if config.model is not None and name is not None and config.model != name:
        raise ConfigError(
            f"the configuration is for {config.model!r}, but the model is {name!r}; set config.model to {name!r} or none"
        )
    if resume and out is None:
        raise ConfigError("resume=True needs out, the folder of the run")
    if config.tensorboard:
        tensorboard_writer()  # not only after the folder was made
    return config


class Training:
    """One training: its parts, and where it stands. `run` does it in one go, `steps` one step at a time."""

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
    ) -> None:
        # Recorded next to the wall time, which concurrent runs share.
        self.concurrent_runs = concurrent_runs
        self.model, self.config, self.device, self.workers, self.on_log = model, config, device, workers, on_log
        self.data = TrainingData.of(dataset, model, config, device)
        model.to(device).train()
        workers.same_start(model)
        self.optimizers = make_optimizers(model, config)
        example, _ = self.data.evaluation_inputs(self.data.train, 1)
        self.step_function = make_step(
            model,
            self.optimizers,
            config,
            len(self.data.train),
            workers=workers,
            example=example,
            concurrent_runs=concurrent_runs,
        )
        self.folder = None if out is None else RunFolder(out)
        self.result = Run(model, config, out)
        self.log = MetricsLog(device)
        self.steps_done = 0
        self.seconds_before = 0.0
        self.began = self.saved_at = time.monotonic()
        self.saved_step = -1

    @property
    def total_steps(self) -> int:
        """Steps of the whole training."""
        return self.config.epochs * self.data.steps_per_epoch

    @property
    def seconds(self) -> float:
        """Wall time so far, that of earlier processes included."""
        return self.seconds_before + time.monotonic() - self.began

    def run(self, resume: bool) -> Run:
        """Begin or continue, train, finish, and record how it ended; SIGINT and SIGTERM end it between two steps."""
        with (
            stop_requests(enabled=self.workers.world == 1) as stop,
            progress_bar(self.total_steps, self.workers.is_writer) as advance,
            closing(self.steps(resume, lambda: stop.signal is not None)) as losses,
        ):
            for loss in losses:
                advance(self.steps_done, loss)
        if stop.signal is not None:
            signal.raise_signal(stop.signal)  # now it does what it would have done at once
        return self.result

    def steps(self, resume: bool, stopped: Callable[[], bool]) -> Generator[float | None]:
        """The whole training, with a pause after every step, which gives the loss where it is known.

        Between two steps other work may be done, with torch's random numbers put back to where this training left them.

        Args:
            resume: Continue the run in the folder.
            stopped: Asked before every step; once it says yes, the state is saved and the training ends.
        """
        torch.manual_seed(hash_counters(self.config.seed, self.workers.rank) >> 1)
        self.began = self.saved_at = time.monotonic()
        with ExitStack() as stack:
            if self.folder is not None and self.workers.is_writer:
                stack.enter_context(self.folder.locked())
            if self._open(resume):
                return
            try:
                yield from self._train(stopped)
                if self.steps_done < self.total_steps:
                    self._interrupted()
                else:
                    self._finish()
            except TrainingError as error:
                error.run = self.result
                self._end(error.status, str(error))
                raise

    def release(self) -> None:
        """Give back what only further steps would need, such as captured graphs."""
        del self.step_function

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
                    if self._checkpoint_is_due():
                        self._save()
                    yield loss
                done = 0
        self._save()

    def _open(self, resume: bool) -> bool:
        """Begin or continue the run folder; True when there is nothing left to do."""
        if self.folder is None:
            return False
        folder = self.folder
        description = {"model": saving.portable_spec(self.model), "data": self.data.describe()}
        found, complete = self.workers.agree(
            lambda: (folder.open(description, self.config, resume), folder.status() is RunStatus.COMPLETE)
        )
        if complete and self._load_complete():
            return True
        if found is None:
            if resume:
                _LOG.info("%s holds no checkpoint: training from step 0", folder.path)
            if self.workers.is_writer:
                folder.truncate_metrics(0)
            return False
        self._restore(found)
        return False

    def _restore(self, found: checkpoint.Checkpoint) -> None:
        assert self.folder is not None
        tensors = found.tensors
        weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        checkpoint.restore_model(self.model, weights, self.folder.checkpoints)
        for phase, optimizer in self.optimizers.items():
            checkpoint.restore_optimizer(phase, optimizer, tensors)
        self.model.load_solver_state(found.state["solver"])
        self.steps_done = self.saved_step = found.step
        if self.workers.is_writer:
            checkpoint.restore_generators(tensors)
            self.result.history = self.folder.truncate_metrics(found.state["metrics_bytes"])
        else:
            torch.manual_seed(hash_counters(self.config.seed, self.workers.rank, found.step) >> 1)
        self.log.load_state(found.state["log"])
        self.seconds_before = found.state["seconds"]
        epoch, position = divmod(self.steps_done, self.data.steps_per_epoch)
        _LOG.info("%s: resumed from step %d (epoch %d, batch %d)", self.folder.path, self.steps_done, epoch, position)

    def _load_complete(self) -> bool:
        assert self.folder is not None
        try:
            weights = tensor_file.read(self.folder.path / "model.safetensors")
        except CheckpointError as error:
            _LOG.warning(
                "%s: the finished model cannot be read and is made again from the last checkpoint: %s", self.folder.path, error
            )
            return False
        checkpoint.restore_model(self.model, weights, self.folder.path)
        self.model.eval()
        self.result.results = self.folder.read_results()
        self.result.history = self.folder.read_metrics()
        self.result.status = RunStatus.COMPLETE
        _LOG.info("%s: the run is complete, nothing to do", self.folder.path)
        return True

    def _log_is_due(self) -> bool:
        return self.steps_done % self.config.log_every == 0 or self.steps_done == self.total_steps or self._validation_is_due()

    def _validation_is_due(self) -> bool:
        """At ends of epochs, but no more often than the log."""
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
        line["learnt"] = self._quietly(lambda: self.model.describe(x))
        line |= self.step_function.counts()
        if self._validation_is_due() and self.workers.is_writer:
            line["validation"] = self._quietly(self._validate)
        self.result.history.append(line)
        if self.folder is not None and self.workers.is_writer:
            self.folder.append_metrics(line)
        if self.on_log is not None:
            self.on_log(line)
        self.log.restart_clock()
        return line

    def _validate(self) -> dict[str, float]:
        assert self.data.validation is not None
        x, y = self.data.evaluation_inputs(self.data.validation)
        parts = [self.model.predict(part) for part in torch.split(x, _VALIDATION_BATCH)]
        if self.model.task == "classification":
            probs = torch.cat([p.probs for p in parts])
            return {"error": metrics.error(probs, y), "log_likelihood": metrics.log_likelihood(probs, y)}
        return {"rmse": metrics.rmse(torch.cat([p.mean for p in parts]), y.to(x.dtype))}

    def _quietly(self, look: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Look at the model without a trace in its mode or in the random numbers of the training."""
        with torch.no_grad(), torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            self.model.eval()
            try:
                return look()
            finally:
                self.model.train()

    def _checkpoint_is_due(self) -> bool:
        if self.folder is None or not self.workers.is_writer:
            return False
        epochs, position = divmod(self.steps_done, self.data.steps_per_epoch)
        every = self.config.checkpoint_epochs
        minutes = self.config.checkpoint_minutes
        return (every is not None and position == 0 and epochs % every == 0) or (
            minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes
        )

    def _save(self) -> None:
        """Write a checkpoint of the state between two steps, unless there is one or the state is no good."""
        if self.folder is None or not self.workers.is_writer or self.steps_done == self.saved_step:
            return
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters()) or not self.log.is_finite():
            raise TrainingError(RunStatus.NON_FINITE, f"a parameter became NaN or infinite before step {self.steps_done}")
        tensors: dict[str, Tensor] = {f"model.{name}": value for name, value in checkpoint.model_tensors(self.model).items()}
        for phase, optimizer in self.optimizers.items():
            tensors |= checkpoint.optimizer_tensors(phase, optimizer)
        tensors |= checkpoint.generator_tensors()
        epoch, position = divmod(self.steps_done, self.data.steps_per_epoch)
        state = {
            "epoch": epoch,
            "position": position,
            "metrics_bytes": self.folder.sync_metrics(),
            "log": self.log.state(),
            "solver": self.model.solver_state(),
            "seconds": self.seconds,
        }
        reached = checkpoint.Checkpoint(self.steps_done, tensors, state)
        checkpoint.write(self.folder.checkpoints, reached, self.config.keep_checkpoints)
        self.saved_at, self.saved_step = time.monotonic(), self.steps_done

    def _finish(self) -> None:
        """Fit what prediction needs besides weights, save the model, record the result."""
        x, y = self.data.evaluation_inputs(self.data.train, _FINISHING)
        self.model.eval()
        try:
            self.model.finish_training(x, y)
        except SolverError as error:
            raise TrainingError(RunStatus.SOLVER_FAILED, f"fitting the stored grid after the last step: {error}") from error
        if self.folder is not None and self.workers.is_writer:
            saving.write_weights(self.model, self.folder.path)
        self._end(RunStatus.COMPLETE)

    def _interrupted(self) -> None:
        self._save()
        self.model.eval()
        self._end(RunStatus.INTERRUPTED, f"stopped at step {self.steps_done} of {self.total_steps}")

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
        }
        if self.folder is not None and self.workers.is_writer:
            self.folder.write_results(self.result.results)
