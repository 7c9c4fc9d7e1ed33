# %% [markdown]
# # Reproduce one cell of the paper
#
# **Can a flow turn x into -x, and do you get our numbers when you train it yourself?**
#
# The reproduction of the paper judges each of its claims. Here you repeat one of them completely, with its own code and settings,
# and compare your numbers with the recorded ones. You need a clone of the repository, because the reproduction is not in the wheel.

# %%
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import ltnode

clone = Path(ltnode.__file__).parents[1]
sys.path.append(str(clone))
from paper.reproduce.motivating.tasks import SUCCESS, reproduce

torch.set_num_threads(1)

# %% [markdown]
# ## The claim
#
# A neural ODE on the line moves points along the line. Two paths of an ODE cannot cross.
# So no flow with one end-time for all inputs turns x into -x: the largest input would have to pass the smallest.
# If every input may stop at its own time, this obstruction is gone. That is the reason for ALT-NODE.
#
# | model | end-time | can it reflect the line? |
# |---|---|---|
# | NODE | 1 for all inputs | no: paths cannot cross |
# | NODE, one more dimension | 1 for all inputs | yes: paths can go around each other in the plane |
# | ALT-NODE | a posterior for each input | yes: paths need not be followed to the same time |
#
# The rule was fixed before training: a model solves the task if its RMSE on new points is at most this.

# %%
print(f"solved if RMSE <= {SUCCESS['reflection']}")

# %% [markdown]
# ## Train it
#
# `reproduce` is what the command `ltnode reproduce motivating` calls. It trains with the settings of the record, and is not shortened.

# %%
MODELS = {
    "node": "NODE",
    "node-augmented": "NODE, one more dimension",
    "alt-node": "ALT-NODE",
}
trained = {
    name: reproduce(
        "reflection", name, seed=0, out=Path("results"), runs=Path("runs")
    )
    for name in MODELS
}

# %% [markdown]
# ## Your numbers, and ours
#
# `paper/results` holds what we recorded, with version, machine and time. Read the two columns of numbers next to each other.

# %%
print(f"{'':26} RMSE now  recorded  solved  five recorded seeds")
for name, title in MODELS.items():
    seeds = [
        json.loads(
            (
                clone
                / f"paper/results/motivating-reflection-{name}-seed{seed}.json"
            ).read_text()
        )
        for seed in range(5)
    ]
    now, recorded = trained[name].result, seeds[0]
    solved = f"{sum(record['solved'] for record in seeds)} of {len(seeds)} solved"
    print(
        f"{title:26} {now['scores']['rmse']:8.4f} {recorded['scores']['rmse']:9.4f}  {now['solved']!s:7} {solved}"
    )

# %% tags=["check"]
for name in MODELS:
    recorded = json.loads(
        (
            clone / f"paper/results/motivating-reflection-{name}-seed0.json"
        ).read_text()
    )
    assert trained[name].result["solved"] == recorded["solved"]
    assert (
        abs(trained[name].result["scores"]["rmse"] - recorded["scores"]["rmse"])
        < 0.2 * recorded["scores"]["rmse"] + 0.002
    )

# %% [markdown]
# **What you should see.** The plain NODE fails, as theory says it must, and the other two succeed.
# On the same kind of processor the numbers agree in many digits. They need not agree in all of them:
# other versions of torch add numbers in another order.
#
# ## Why: look at the paths
#
# Each line is the path of one input, and the dot is where it may stop. The colour is the input.

# %% alt="Paths of the three models. NODE: paths stay in order. With one more dimension they go around each other. ALT-NODE: paths stop at different times."
x = torch.linspace(-1, 1, 13)[:, None]
t = torch.linspace(0, 3, 121)
fig, grid = plt.subplots(1, 3, figsize=(6.8, 2.7), sharey=True)
colours = plt.get_cmap("viridis")((x[:, 0] + 1) / 2)
for axes, (name, title) in zip(grid, MODELS.items(), strict=True):
    network = trained[name].network
    with torch.no_grad():
        paths = network.solve(network.initial_state(x), t, "stored").states[..., 0]
        ends = network.end_time.quantile([0.5], x).expand(1, len(x))[0]
        last = torch.stack(
            [paths[(t - end).abs().argmin(), row] for row, end in enumerate(ends)]
        )
    for row, colour in enumerate(colours):
        until = t <= ends[row] + 1e-6
        axes.plot(t[until], paths[until, row], color=colour, lw=1.2)
        axes.plot(
            ends[row], last[row], "o", ms=4, color=colour, clip_on=False, zorder=3
        )
    axes.set(xlabel="t", xlim=(0, 3 if name == "alt-node" else 1.15))
    axes.set_title(title, loc="left", fontsize=9)
grid[0].set_ylabel("first coordinate of the state")
plt.show()

# %% [markdown]
# **What you should see.** Yellow inputs begin at the top and should end at the bottom.
# In the first panel no path passes another, so all of them end in the same compromise.
# In the second, lines cross only in this projection: the paths go around each other in the plane.
# In the third, the field lifts all inputs onto one common path, which then falls slowly. Every input gets off at its own time.
#
# ## What was learnt about the end-time

# %% alt="The quantiles of ALT-NODE's end-time against the input: the time at which an input stops depends on the input."
line = torch.linspace(-1, 1, 200)[:, None]
with torch.no_grad():
    low, median, high = trained["alt-node"].network.end_time.quantile(
        [0.05, 0.5, 0.95], line
    )
fig, axes = plt.subplots(figsize=(6.4, 2.4))
axes.fill_between(
    line[:, 0], low, high, color="C2", alpha=0.25, lw=0, label="5 to 95 %"
)
axes.plot(line[:, 0], median, color="C2", label="median")
axes.set(xlabel="input x", ylabel="end-time T", xlim=(-1, 1))
axes.legend()
plt.show()

# %% [markdown]
# ## Try next
#
# - Other cells: `ltnode reproduce motivating` trains the other tasks and seeds, and `ltnode reproduce synthetic` the regression
#   with a gap, which takes up to an hour per model.
# - Every claim with its verdict: [the record of the reproduction](../paper/README.md).
# - What differs between the settings of the paper and our defaults: [presets](../docs/models.md#presets).
