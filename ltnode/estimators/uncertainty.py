"""The values that ``predict_uncertainty`` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Uncertainty of predictions and its two parts; all arrays have shape (n_samples,).

    For classification, in nats: ``entropy = aleatoric + epistemic``, where ``aleatoric`` is the expected entropy of the members
    (one per end-time) and ``epistemic`` the mutual information between label and end-time.

    Attributes:
        entropy: Entropy of the predictive distribution, in nats.
        aleatoric: Uncertainty that the members share.
        epistemic: Uncertainty due to the disagreement of the members.
        distance: Distance of the row from the training rows: about 0 for typical ones, larger = less familiar, without an upper
            bound. It does not depend on how certain the prediction is. NaN after ``partial_fit``.
        familiarity: Rank of the distance among held-out rows as a p-value in (0, 1]: of new rows from the same source, at most a
            share alpha has a familiarity of at most alpha. NaN if no calibration rows were held out.
    """

    entropy: FloatArray
    aleatoric: FloatArray
    epistemic: FloatArray
    distance: FloatArray
    familiarity: FloatArray

    def __len__(self) -> int:
        return len(self.entropy)

    def as_dict(self) -> dict[str, FloatArray]:
        """The arrays by name, for example for a data frame."""
        columns: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return columns


@dataclass(frozen=True, eq=False)
class RegressionUncertainty(Uncertainty):
    """Uncertainty of a regression, in units of the target.

    For K > 1 targets, the variances and standard deviations have the shape (n_samples, K).

    ``aleatoric`` and ``epistemic`` are the variances ``noise_std**2`` and ``model_std**2``; their sum is ``std**2``. ``entropy``
    is that of the Gaussian with this variance, ``log(2 pi e std**2) / 2``, in nats, summed over the targets.

    Attributes:
        std: Standard deviation of the prediction, including the observation noise.
        model_std: Standard deviation without the observation noise: that of the members' means, and for unfamiliar rows that of a
            Gaussian process on the path.
        noise_std: Standard deviation of the observation noise; see ``LTNodeRegressor(noise=...)``.
    """

    std: FloatArray
    model_std: FloatArray
    noise_std: FloatArray
