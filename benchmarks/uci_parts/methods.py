"""The methods: fit on the training rows, and describe every test row by a Gaussian. Nothing is tuned; settings are fixed."""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from tabular import COVERAGE, regress
from threadpoolctl import threadpool_limits

import ltnode
from ltnode import metrics
from uci_parts import deep_ensemble
from uci_parts.data import UCI

Array = NDArray[Any]
LTNODE, NGBOOST, GAUSSIAN_PROCESS = "LT-NODE", "NGBoost", "Gaussian process"
METHODS = (LTNODE, "gradient boosting", "random forest", "MLP", GAUSSIAN_PROCESS, "deep ensemble", NGBOOST)
MOST_ROWS = {
    GAUSSIAN_PROCESS: (2000, "its exact inference takes time that grows with the cube of the rows"),
}
"""Methods that are not run on larger sets, and why."""
MANY_ROWS = 10_000
"""Training rows from which scikit-learn recommends boosting with binned features."""


class Predicted(NamedTuple):
    """Mean and standard deviation of every test row, and 90 % intervals where the method has some of its own."""

    mean: Array
    std: Array
    interval: tuple[Array, Array] | None = None


def left_out(method: str, rows: int) -> str | None:
    """Why a method is not run on a set with so many rows, or None."""
    most, reason = MOST_ROWS.get(method, (rows, ""))
    return f"more than {most:,} rows: {reason}" if rows > most else None


def predict(method: str, x: Array, y: Array, x_test: Array, seed: int) -> Predicted:
    """Fit a method on raw rows and targets, and predict the test rows in the units of the target."""
    if method == LTNODE:
        model = ltnode.LTNodeRegressor(random_state=seed).fit(x, y)
        return Predicted(*model.predict(x_test, return_std=True), model.predict_interval(x_test, 1 - COVERAGE))
    if method == NGBOOST:
        from ngboost import NGBRegressor

        found = NGBRegressor(random_state=seed, verbose=False).fit(x, y).pred_dist(x_test)
        return Predicted(np.asarray(found.loc), np.asarray(found.scale))
    scaler = StandardScaler().fit(x)
    x, x_test = scaler.transform(x), scaler.transform(x_test)
    if method == "gradient boosting":
        return _boosted(x, y, x_test, seed)
    if method == "deep ensemble":
        centre, unit = float(np.mean(y)), float(np.std(y))
        mean, std = deep_ensemble.predict(deep_ensemble.fit(x, (y - centre) / unit, seed), x_test)
        return Predicted(mean * unit + centre, std * unit)
    return Predicted(*regress(method, x, y, x_test, seed))


def _boosted(x: Array, y: Array, x_test: Array, seed: int) -> Predicted:
    """Boosted trees with a constant noise from 15 % of the rows, which are not trained on."""
    kept, held, y_kept, y_held = train_test_split(x, y, test_size=0.15, random_state=seed)
    trees = GradientBoostingRegressor if len(kept) < MANY_ROWS else HistGradientBoostingRegressor
    model = trees(random_state=seed).fit(kept, y_kept)
    noise = float(np.sqrt(np.mean((model.predict(held) - y_held) ** 2)))
    return Predicted(model.predict(x_test), np.full(len(x_test), noise))


def measure(data: UCI, split: int, method: str) -> dict[str, float]:
    """One method on one split: NLL in nats and RMSE in the units of the target, coverage of 90 % intervals, CPU seconds."""
    x, y, x_test, y_test = data.split(split)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="sklearn")  # convergence notes of the peers
            start = time.process_time()
            found = predict(method, x, y, x_test, split)
            seconds = time.process_time() - start
    finally:
        torch.set_num_threads(threads)
    row = {
        "nll": metrics.gaussian_nll(found.mean, found.std, y_test),
        "rmse": metrics.rmse(found.mean, y_test),
        "coverage": metrics.interval_coverage(found.mean, found.std, y_test, COVERAGE),
        "seconds": seconds,
    }
    if found.interval is not None:
        low, high = found.interval
        row["interval"] = float(np.mean((low <= y_test) & (y_test <= high)))
    return row
