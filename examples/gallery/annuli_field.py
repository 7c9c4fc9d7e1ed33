# %% [markdown]
# # A disc leaves its ring
#
# A disc lies inside a ring, and a line must separate them. A flow of the plane with one end-time cannot do this: it never tears
# the ring. If every point may stop at its own time, it can. The lines are the paths that ALT-NODE has learnt, up to the median end-time.

# %% alt="The vector field of ALT-NODE on concentric annuli, paths of points of both classes, and the line of the head between their ends."
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn

import ltnode
from ltnode.data import concentric_annuli
from ltnode.models.vectors import TimeMLP, mlp


class Field(nn.Module):
    """A field of limited speed, so that paths stay in the picture."""

    def __init__(self):
        super().__init__()
        self.net = TimeMLP(2, (32, 32))

    def forward(self, t, h):
        return 1.5 * torch.tanh(self.net(t, h))


data = concentric_annuli(400, seed=0)
torch.manual_seed(0)
model = ltnode.LatentTimeODE(
    nn.Identity(),
    Field(),
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
error = ltnode.metrics.error(model.predict(data.test.x).probs, data.test.y)

x, y = data.train.x[:60], data.train.y[:60]
t = torch.linspace(0, 3, 61)
with torch.no_grad():
    paths = model.solve(model.initial_state(x), t, "stored").states
    stops = model.end_time.quantile([0.5], x)[0]
    ends = torch.stack(
        [paths[(t - stop).abs().argmin(), row] for row, stop in enumerate(stops)]
    )
low, high = torch.cat([x, ends]).amin(0) - 0.4, torch.cat([x, ends]).amax(0) + 0.4
columns, rows = (
    np.linspace(float(a), float(b), 40) for a, b in zip(low, high, strict=True)
)
mesh = torch.tensor(
    np.stack(np.meshgrid(columns, rows), -1).reshape(-1, 2), dtype=torch.float32
)
with torch.no_grad():
    arrows = model.field(stops.median(), mesh).reshape(40, 40, 2).numpy()
    logits = model.head(mesh).reshape(40, 40, 2)

fig, axes = plt.subplots(figsize=(6.0, 5.2))
axes.streamplot(
    columns,
    rows,
    arrows[..., 0],
    arrows[..., 1],
    color="C7",
    density=0.6,
    linewidth=0.5,
    arrowsize=0.6,
)
levels = (logits[..., 1] - logits[..., 0]).numpy()
axes.contour(
    columns,
    rows,
    levels,
    levels=[0.0],
    colors=[plt.rcParams["text.color"]],
    linewidths=2,
)
for row, label in enumerate(y):
    path = paths[t <= stops[row], row]
    axes.plot(*path.T, color=f"C{int(label)}", lw=0.8, alpha=0.7)
for label, name in enumerate(data.class_names):
    axes.plot(*x[y == label].T, "o", ms=3, color=f"C{label}", mfc="none", mew=0.8)
    axes.plot(*ends[y == label].T, "o", ms=4, color=f"C{label}", label=name)
axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
axes.legend(loc="upper left", frameon=True, framealpha=0.8)
plt.show()
print(f"test error {error:.3f}")

# %% [markdown]
# Open circles are inputs, and filled ones are where their paths stop. The arrows show the field at the median end-time.
#
# **Try next.** Replace the end-time by `ltnode.FixedTime(1.0)`. What does the field do now, and what is the error?
# [The tutorial on an ODE block of your own](../../tutorials/vector_field.py) draws such pictures step by step.
