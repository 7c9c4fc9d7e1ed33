"""``ltnode.evaluate``: put a model through protocols, and keep the rows in a file that can be continued."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ltnode._version import __version__
from ltnode.data import Dataset
from ltnode.data import load as load_data
from ltnode.errors import InputError, unknown_name
from ltnode.evaluation.options import EvaluationOptions
from ltnode.evaluation.predict import Predictor
from ltnode.evaluation.protocols import PROTOCOLS, Context
from ltnode.evaluation.results import ResultFile, ResultRow
from ltnode.evaluation.subject import Subject, on_device
from ltnode.models import Model
from ltnode.models.modes import evaluating
from ltnode.progress import progress_bar
from ltnode.training import Run
from ltnode.training.provenance import device_name, source_state

_LOG = logging.getLogger("ltnode")


def evaluate(
    run: Run | Model | str | Path,
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

    The numbers are a function of the model, the data and the options: on a CPU the same ones every time.

    Args:
        run: A run, a model, or the folder of either.
        data: The data set or its name; by default the one that the run records.
        protocols: Names of `ltnode.evaluation.PROTOCOLS`; by default those of the paper that fit the data.
        ood: The out-of-distribution set or its name; by default the data set's partner.
        out: File for the rows, in JSON with provenance. Protocols that it already holds are not done again; it is written
            after every protocol, so an interrupted evaluation goes on where it stopped.
        overwrite: Begin ``out`` anew.
        device: Where to evaluate, for instance ``"cuda"``; by default where the model is, or the best one for a folder.
        **options: Fields of `EvaluationOptions`, such as ``samples``, ``draw``, ``steps``, ``limit``, ``draw_seed``.

    Returns:
        One row per number or curve, protocol by protocol.

    Raises:
        InputError: Unknown protocol or option, or data that do not fit.
        ConfigError: ``out`` holds results of another model, other data or other options.
        CheckpointError: A folder or file is missing, damaged, or cannot be written.
    """
    chosen = EvaluationOptions.of(**options)
    subject = Subject.of(run, data, device)
    names = _checked_protocols(default_protocols(subject.data, ood) if protocols is None else protocols, subject)
    other = _other_set(ood, subject) if any(PROTOCOLS[name].other_set for name in names) else None
    larger_batches = chosen.batch_size is None
    chosen = chosen.resolved(subject.preset)
    predictor = Predictor(subject.model, subject.data.prepare, chosen, larger_batches)
    context = Context(subject, predictor, chosen, on_device(subject.data.test, chosen.limit, predictor.device), other)
    file = None if out is None else ResultFile(Path(out), _made_with(context), overwrite)
    rows: list[ResultRow] = []
    with evaluating(subject.model):
        for name in names:
            # Results against several other sets can stand in one file.
            key = f"{name}:{other.name}" if other is not None and PROTOCOLS[name].other_set else name
            made = None if file is None else file.done(key)
            if made is not None:
                _LOG.info("%s: %s is already done", out, key)
            else:
                began = time.monotonic()
                made = _run(name, context)
                if file is not None:
                    file.add(key, made, _provenance(context, time.monotonic() - began))
            rows += made
    return rows


def default_protocols(data: Dataset, ood: Dataset | str | None = None) -> tuple[str, ...]:
    """The paper's protocols that fit a data set; that of out-of-distribution data only if there is another set."""
    return tuple(
        name
        for name, protocol in PROTOCOLS.items()
        if protocol.in_paper
        and protocol.task == data.task
        and (data.is_image or not protocol.images)
        and (not protocol.other_set or data.ood is not None or ood is not None)
    )


def _checked_protocols(names: Sequence[str], subject: Subject) -> list[str]:
    if isinstance(names, str):
        names = [names]
    for name in names:
        if name not in PROTOCOLS:
            raise InputError(unknown_name("protocol", name, PROTOCOLS))
        protocol, data = PROTOCOLS[name], subject.data
        if protocol.task != data.task:
            raise InputError(f"protocol {name!r} is for {protocol.task}, but {data.name} is a {data.task} problem")
        if protocol.images and not data.is_image:
            raise InputError(f"protocol {name!r} needs images, but {data.name} has inputs of shape {data.input_shape}")
    return list(dict.fromkeys(names))


def _other_set(ood: Dataset | str | None, subject: Subject) -> Dataset:
    chosen = ood if ood is not None else subject.data.ood
    if chosen is None:
        raise InputError(
            f"protocol 'ood' needs another data set, and {subject.data.name} has no partner: "
            "pass ood, a Dataset or the name of one"
        )
    other = load_data(chosen) if isinstance(chosen, str) else chosen
    if other.input_shape != subject.data.input_shape:
        raise InputError(
            f"{other.name} has inputs of shape {other.input_shape}, but the model was trained on {subject.data.name} "
            f"with {subject.data.input_shape}"
        )
    return other


def _run(name: str, context: Context) -> list[ResultRow]:
    protocol = PROTOCOLS[name]
    with progress_bar(name, protocol.passes(context) * len(context.test)) as advance:
        context.predictor.on_predicted = advance
        return protocol.run(context)


def _made_with(context: Context) -> dict[str, Any]:
    """Everything that decides the numbers, but for the out-of-distribution set, which has results of its own."""
    s, constants = context.subject, context.subject.data.normalise
    return {
        "model": s.name,
        "preset": s.preset,
        "seed": s.seed,
        "weights_sha256": s.weights_digest(),
        "data": {
            "name": s.data.name,
            "checksums": s.data.checksums,
            "normalise": None if constants is None else {"mean": constants.mean, "std": constants.std},
        },
        "options": context.options.to_json(),
    }


def _provenance(context: Context, wall_time_s: float) -> dict[str, Any]:
    s = context.subject
    return {
        "version": __version__,
        **source_state(),
        "config_hash": context.options.hash,
        "train_config_hash": None if s.config is None else s.config.hash,
        "model": s.model.spec,
        "data": s.data.provenance(),
        "ood": None if context.ood is None else context.ood.provenance(),
        "seed": s.seed,
        "device": device_name(context.predictor.device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "wall_time_s": round(wall_time_s, 3),
    }
