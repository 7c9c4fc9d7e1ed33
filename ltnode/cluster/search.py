"""The search of a sweep: Optuna proposes points, is told their values, and says which trainings to end early.

The journal beside the run folders holds all of it as JSON lines, so that an interrupted search continues where it was.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltnode.cluster.journal import trim_journal
from ltnode.cluster.spec import Range, SweepSpec
from ltnode.counter_rng import hash_counters
from ltnode.errors import missing_extra

_LEAST_POINTS = 10
"""With fewer complete points, an importance would be chance."""


@dataclass(frozen=True)
class Point:
    """One choice of the searched values."""

    number: int
    values: Mapping[str, Any]


def require_optuna() -> Any:
    """Import Optuna, or raise a `MissingExtraError` that names the extra."""
    try:
        import optuna
    except ImportError as error:
        raise missing_extra("optuna", "cluster", "ltnode sweep") from error
    return optuna


class Search:
    """The points of a sweep.

    Args:
        spec: The sweep.
        journal: File of the journal; an existing one is continued.
    """

    def __init__(self, spec: SweepSpec, journal: Path) -> None:
        self._optuna, self._spec = require_optuna(), spec
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        trim_journal(journal, len(spec.search))
        storages = self._optuna.storages
        storage = storages.JournalStorage(storages.journal.JournalFileBackend(str(journal)))
        self._study = self._optuna.create_study(
            storage=storage, study_name="sweep", direction="maximize", load_if_exists=True, pruner=self._pruner()
        )
        self._grid = self._grid_sampler() if spec.strategy == "grid" else None
        self._trials = {frozen.number: self._continued(frozen) for frozen in self._study.get_trials(deepcopy=False)}

    def points(self) -> list[Point]:
        """All points so far, finished or not."""
        return [Point(number, self._values(trial.params)) for number, trial in sorted(self._trials.items())]

    def ask(self) -> Point | None:
        """The next point; None if there is none left."""
        number = len(self._trials)
        if number >= self._spec.n_points:
            return None
        # A sampler that is new for every point makes a continued search equal to an uninterrupted one.
        usual, self._study.sampler = self._study.sampler, self._sampler(hash_counters(self._spec.search_seed, number) % 2**32)
        trial = self._study.ask()
        for key, values in self._spec.search.items():
            if not isinstance(values, Range):
                trial.suggest_categorical(key, [json.dumps(value) for value in values])
            elif values.whole:
                trial.suggest_int(key, int(values.low), int(values.high), log=values.log)
            else:
                trial.suggest_float(key, values.low, values.high, log=values.log)
        self._study.sampler = usual  # that of a grid would stop the loop of Optuna, which is not used, at its last point
        self._trials[trial.number] = trial
        return Point(trial.number, self._values(trial.params))

    def remember(self, number: int, run: str, record: Mapping[str, Any]) -> None:
        """Keep how a training of a point has ended."""
        self._trials[number].set_user_attr(run, dict(record))

    def remembered(self, number: int) -> dict[str, dict[str, Any]]:
        """How the trainings of a point have ended, by name."""
        return dict(self._trials[number].user_attrs)

    def is_finished(self, number: int) -> bool:
        """Whether a point has been told."""
        return self._study.get_trials(deepcopy=False)[number].state.is_finished()

    def hopeless(self, number: int, step: int, value: float) -> bool:
        """Report a value on the way; whether the pruner would end this point now."""
        trial = self._trials[number]
        trial.report(value, step)
        return trial.should_prune()

    def tell(self, number: int, value: float | None, pruned: bool = False) -> None:
        """Finish a point with its value; None if it failed."""
        states = self._optuna.trial.TrialState
        state = states.PRUNED if pruned else states.FAIL if value is None else states.COMPLETE
        self._study.tell(number, None if pruned else value, state=state, skip_if_finished=True)

    def importance(self) -> dict[str, float]:
        """Share of the differences in value that each searched key explains (PED-ANOVA); empty where it cannot be told."""
        complete = sum(trial.state.name == "COMPLETE" for trial in self._study.get_trials(deepcopy=False))
        if len(self._spec.search) < 2 or complete < _LEAST_POINTS:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            evaluator = self._optuna.importance.PedAnovaImportanceEvaluator()
            try:
                return dict(self._optuna.importance.get_param_importances(self._study, evaluator=evaluator))
            except (ValueError, RuntimeError):  # too few complete points, or all of equal value
                return {}

    def _continued(self, frozen: Any) -> Any:
        return self._optuna.trial.Trial(self._study, frozen._trial_id)

    def _values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters as values of the configuration: lists are stored as JSON, because Optuna takes no tables or lists."""
        return {k: v if isinstance(self._spec.search[k], Range) else json.loads(v) for k, v in params.items()}

    def _sampler(self, seed: int) -> Any:
        samplers = self._optuna.samplers
        if self._grid is not None:  # the point of a grid is a function of its number
            return self._grid
        if self._spec.strategy == "random":
            return samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            # Points that are still being trained count as bad ones, so that concurrent trainings are spread out.
            return samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)

    def _grid_sampler(self) -> Any:
        space = self._spec.search.items()
        lists = {key: [json.dumps(value) for value in values] for key, values in space if not isinstance(values, Range)}
        return self._optuna.samplers.GridSampler(lists, seed=self._spec.search_seed)

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        made = {
            "none": pruners.NopPruner,
            "median": pruners.MedianPruner,
            "halving": pruners.SuccessiveHalvingPruner,
            "hyperband": pruners.HyperbandPruner,
        }
        return made[self._spec.pruner]()
