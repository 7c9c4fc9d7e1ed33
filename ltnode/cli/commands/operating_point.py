"""``ltnode operating-point``: choose when a trained classifier abstains, and which inputs it calls out-of-distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.progress import progress_bar
from ltnode.trained import TrainedModel, calibration_examples, choose_operating_point
from ltnode.trained.operating_point import DEFAULT_SCORE, SCORES

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
    keeps: Annotated[float, typer.Option(help="Share of in-distribution examples to accept as such.")] = 0.95,
    score: Annotated[str, typer.Option(help=f"Score of out-of-distribution inputs: {', '.join(SCORES)}.")] = DEFAULT_SCORE,
    samples: Annotated[int, typer.Option(help="End-times per prediction.", min=1)] = 10,
    limit: Annotated[int | None, typer.Option(help="Use at most this many examples, drawn at random.", min=1)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Choose when a classifier abstains and which inputs it calls out-of-distribution, and store the thresholds with the run.

    The thresholds are chosen on the examples that training held out. If it held out none, they are chosen on a fixed random half
    of the test set, on which no results may be reported afterwards. Later predictions (ltnode predict, ltnode serve) are flagged.
    """
    trained = TrainedModel.open(run, device, data if data and not Path(data).is_dir() else None)
    split, description = calibration_examples(trained, data, limit)
    with progress_bar("predict", len(split)) as advance:
        point = choose_operating_point(
            trained, split, coverage, ood_score=score, ood_keeps=keeps, samples=samples, data=description, on_predicted=advance
        )
    file = point.save(run)
    console.facts(
        {
            "chosen on": point.data,
            "abstain": f"entropy above {point.entropy_threshold:.4g} nats",
            "OOD": f"{point.ood_score.replace('_', ' ')} below {point.ood_threshold:.4g}",
            "accuracy": f"{point.accuracy:.4f}",
            "accuracy of the answers": f"{point.accuracy_kept:.4f}",
        }
    )
    console.say(f"The operating point is in {file}")
