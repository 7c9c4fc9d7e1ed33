"""``ltnode bench``: measure a training step and a prediction on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer

from ltnode.cli import console
from ltnode.device import choose_device
from ltnode.errors import InputError
from ltnode.speed import Settings, Timing, measure, named_model, own_field, record, why_not_faster

Optimizer = Literal["sgd", "adam"]
EXAMPLES = (
    "ltnode bench --model lt-node --data mnist",
    "ltnode bench --field my_module:Field --state 64,8,8",
    "ltnode bench --device cuda --json speed.json",
)
_HEADER = ("Work", "Way", "ms", "times\nfaster", "steps", "evaluations", "peak\nMB")


def bench(
    model: Annotated[str, typer.Option(help="Name of the model.")] = "lt-node",
    data: Annotated[str, typer.Option(help="Data set whose shapes are used; the inputs are random numbers.")] = "cifar10",
    field: Annotated[
        str | None, typer.Option(help="A field f(t, h) of your own in place of a model: MODULE:NAME or FILE.py:NAME.")
    ] = None,
    state: Annotated[str | None, typer.Option(help="Shape of a state of your field, for example 64 or 64,8,8.")] = None,
    optimizer: Annotated[Optimizer, typer.Option(help="Optimiser of the training steps of your field.")] = "adam",
    batch: Annotated[int, typer.Option(help="Inputs per training step.", min=1)] = 256,
    samples: Annotated[int, typer.Option(help="End-times per prediction.", min=1)] = 10,
    repeats: Annotated[int, typer.Option(help="Calls of which the median is reported.", min=1)] = 10,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path | None, typer.Option("--json", help="Also write the timings to this file.")] = None,
) -> None:
    """Time a training step and a prediction on this machine.

    Measures every implementation that this machine supports, and torchdiffeq if it is installed, at rtol = atol = 1e-2.
    With --field, the model is an LT-NODE around your field, with states as inputs and a linear classifier as head.
    Each time comes with the accepted steps and field evaluations. Compare ratios: absolute times vary between machines.
    """
    if out is not None and not out.parent.is_dir():  # Fail now, not after minutes of measuring.
        raise InputError(f"--json {out}: there is no folder {out.parent}")
    subject = named_model(model, data) if field is None else own_field(field, _shape(state), optimizer)
    if field is None and state is not None:
        raise InputError("--state belongs to --field, which is missing")
    settings = Settings(batch, samples, choose_device(device), repeats)
    console.say(why_not_faster(subject, settings))
    timings: list[Timing] = []
    for timing in measure(subject, settings):
        timings.append(timing)
        console.say(f"{timing.work}, {timing.way}: {timing.milliseconds:.1f} ms")
    title = f"{subject.title}, batch {batch}, {settings.device}, torch {torch.__version__}"
    console.table(title, _HEADER, _rows(timings), words=(0, 1))
    if out is not None:
        out.write_text(json.dumps(record(subject, settings, timings), indent=1, default=str) + "\n", encoding="utf-8")
        console.say(f"The timings are in {out}")


def _shape(text: str | None) -> tuple[int, ...]:
    """Parse the shape of a state."""
    if text is None:
        raise InputError("--field needs the shape of a state: --state 64, or --state 64,8,8")
    parts = text.replace("x", ",").split(",")
    if not all(part.strip().isdecimal() and 0 < int(part) < 10**6 for part in parts):
        raise InputError(f"--state must be whole numbers above 0 separated by commas, such as 64,8,8, not {text!r}")
    return tuple(int(part) for part in parts)


def _rows(timings: Sequence[Timing]) -> list[list[str]]:
    steps = [timing.milliseconds for timing in timings if timing.work == "training step"]
    rows = []
    for timing in timings:
        speedup = f"{max(steps) / timing.milliseconds:.1f}" if timing.work == "training step" else ""
        counts = ["" if count is None else f"{count:.0f}" for count in (timing.steps, timing.evaluations, timing.peak_mb)]
        rows.append([timing.work, timing.way, f"{timing.milliseconds:.2f}", speedup, *counts])
    return rows
