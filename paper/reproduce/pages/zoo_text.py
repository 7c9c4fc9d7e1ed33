"""Sentences that the cards of all models of the zoo have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ltnode.report.table import MISSING
from ltnode.training import TrainConfig
from paper.reproduce.images.zoo import read_record


def loading(folder: Path) -> str:
    """How the model is loaded."""
    return f"""```python
import ltnode

model = ltnode.load("zoo/{folder.name}")  # then model.predict(data.prepare(images)), or `ltnode predict`
```"""


def training(config: TrainConfig, record: dict[str, Any]) -> str:
    """How the model was trained, from its configuration and the provenance of its run."""
    epochs = f"epoch{'s' if len(config.milestones) > 1 else ''} {', '.join(str(m) for m in config.milestones)}"
    averaging = "" if config.averaging is None else f" weights averaged with decay {config.averaging:g},"
    return (
        f"{config.epochs} epochs of {config.optimizer.upper()}, learning rate {config.lr:g} (times {config.decay:g} at "
        f"{epochs}), weight decay {config.weight_decay:g},{averaging} batches of "
        f"{config.batch_size}, precision {config.precision}, seed {config.seed}; {record['wall_time_s']:.0f} s on one "
        f"{record['device']}, torch {record['torch']}, source commit {(record['git_commit'] or 'not recorded')[:12]}."
    )


def operating_point(folder: Path) -> str:
    """When the model abstains, and what it calls unfamiliar."""
    path = folder / "operating_point.json"
    if not path.exists():
        return f"**Operating point.** Not chosen yet: `ltnode operating-point zoo/{folder.name}`.\n"
    point = read_record(path)
    unfamiliar = "It has no fitted familiarity, so it calls no input unfamiliar."
    if (folder / "calibration.json").exists():
        calibration = read_record(folder / "calibration.json")
        unfamiliar = (
            f"It calls an input unfamiliar if its familiarity is at most {point['false_alarm_rate']:g}, the rate of false "
            f"alarms. Familiarity is the rank of the distance among {calibration['data']}."
        )
    return (
        f"**Operating point** (`operating_point.json`). The model abstains above an entropy of {point['entropy_threshold']:.4g} "
        f"nats. It then answers {100 * point['coverage']:g} % of the inputs, and its accuracy rises from {point['accuracy']:.4f} "
        f"to {point['accuracy_kept']:.4f}. Chosen on {point['data']}. {unfamiliar}\n"
    )


def number(value: float | None, digits: int) -> str:
    """A number of a table."""
    return MISSING if value is None else f"{value:.{digits}f}"


def percent(share: float, digits: int = 1) -> str:
    """A share in percent."""
    return f"{100 * share:.{digits}f} %"
