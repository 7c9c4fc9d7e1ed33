# %% [markdown]
# # Five networks, or one solve
#
# What do networks disagree about where there are no data? Five plain neural ODEs are five trainings and five solves.
# One LT-NODE read at thirty end-times is one of each. The last panel adds its familiarity: answers widen far from the data.

# %% alt="Three panels on data with a gap: five curves that part between the data, thirty curves of one network, and its widened band."
import time

import matplotlib.pyplot as plt
import torch

import ltnode
from ltnode.data import gap_data, gap_grid

data, grid = gap_data(400, seed=0), gap_grid()[::8]
x, truth = grid[:, 0], torch.cos(4 * grid[:, 0] + 0.8)


def trained(name, seed):
    """A model after a short training."""
    model = ltnode.build(name, "synthetic", seed=seed)
    ltnode.fit(
        model, data, ltnode.train_preset(name, data).replace(epochs=600, seed=seed)
    )
    return model


def curves(model, samples):
    """What the network itself says at some quantiles of its end-time, from one solve."""
    with torch.no_grad():
        times = model.end_time.quantile(
            ((torch.arange(samples) + 0.5) / samples).tolist()
        )
        return model.outputs_at(
            model.solve(model.initial_state(grid), times, "stored").states
        )[..., 0]


start = time.process_time()
five = torch.cat([curves(trained("node", seed), 1) for seed in range(5)])
middle = time.process_time()
model = trained("lt-node", 0)
thirty, p = curves(model, 30), model.predict(grid)
print(
    f"five networks: {middle - start:.0f} s on the processor; one network: {time.process_time() - middle:.0f} s"
)

fig, panels = plt.subplots(1, 3, figsize=(6.8, 2.7), sharey=True)
for axes, name in zip(
    panels,
    ("five networks", "one network, 30 end-times", "the same, with familiarity"),
    strict=True,
):
    axes.plot(x, truth, color="C7", ls="--", lw=1)
    axes.plot(data.train.x[::4, 0], data.train.y[::4], ".", ms=3, color="C7")
    axes.set(xlabel="x", xlim=(-2, 2), ylim=(-2.4, 2.4))
    axes.set_title(name, loc="left", fontsize=9)
panels[0].plot(x, five.T, color="C3", lw=1)
panels[1].plot(x, thirty.T, color="C0", lw=0.5)
panels[2].fill_between(
    x,
    p.mean - 2 * p.total_std,
    p.mean + 2 * p.total_std,
    color="C0",
    alpha=0.2,
    lw=0,
)
panels[2].plot(x, p.mean, color="C0")
plt.show()
for name, mean, std in (
    ("five networks", five.mean(0), five.std(0)),
    ("30 end-times", thirty.mean(0), thirty.std(0)),
    ("with familiarity", p.mean, p.total_std),
):
    print(
        f"{name:16} true function within ±2 std on {((truth - mean).abs() <= 2 * std).double().mean():.0%} of the line"
    )

# %% [markdown]
# **What you should see.** Neither five networks nor thirty end-times hold the truth everywhere: all of them agree on much that they
# never saw. That is why the familiarity exists.
#
# **Try next.** On images an ensemble is more accurate, at five times the cost: [when to use what](../../docs/when-to-use.md), and
# [how to distil an ensemble into one network](../../docs/ensembles.md).
