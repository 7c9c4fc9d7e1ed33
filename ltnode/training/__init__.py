"""Training: configuration, the loop, checkpoints, several processes.

Read in this order: ``config`` and ``presets`` (what to do), ``engine`` (the loop), ``batches`` (what it reads), ``step`` (what it
does with a batch), ``distributed`` (in several processes), ``run`` and ``checkpoint`` (what it writes), ``saving`` (models),
``several`` (seeds side by side).
"""

from ltnode.training.concurrent import fit_seeds
from ltnode.training.config import TrainConfig
from ltnode.training.engine import fit
from ltnode.training.presets import train_preset
from ltnode.training.run import Run
from ltnode.training.saving import load, save
from ltnode.training.status import RunStatus, TrainingError

__all__ = ["Run", "RunStatus", "TrainConfig", "TrainingError", "fit", "fit_seeds", "load", "save", "train_preset"]
