"""Training: configuration, the loop, checkpoints, several processes.

Read in this order: ``config`` and ``presets`` (configuration), ``engine`` (`ltnode.fit`), ``loop`` (the training loop),
``batches`` (its data), ``step`` (its step), ``distributed`` (several processes), ``run`` and ``checkpoint`` (its files),
``saving`` (models), ``concurrent`` (several runs at once), ``members`` (ensembles).
"""

from ltnode.training.config import TrainConfig, train_preset
from ltnode.training.engine import fit, fit_seeds
from ltnode.training.members import assemble_members, fit_members
from ltnode.training.run import Run
from ltnode.training.saving import load, save
from ltnode.training.status import RunStatus, TrainingError

__all__ = [
    "Run",
    "RunStatus",
    "TrainConfig",
    "TrainingError",
    "assemble_members",
    "fit",
    "fit_members",
    "fit_seeds",
    "load",
    "save",
    "train_preset",
]
