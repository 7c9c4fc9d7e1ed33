# %% [markdown]
# # Every input has its own end-time
#
# The same disc and ring, seen differently: the colour is the median of the end-time that ALT-NODE gives to a point of the plane.
# The disc must leave the ring, and gets the most time.

# %% alt="Map of the median end-time over the plane with the points of disc and ring: the two classes get different times."
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import ltnode
from ltnode.data import concentric_annuli
from ltnode.models.vectors import TimeMLP, mlp

data = concentric_annuli(400, seed=0)
torch.manual_seed(0)
model = ltnode.LatentTimeODE(
    nn.Identity(),
    TimeMLP(2, (32, 32)),
    nn.Linear(2, 2),
    ltnode.AmortizedGammaTime(mlp([2, 32, 2])),
    "classification",
)
ltnode.fit(
    model,
    data,
    ltnode.TrainConfig(
        epochs=400, batch_size=None, lr=1e-2, schedule="cosine", device="cpu"
    ),
)

side = np.linspace(-1.8, 1.8, 120)
plane = torch.tensor(
    np.stack(np.meshgrid(side, side), -1).reshape(-1, 2), dtype=torch.float32
)
with torch.no_grad():
    low, median, high = model.end_time.quantile([0.05, 0.5, 0.95], plane)
fig, grid = plt.subplots(1, 2, figsize=(6.8, 3.1))
panels = ((median, "median of T"), (high - low, "width of 5 to 95 %"))
for axes, (values, name) in zip(grid, panels, strict=True):
    picture = axes.pcolormesh(
        side, side, values.reshape(120, 120), cmap="viridis", rasterized=True
    )
    fig.colorbar(picture, ax=axes, shrink=0.85)
    axes.contour(
        side,
        side,
        values.reshape(120, 120),
        levels=6,
        colors="0.95",
        linewidths=0.5,
    )
    for label, marker in ((0, "o"), (1, "^")):
        axes.plot(
            *data.train.x[data.train.y == label][:80].T,
            marker,
            ms=2.5,
            color="0.95",
            mec="0.1",
            mew=0.3,
        )
    axes.set_title(name, loc="left")
    axes.set_aspect("equal")
plt.show()

# %% [markdown]
# **Try next.** `model.end_time.quantile([0.5], x)` works for every ALT-NODE. Which of your inputs take longest?
