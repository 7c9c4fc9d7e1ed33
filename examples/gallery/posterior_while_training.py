# %% [markdown]
# # The end-time, while it is learnt
#
# The depth of a network is a choice that nobody can justify. Here it is a random variable, and training learns its distribution.
# Every line is the posterior q(T) after some steps: it begins at the grey one and leaves the times at which the fit is bad.

# %% alt="Densities of the end-time from early in training, dark, to the end, bright: the mass moves to late times."
import matplotlib.pyplot as plt
import torch

import ltnode
from ltnode.data import gap_data

data = gap_data(400, seed=0)
model = ltnode.build("lt-node", "synthetic", seed=0)
t = torch.linspace(0.005, 2.995, 200)
epochs = 900
lines = []


def note(event):
    """Keep the density of the posterior now and then."""
    if event["epoch"] % 45 == 44:
        with torch.no_grad():
            lines.append(model.end_time.log_prob(t).exp())


with torch.no_grad():
    start = model.end_time.log_prob(t).exp()
ltnode.fit(
    model,
    data,
    ltnode.train_preset("lt-node", data).replace(epochs=epochs),
    on_epoch=note,
)

colours = plt.get_cmap("viridis")
fig, axes = plt.subplots(figsize=(6.4, 3.4))
axes.plot(t, start, color="C7", ls="--", lw=1.5, label="before training")
for number, line in enumerate(lines):
    axes.plot(t, line, color=colours(0.1 + 0.85 * number / len(lines)), lw=1.3)
scale = plt.cm.ScalarMappable(norm=plt.Normalize(0, epochs), cmap="viridis")
fig.colorbar(scale, ax=axes, label="epoch")
axes.set(xlabel="end-time T", ylabel="density q(T)", xlim=(0, 3), ylim=(0, None))
axes.legend()
plt.show()
print(model.end_time)

# %% [markdown]
# **Try next.** `ltnode.build(..., objective={"kl_weight": 1.0})` holds the posterior closer to the prior, and `0.01` lets it go.
# [The objective](../../docs/objective.md) says what the weight means.
