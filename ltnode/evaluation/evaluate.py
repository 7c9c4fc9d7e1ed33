"""``ltnode.evaluate``: put a trained model through protocols and keep the rows in a file that can be continued."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ltnode._version import __version__
from ltnode.data import Dataset
from ltnode.data import load as load_data
from ltnode.data.streaming import part_size
from ltnode.errors import InputError, unknown_name
from ltnode.evaluation.options import EvaluationOptions
from ltnode.evaluation.predict import Predictor
from ltnode.evaluation.protocols import PROTOCOLS, Context
from ltnode.evaluation.results import ResultFile, ResultRow
from ltnode.models import Model
from ltnode.models.contract import evaluating
from ltnode.progress import progress_bar
from ltnode.trained import TrainedModel
from ltnode.training import Run
from ltnode.training.provenance import device_name, source_state

_LOG = logging.getLogger("ltnode")
_OWN = ("clean", "temperature", "conformal")
"""Protocols for classifiers of users' own data."""


def evaluate(
    run: TrainedModel | Run | Model | str | Path,
    data: Dataset | str | None = None,
    protocols: Sequence[str] | None = None,
    *,
    ood: Dataset | str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    device: str | None = None,
    **options: Any,
) -> list[ResultRow]:
    """Evaluate a trained model under protocols.

    The results are a function of the model, the data and the options: on the CPU, repeated evaluations give identical numbers.

    Args:
        run: A run, a model, or the folder of either.
        data: The data set or its name; by default the one that the run records.
        protocols: Names of `ltnode.evaluation.PROTOCOLS`; by default the paper's protocols that are applicable to the data.
        ood: The out-of-distribution set or its name; by default the partner of the data set.
        out: JSON file for the rows and their provenance. It is written after every protocol, and protocols that it already holds
            are skipped, so that an interrupted evaluation can be continued.
        overwrite: Start ``out`` again instead of continuing it.
        device: Device to evaluate on, such as ``"cuda"``; by default the device of the model, or the best one for a folder.
        **options: Fields of `EvaluationOptions`, such as ``samples``, ``draw``, ``steps``, ``limit``, ``draw_seed``.

    Returns:
        One row per number or curve, protocol by protocol.

    Raises:
        InputError: A protocol or an option is unknown, or the data do not fit the model.
        ConfigError: ``out`` holds results of another model, other data or other options.
        CheckpointError: A folder or a file is missing, damaged, or cannot be written.
    """
    chosen = EvaluationOptions.of(**options)
    trained = TrainedModel.of(run, data, device)
    dataset = trained.dataset(data)
    names = _checked_protocols(default_protocols(dataset, ood) if protocols is None else protocols, dataset)
    other = _other_set(ood, dataset) if any(PROTOCOLS[name].other_set for name in names) else None
    larger_batches = chosen.batch_size is None
    chosen = chosen.resolved(trained.preset)
    if larger_batches and chosen.batch_size is not None and chosen.steps == "stored":  # large images in small batches
        chosen = replace(chosen, batch_size=part_size(dataset.test.x, chosen.batch_size))
    context = Context(trained, dataset, Predictor(trained.model, dataset.prepare, chosen, larger_batches), chosen, other)
    file = None if out is None else ResultFile(Path(out), _made_with(context), overwrite)
    with evaluating(trained.model):
        return [row for name in names for row in _rows(name, context, file)]


def default_protocols(data: Dataset, ood: Dataset | str | None = None) -> tuple[str, ...]:
    """The paper's protocols that are applicable to a data set; "ood" is among them only if there is another set.

    Classifiers of one's own data are evaluated on the test set as it is, and on what held-out examples can improve.
    """
    if data.source in ("folder", "table") and data.task == "classification":
        return (*_OWN, *(["ood"] if ood is not None else []))
    return tuple(
        name
        for name, protocol in PROTOCOLS.items()
        if protocol.in_paper
        and protocol.task == data.task
        and (data.is_image or not protocol.images)
        and (not protocol.other_set or data.ood is not None or ood is not None)
    )


def _checked_protocols(names: Sequence[str], data: Dataset) -> list[str]:
    if isinstance(names, str):
        names = [names]
    for name in names:
        if name not in PROTOCOLS:
            raise InputError(unknown_name("protocol", name, PROTOCOLS))
        protocol = PROTOCOLS[name]
        if protocol.task != data.task:
            raise InputError(f"protocol {name!r} is for {protocol.task}, but {data.name} is a {data.task} problem")
        if protocol.images and not data.is_image:
            raise InputError(f"protocol {name!r} needs images, but {data.name} has inputs of shape {data.input_shape}")
    return list(dict.fromkeys(names))


def _other_set(ood: Dataset | str | None, data: Dataset) -> Dataset:
    chosen = ood if ood is not None else data.ood
    if chosen is None:
        raise InputError(
            f"protocol 'ood' needs another data set, and {data.name} has no partner: pass ood, a Dataset or the name of one"
        )
    other = load_data(chosen) if isinstance(chosen, str) else chosen
    if other.input_shape != data.input_shape:
        raise InputError(
            f"{other.name} has inputs of shape {other.input_shape}, but the model was trained on {data.name} "
            f"with {data.input_shape}"
        )
    return other


def _rows(name: str, context: Context, file: ResultFile | None) -> list[ResultRow]:
    """The rows of one protocol, from the file if it holds them already."""
    protocol = PROTOCOLS[name]
    # One file can hold the results for several out-of-distribution sets.
    key = f"{name}:{context.ood.name}" if context.ood is not None and protocol.other_set else name
    known = None if file is None else file.done(key)
    if file is not None and known is not None:
        _LOG.info("%s: %s is already done", file.path, key)
        return known
    began = time.monotonic()
    with progress_bar(name, protocol.passes(context) * len(context.test)) as advance:
        context.predictor.on_predicted = advance
        rows = protocol.run(context)
    if file is not None:
        file.add(key, rows, _provenance(context, time.monotonic() - began))
    return rows


def _made_with(context: Context) -> dict[str, Any]:
    """Everything that determines the numbers, except for the out-of-distribution set, which is part of the protocol's key."""
    t, data, constants = context.trained, context.data, context.data.normalise
    return {
        "model": t.model_name,
        "preset": t.preset,
        "seed": t.seed,
        "weights_sha256": t.weights_digest(),
        "data": {
            "name": data.name,
            "checksums": data.checksums,
            "normalise": None if constants is None else {"mean": constants.mean, "std": constants.std},
        },
        "options": context.options.to_json(),
    }


def _provenance(context: Context, wall_time_s: float) -> dict[str, Any]:
    t = context.trained
    return {
        "version": __version__,
        **source_state(),
        "config_hash": context.options.hash,
        "train_config_hash": None if t.config is None else t.config.hash,
        "model": t.model.spec,
        "data": context.data.provenance(),
        "ood": None if context.ood is None else context.ood.provenance(),
        "seed": t.seed,
        "device": device_name(context.predictor.device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "wall_time_s": round(wall_time_s, 3),
    }
