# %% [markdown]
# # Intervals that hold what they promise
#
# Twenty generated tables, and a fit on each. Every thin line shows how many new targets lie within the intervals of one fit,
# for every level that one could ask for. Conformal intervals promise the diagonal on average over tables, and no more.

# %% alt="Twenty thin lines around the diagonal of asked and observed coverage; their mean lies on the diagonal."
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1

import ltnode

levels = np.linspace(0.1, 0.95, 18)
covered = []
for seed in range(20):
    X, y = make_friedman1(1300, n_features=5, noise=1.5, random_state=seed)
    regressor = ltnode.LTNodeRegressor(
        members=1, max_epochs=8, noise="constant", random_state=seed
    ).fit(X[:400], y[:400])
    intervals = (
        regressor.predict_interval(X[400:], alpha=1 - level) for level in levels
    )
    covered.append(
        [np.mean((low <= y[400:]) & (y[400:] <= high)) for low, high in intervals]
    )
covered = np.array(covered)

fig, axes = plt.subplots(figsize=(4.6, 4.2))
axes.plot((0, 1), (0, 1), color="C7", ls="--", lw=1)
axes.plot(levels, covered.T, color="C0", lw=0.7, alpha=0.45)
axes.plot(
    levels, covered.mean(axis=0), "o-", ms=3.5, color="C1", label="mean over tables"
)
axes.plot([], [], color="C0", lw=0.7, label="one table")
axes.set(
    xlabel="coverage asked for",
    ylabel="share of new targets inside",
    xlim=(0, 1),
    ylim=(0, 1),
    aspect="equal",
)
axes.legend()
plt.show()
for level in (1, 8, 16):
    print(
        f"asked for {levels[level]:.2f}: mean {covered[:, level].mean():.3f}, std over tables {covered[:, level].std():.3f}"
    )

# %% [markdown]
# The lines vary because each fit calibrates on few rows. `calibration_fraction=0.2` brings them closer.
#
# **Try next.** Train on one table and ask about another one. [The tutorial](../../tutorials/uncertainty.py) shows how coverage is lost.
