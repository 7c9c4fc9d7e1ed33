"""``ltnode distill``: teach one network what a trained classifier knows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ltnode.cli import console
from ltnode.cli.commands.train import read_values, report_run
from ltnode.data import Dataset
from ltnode.errors import ConfigError
from ltnode.fitting import distill as distill_run
from ltnode.hub import is_cached, locate
from ltnode.models import build
from ltnode.trained import TrainedModel
from ltnode.trained.teaching import teaching_parts
from ltnode.training import TrainConfig, train_preset

EXAMPLES = (
    "ltnode distill runs/cifar-ensemble --model lt-node --out runs/cifar-distilled",
    "ltnode distill runs/cifar-ensemble --model node --set distill_weight=0.9 --out runs/cifar-node --resume",
)


def distill(
    run: Annotated[
        Path, typer.Argument(help="Run folder or name of the teacher: an ensemble, or any other classifier.", metavar="RUN")
    ],
    model: Annotated[str, typer.Option(help="The student, such as lt-node.")] = "lt-node",
    data: Annotated[str | None, typer.Option(help="Data set; by default, and as a rule, that of the teacher.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, data order and end-times; by default 0.", min=0)] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder of the student; by default RUN-distilled-MODEL.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, or start it if there is none.")] = False,
    config: Annotated[Path | None, typer.Option(help="TOML file with a training configuration.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one value, such as distill_weight=0.9; can be repeated."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N; by default auto.")] = None,
    samples: Annotated[int, typer.Option(help="Number of members of the teacher's predictions.", min=1)] = 10,
) -> None:
    """Train a network towards the averaged probabilities of a trained classifier, with the default preset of the network.

    Teacher and student see the same augmented inputs. They hold out the same examples, which is the default; settings that would
    change this are refused, because a teacher passes on what it has seen.
    """
    source = locate(run)
    teacher = TrainedModel.open(source)
    dataset = teacher.dataset(data)
    chosen = _configuration(teacher, dataset, config, {"model": model, "seed": seed, "device": device}, settings or ())
    student = build(model, dataset, seed=chosen.seed, **chosen.model_options)
    folder = out or (Path("runs") if is_cached(source) else source.parent) / f"{source.resolve().name}-distilled-{model}"
    console.say(f"Training {model} towards {teacher.name} ({teacher.model_name}) in {folder}")
    with console.resumable(f"The checkpoint is in {folder}: run the same command with --resume to continue."):
        result = distill_run(teacher, student, dataset, chosen, folder, samples=samples, resume=resume)
    report_run(result, folder)


def _configuration(
    teacher: TrainedModel, data: Dataset, file: Path | None, options: dict[str, Any], settings: list[str] | tuple[str, ...]
) -> TrainConfig:
    """The preset of the student with the held-out examples of its teacher, changed by what the command line asks for."""
    values = {} if file is None else read_values(file)
    if values.get("preset", "default") != "default":
        raise ConfigError(f"a student is trained with the preset 'default', not {values['preset']!r}")
    named = {key: value for key, value in options.items() if value is not None}
    base = train_preset(options["model"], data).replace(**teaching_parts(teacher))
    return base.replace(**values).replace(**named).with_overrides(settings)
