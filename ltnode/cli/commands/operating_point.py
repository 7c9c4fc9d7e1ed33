"""``ltnode operating-point``: choose when a trained classifier abstains, and the rate of false alarms about unfamiliar inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.cli.run_folder import own_folder
from ltnode.progress import progress_bar
from ltnode.trained import TrainedModel, calibration_examples, choose_operating_point
from ltnode.trained.operating_point import FALSE_ALARM_RATE

EXAMPLES = (
    "ltnode operating-point runs/mnist",
    "ltnode operating-point runs/x --data my-images/validation --coverage 0.9",
)


def operating_point(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    data: Annotated[
        str | None,
        typer.Option(help="Data set, or a folder with one folder of images per class; by default the data set of the training."),
    ] = None,
    coverage: Annotated[float, typer.Option(help="Share of in-distribution examples to answer.")] = 0.95,
    false_alarm_rate: Annotated[
        float, typer.Option(help="Share of inputs from the source of the training data that may be called unfamiliar.")
    ] = FALSE_ALARM_RATE,
    samples: Annotated[int, typer.Option(help="End-times per prediction.", min=1)] = 10,
    limit: Annotated[int | None, typer.Option(help="Use at most this many examples, drawn at random.", min=1)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Choose when a classifier abstains and which inputs it calls unfamiliar, and store both with the run.

    The entropy threshold is chosen on the examples that training held out. If it held out none, it is chosen on a fixed random
    half of the test set, on which no results may be reported afterwards. The false-alarm rate needs no examples here: it holds
    for the calibration examples of the run. Later predictions (ltnode predict, ltnode serve) are flagged.
    """
    trained = TrainedModel.open(own_folder(run), device, data if data and not Path(data).is_dir() else None)
    split, description = calibration_examples(trained, data, limit)
    with progress_bar("predict", len(split)) as advance:
        point = choose_operating_point(
            trained,
            split,
            coverage,
            false_alarm_rate=false_alarm_rate,
            samples=samples,
            data=description,
            on_predicted=advance,
        )
    file = point.save(run)
    console.facts(
        {
            "chosen on": point.data,
            "abstain": f"entropy above {point.entropy_threshold:.4g} nats",
            "unfamiliar": f"familiarity of at most {point.false_alarm_rate:g}",
            "accuracy": f"{point.accuracy:.4f}",
            "accuracy of the answers": f"{point.accuracy_kept:.4f}",
        }
    )
    problem = trained.with_operating_point(point).flag_problem
    if problem is not None:
        console.warn(problem)
    console.say(f"The operating point is in {file}")
