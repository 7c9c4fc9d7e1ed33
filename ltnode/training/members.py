"""An ensemble in one run folder: its networks are trained concurrently, each in a run folder of its own inside.

config.json, results.json, model.safetensors    the ensemble, as of any other run
metrics.jsonl                                   one line: the validation of the ensemble
members/seed-0/, members/seed-1/, ...           the runs of the networks, from which an interrupted training continues; an
                                                ensemble that was assembled from finished runs has no copy of them
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from ltnode import files
from ltnode.data import Dataset
from ltnode.device import choose_device, product_precision
from ltnode.errors import CheckpointError, ConfigError
from ltnode.models import Ensemble, LatentTimeODE, Model
from ltnode.training import saving, tensor_file
from ltnode.training.batches import TrainingData, as_dataset
from ltnode.training.checkpoint import restore_model
from ltnode.training.config import TrainConfig
from ltnode.training.engine import Job, checked_config, fit_together
from ltnode.training.finishing import finish
from ltnode.training.provenance import provenance
from ltnode.training.run import Run, RunFolder
from ltnode.training.status import RunStatus
from ltnode.training.validation import validate

_LOG = logging.getLogger("ltnode")
TrainJobs = Callable[[Sequence[Job]], list[Run]]
"""Trains jobs to their end, possibly in other processes; returns their runs in order."""


def fit_members(
    build: Callable[[int], Model],
    data: Any,
    config: TrainConfig | None = None,
    members: int = 5,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    train: TrainJobs | None = None,
) -> Run:
    """Train an ensemble without choosing an operating point; `ltnode.fitting.fit_members` has the contract."""
    if isinstance(members, bool) or not isinstance(members, int) or members < 2:
        raise ConfigError(f"an ensemble has 2 or more members, not {members!r}; use ltnode.fit for one network")
    first = build(0 if config is None else config.seed)
    dataset = as_dataset(data, first)
    base = checked_config(config, first, dataset, out, resume)
    base = base.replace(split_seed=base.parts_seed)  # all networks hold out the same examples
    seeds = range(base.seed, base.seed + members)
    networks = [build(seed) for seed in seeds]
    for network in networks:
        if not isinstance(network, LatentTimeODE):
            raise ConfigError(f"an ensemble consists of models with an end-time such as lt-node, not of {type(network).__name__}")
    ensemble = Ensemble([network for network in networks if isinstance(network, LatentTimeODE)])
    whole = _config_of_all(base, members)
    folder = None if out is None else RunFolder(Path(out))
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(folder.locked())
        assembly = _Assembly(ensemble, dataset, whole, folder)
        if folder is not None and assembly.open(folder, resume):
            return assembly.run
        jobs = [
            Job(network, dataset, base.replace(seed=seed), None if folder is None else member_folder(folder.path, seed))
            for network, seed in zip(networks, seeds, strict=True)
        ]
        assembly.assemble(fit_together(jobs, resume=resume) if train is None else train(jobs))
    return assembly.run


def assemble_members(runs: Sequence[Run], data: Any, out: str | Path | None = None) -> Run:
    """Make an ensemble of finished runs without an operating point; `ltnode.fitting.assemble_members` has the contract."""
    networks = [run.model for run in runs if isinstance(run.model, LatentTimeODE) and run.status is RunStatus.COMPLETE]
    if len(runs) < 2 or len(networks) < len(runs):
        raise ConfigError(
            "an ensemble is made of 2 or more complete runs of models with an end-time such as lt-node, not of "
            f"{[f'{type(run.model).__name__}, {run.status.value}' for run in runs]}"
        )
    base = runs[0].config.replace(split_seed=runs[0].config.parts_seed)
    for run in runs[1:]:
        other = run.config.replace(seed=base.seed, split_seed=run.config.parts_seed)
        if different := base.differences(other):
            raise ConfigError(f"the networks of an ensemble differ in their seed only, not in {'; '.join(different)}")
    folder = None if out is None else RunFolder(Path(out))
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(folder.locked())
        assembly = _Assembly(Ensemble(networks), as_dataset(data, networks[0]), _config_of_all(base, len(runs)), folder)
        if folder is not None:
            assembly.open(folder, resume=False)
        assembly.assemble(list(runs))
    return assembly.run


def _config_of_all(base: TrainConfig, members: int) -> TrainConfig:
    described = {"of": base.model, "members": members}
    return base.replace(model="ensemble", model_options={k: v for k, v in described.items() if v is not None})


def member_folder(out: Path, seed: int) -> Path:
    """Return the run folder of one network."""
    return out / "members" / f"seed-{seed}"


class _Assembly:
    """The run of an ensemble, whose networks are trained by other runs."""

    def __init__(self, ensemble: Ensemble, dataset: Dataset, config: TrainConfig, folder: RunFolder | None) -> None:
        self.ensemble, self.config, self.folder = ensemble, config, folder
        self.device = choose_device(config.device)
        self.data = TrainingData.of(dataset, ensemble, config, self.device)
        self.run = Run(ensemble, config, None if folder is None else folder.path)

    def open(self, folder: RunFolder, resume: bool) -> bool:
        """Start or continue in a folder; returns True if the ensemble is already complete, and then loads it."""
        folder.open({"model": saving.portable_spec(self.ensemble), "data": self.data.describe()}, self.config, resume)
        if folder.status() is not RunStatus.COMPLETE:
            return False
        try:
            weights = tensor_file.read(folder.path / "model.safetensors")
        except CheckpointError as error:
            _LOG.warning("%s: the model cannot be read and is assembled again: %s", folder.path, error)
            return False
        restore_model(self.ensemble, weights, folder.path)
        self.ensemble.to(self.device).eval()
        self.run.results, self.run.history = folder.read_results(), folder.read_metrics()
        self.run.status = RunStatus.COMPLETE
        _LOG.info("%s: the run is already complete", folder.path)
        return True

    def assemble(self, runs: list[Run]) -> None:
        """Fit what belongs to the ensemble as a whole, save it, and record the result."""
        began = time.monotonic()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # every network was trained on a stream of its own
        unfinished = [run for run in runs if run.status is not RunStatus.COMPLETE]
        if not unfinished:
            with torch.no_grad(), product_precision("fp32"):
                finish(self.ensemble.to(self.device), self.data, {})
                line: dict[str, Any] = {"step": sum(run.results["steps"] for run in runs)}
                if self.data.validation is not None:
                    line["validation"] = validate(self.ensemble, self.data)
            self.run.history = [line]
        self.run.status = unfinished[0].status if unfinished else RunStatus.COMPLETE
        # The networks take turns, so that each of them has measured the time of all.
        seconds = max(run.results["provenance"]["wall_time_s"] for run in runs) + time.monotonic() - began
        self.run.results = {
            "status": self.run.status.value,
            "message": None if not unfinished else f"{len(unfinished)} of {len(runs)} networks are not complete",
            "steps": sum(run.results["steps"] for run in runs),
            "total_steps": sum(run.results["total_steps"] for run in runs),
            "concurrent_runs": len(runs),
            "last": self.run.history[-1] if self.run.history else None,
            "members": [{"seed": run.config.seed, "weights": _digest(run.model)} for run in runs],
            "provenance": provenance(self.config, self.data.describe(), self.device, seconds),
        }
        if self.folder is not None:
            if not unfinished:
                self.folder.truncate_metrics(0)
                self.folder.append_metrics(self.run.history[-1])
                saving.write_weights(self.ensemble, self.folder.path)
            files.write_json(self.folder.results, self.run.results)


def _digest(network: Model) -> str:
    return tensor_file.digest({name: p.detach().cpu().contiguous() for name, p in network.named_parameters()})
