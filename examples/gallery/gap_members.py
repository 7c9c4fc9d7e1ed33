# %% [markdown]
# # Thirty answers from one solve
#
# Training points lie in two intervals only. Each thin line is the network read at one end-time, and its colour is that time.
# The lines agree where there are data, and part in the gap and outside. All of them come from one solve of one network.

# %% alt="Thirty curves agree on the two clusters of points and part between and outside of them."
import matplotlib.pyplot as plt
import torch

import ltnode
from ltnode.data import gap_data, gap_grid

data = gap_data(400, seed=0)
model = ltnode.build("lt-node", "synthetic", seed=0)
config = ltnode.train_preset("lt-node", data)
ltnode.fit(model, data, config.replace(epochs=600))

grid = gap_grid()[::8]
with torch.no_grad():
    times = model.end_time.quantile(((torch.arange(30) + 0.5) / 30).tolist())
    solution = model.solve(model.initial_state(grid), times, "stored")
    members = model.outputs_at(solution.states)[..., 0]

colours = plt.get_cmap("viridis")
fig, axes = plt.subplots(figsize=(6.4, 3.6))
for t, member in zip(times, members, strict=True):
    axes.plot(grid[:, 0], member, color=colours(float(t) / 3), lw=0.9)
axes.plot(
    *data.train.x[::3].T,
    data.train.y[::3],
    ".",
    color="C7",
    ms=4,
    label="training points",
)
scale = plt.cm.ScalarMappable(norm=plt.Normalize(0, 3), cmap="viridis")
fig.colorbar(scale, ax=axes, label="end-time")
axes.set(xlabel="x", ylabel="y", xlim=(-2, 2), ylim=(-2.2, 2.2))
axes.legend(loc="lower left")
plt.show()
print(f"one solve: {solution.stats}")

# %% [markdown]
# `model.predict` averages the lines, and widens the answer further where its input is unfamiliar.
#
# **Try next.** Replace `"lt-node"` by `"alt-node"`, which has an end-time of its own for every input, or by `"node"`, which has
# one member. [Concepts](../../docs/concepts.md) explains the picture.
