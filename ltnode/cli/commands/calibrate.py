"""``ltnode calibrate``: rank the distances of a trained model among those of new examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.cli.run_folder import own_folder
from ltnode.trained import TrainedModel, new_examples, renew_calibration

EXAMPLES = (
    "ltnode calibrate runs/x --data new-rows.csv",
    "ltnode calibrate zoo/lt-node-cifar10 --data photos/ --limit 1000",
)


def calibrate(
    run: Annotated[Path, typer.Argument(help="Run folder, or the folder of a saved model.", metavar="RUN")],
    data: Annotated[
        str, typer.Option(help="New examples without labels: an image folder, a .npy or .csv file, or the name of a data set.")
    ],
    limit: Annotated[int | None, typer.Option(help="Use at most this many examples, drawn at random.", min=1)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Renew what counts as familiar: from now on, a familiarity is the rank of a distance among those of the new examples.

    Use it when the source of the inputs has changed and the metrics of the server show a drift that you accept. The weights and
    the answers stay as they are. The share of inputs that are flagged by mistake then holds for the source of the new examples.
    """
    trained = TrainedModel.open(own_folder(run), device)
    raw, description = new_examples(trained, data, limit)
    renewed = renew_calibration(trained, raw, description)
    assert renewed.calibration is not None
    console.facts(
        {
            "calibrated on": renewed.calibration.data,
            "examples": str(renewed.calibration.n),
            "smallest false-alarm rate": f"{renewed.calibration.smallest_rate:.3g}",
        }
    )
    if renewed.flag_problem is not None:
        console.warn(renewed.flag_problem)
    console.say(f"The new ranks are in {run}")
