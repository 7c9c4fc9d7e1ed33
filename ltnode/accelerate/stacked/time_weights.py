"""What a grid of solver steps and the end-times of a training step contribute to the stacked solve: constants in float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.accelerate.stacked.parameters import Array
from ltnode.ode.dense import dense_weights
from ltnode.ode.tableau import ButcherTableau


class GridConstants:
    """Coefficients of the evaluations of a field over step edges, where the last stage of a step is the first of the next.

    Evaluation e = 0..n stages belongs to stage i of step m with ``e = m stages + i``; stages are counted without the first.

    Attributes:
        stages: Number of evaluations of a step after the first.
        lengths: Sizes h of the steps.
        rows: ``h a_ij`` of every evaluation after the first, (i,): by how much earlier stages count in its state.
        columns: ``h a_ij`` of every evaluation but the last: by how much it counts in the states of later stages.
        errors: Weights ``h e_i`` of the error estimate of every step, (stages + 1,).
        times: Times t of all evaluations, and the times ``h c_i`` since their step began, (2, E).
    """

    def __init__(self, tableau: ButcherTableau, edges: Sequence[float]) -> None:
        assert tableau.fsal and tableau.error is not None
        self._tableau, self._edges = tableau, torch.tensor(edges, dtype=torch.float64)
        self.stages = n = tableau.stages - 1
        self.lengths = [float(h) for h in np.diff(edges)]
        self.rows = [np.array(row, dtype=np.float32) * h for h in self.lengths for row in tableau.a[1:]]
        self.columns = [
            np.array([h * row[j] for row in tableau.a[j + 1 :]], dtype=np.float32) for h in self.lengths for j in range(n)
        ]
        self.errors = [np.array(tableau.error, dtype=np.float32) * h for h in self.lengths]
        shares = np.array([0.0, *(h * c for h in self.lengths for c in tableau.c[1:])], dtype=np.float32)
        starts = np.array([edges[0], *(t for t in edges[:-1] for _ in range(n))], dtype=np.float32)
        self.times: Array = np.stack([starts + shares, shares])

    @property
    def evaluations(self) -> int:
        """Number of field evaluations."""
        return len(self.rows) + 1

    def weights(self, times: NDArray[np.float64]) -> Array:
        """Weights (*times, E + 2) of what the states at some times are sums of.

        These are the products of the last layer of the field with all evaluations (see `ltnode.ode.dense.dense_weights`), the
        initial state, and the bias of that layer.
        """
        per_step = dense_weights(self._tableau, self._edges, torch.from_numpy(times).flatten()).numpy()
        result = np.ones((len(per_step), self.evaluations + 2))
        result[:, :-2] = 0.0
        for m in range(per_step.shape[1]):
            result[:, m * self.stages : (m + 1) * self.stages + 1] += per_step[:, m]
        result[:, -1] = result[:, :-2].sum(axis=1)
        return result.reshape(*times.shape, -1).astype(np.float32)
