"""What a trained model must know about its training data to be used on raw inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ltnode.data import SPECS, Dataset, Normalisation
from ltnode.data import load as load_data


@dataclass(frozen=True)
class DataFacts:
    """Name, classes and normalisation of a data set; None where they are unknown.

    Attributes:
        name: Name of the data set.
        shape: Shape of one input.
        n_classes: Number of classes.
        class_names: One name per class.
        normalise: Mapping from raw values to network inputs.
    """

    name: str | None = None
    shape: tuple[int, ...] | None = None
    n_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    normalise: Normalisation | None = None

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> DataFacts:
        """The facts that config.json and results.json of a run record; a damaged record raises whatever its parsing raises."""
        name, names, constants = record.get("name"), record.get("class_names"), record.get("normalise")
        if names is None and name in SPECS:
            names = SPECS[str(name)].class_names
        return cls(
            name=name,
            shape=tuple(record["input_shape"]) if "input_shape" in record else None,
            n_classes=record.get("n_classes"),
            class_names=None if names is None else tuple(str(entry) for entry in names),
            normalise=None if constants is None else Normalisation(tuple(constants["mean"]), tuple(constants["std"])),
        )

    @classmethod
    def known(cls, data: Dataset | str | None) -> DataFacts:
        """The facts about a data set or its name; no image files are read.

        Raises:
            InputError: No data set has this name.
        """
        if data is None:
            return cls()
        if isinstance(data, str) and data in SPECS:
            spec = SPECS[data]
            return cls(data, spec.shape, len(spec.class_names), spec.class_names, spec.normalise)
        dataset = load_data(data) if isinstance(data, str) else data
        return cls(dataset.name, dataset.input_shape, dataset.n_classes, dataset.class_names, dataset.normalise)

    def names_of(self, n_classes: int | None) -> tuple[str, ...]:
        """One name for each of ``n_classes`` classes; a class without a name is called by its number."""
        # A model may have been built for more classes than its data set has.
        known = (self.class_names or ())[: n_classes or 0]
        return known + tuple(str(label) for label in range(len(known), n_classes or 0))
