"""How a table of one's own is read for a training, whose configuration says how many of its rows are held out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ltnode.data import Dataset, Shares, from_table
from ltnode.errors import ConfigError
from ltnode.models import InputSpec
from ltnode.tables import Kind, Task
from ltnode.training.config import TrainConfig, train_preset


@dataclass(frozen=True)
class OwnTable:
    """What must be known about a table; see `ltnode.data.from_table`.

    Attributes:
        target: The column to predict.
        task: "classification" or "regression"; None infers it.
        group: Column whose equal values keep rows in one part.
        ignore: Columns that are not used.
        kinds: Columns and their kinds, where the inferred ones are wrong.
        test: Table of test rows; None draws them.
        test_fraction: Share of the test rows that are drawn; None takes a fifth.
    """

    target: str
    task: str | None = None
    group: str | None = None
    ignore: tuple[str, ...] = ()
    kinds: tuple[tuple[str, str], ...] = ()
    test: str | None = None
    test_fraction: float | None = None

    def load(self, path: str | Path, config: TrainConfig) -> Dataset:
        """Load a table with the held-out parts that a configuration asks for.

        Raises:
            ConfigError: A value is not as required.
            DataError, InputError: The table cannot be used; see `ltnode.data.from_table`.
        """
        if self.test is not None and self.test_fraction is not None:
            raise ConfigError("a table of test rows and a test fraction cannot be combined: the test rows are given, or drawn")
        fraction = Shares.test if self.test_fraction is None else self.test_fraction
        if not 0 < fraction < 1:
            raise ConfigError(f"the test fraction must lie strictly between 0 and 1, not {fraction:g}")
        return from_table(
            path,
            self.target,
            task=cast(Task | None, self.task),
            group=self.group,
            ignore=self.ignore,
            kinds=cast(dict[str, Kind], dict(self.kinds)),
            test=self.test,
            shares=Shares(fraction, config.validation_fraction, config.calibration_fraction, config.parts_seed),
        )


def provisional_config(model: str, preset: str, values: dict[str, Any]) -> TrainConfig:
    """The configuration before a table is read, which says how many rows are held out and with which seed."""
    return train_preset(model, InputSpec((1,), "regression"), preset).replace(**values)
