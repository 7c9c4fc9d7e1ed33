"""``ltnode bench``: what a training step and a prediction cost on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from ltnode.cli import console
from ltnode.device import choose_device
from ltnode.errors import InputError
from ltnode.speed import Settings, Timing, measure, record


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "bench",
        epilog=console.example("ltnode bench --model lt-node --data mnist", "ltnode bench --device cuda --json speed.json"),
    )(bench)


def bench(
    model: Annotated[str, typer.Option(help="Model.")] = "lt-node",
    data: Annotated[str, typer.Option(help="Data set, for its shapes; the inputs are random numbers.")] = "cifar10",
    batch: Annotated[int, typer.Option(help="Inputs per step.", min=1)] = 256,
    samples: Annotated[int, typer.Option(help="End-times per prediction.", min=1)] = 10,
    repeats: Annotated[int, typer.Option(help="Calls per way.", min=1)] = 10,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    out: Annotated[Path | None, typer.Option("--json", help="Also write the numbers to this file.")] = None,
) -> None:
    """Time a training step and a prediction in every way that this machine offers, with torchdiffeq beside them if it is there.

    Tolerance is rtol = atol = 1e-2; accepted steps and evaluations of the field stand beside every time. Machines are noisy:
    read the ratios, not the milliseconds.
    """
    if out is not None and not out.parent.is_dir():
        raise InputError(f"--json {out}: there is no folder {out.parent}")  # now, not after minutes of measuring
    settings = Settings(model, data, batch, samples, choose_device(device), repeats)
    timings: list[Timing] = []
    for timing in measure(settings):
        timings.append(timing)
        console.say(f"{timing.work}, {timing.way}: {timing.milliseconds:.1f} ms")
    slowest = max(t.milliseconds for t in timings if t.work == "training step")
    rows = [
        [
            timing.work,
            timing.way,
            f"{timing.milliseconds:.2f}",
            f"{slowest / timing.milliseconds:.1f}" if timing.work == "training step" else "",
            "" if timing.steps is None else str(timing.steps),
            "" if timing.evaluations is None else str(timing.evaluations),
            "" if timing.peak_mb is None else f"{timing.peak_mb:.0f}",
        ]
        for timing in timings
    ]
    header = ("Work", "Way", "ms", "times\nfaster", "steps", "evaluations", "peak\nMB")
    console.table(
        f"{model}, {data} shapes, batch {batch}, {settings.device}, torch {torch.__version__}", header, rows, words=(0, 1)
    )
    if out is not None:
        out.write_text(json.dumps(record(settings, timings), indent=1, default=str) + "\n", encoding="utf-8")
        console.say(f"numbers: {out}")
