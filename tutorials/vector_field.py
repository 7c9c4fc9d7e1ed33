# %% [markdown]
# # An ODE block of your own
#
# **What does a neural ODE do to the plane, and when should it stop?**
#
# Here the state is a point of the plane, so you can see everything: the learnt vector field, the paths, and their ends.
# You write the field, put a model around it, train it in a loop of your own, and look inside.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_moons
from torch import nn

import ltnode

_ = torch.manual_seed(0)

# %% [markdown]
# ## Two classes that no line separates

# %% alt="Two interleaved half moons of points in the plane, one for each class."
x, y = make_moons(400, noise=0.12, random_state=0)
x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
y = torch.tensor(y)
x_test, y_test = x[300:], y[300:]
x, y = x[:300], y[:300]


def draw_points(axes, points, labels, size=7):
    """Draw points in the colours of their classes."""
    for label in (0, 1):
        axes.scatter(*points[labels == label].T, s=size, color=f"C{label}", lw=0)
    axes.set_aspect("equal")


fig, axes = plt.subplots(figsize=(4.2, 3.2))
draw_points(axes, x, y)
plt.show()

# %% [markdown]
# ## The field
#
# Any module with the signature `f(t, h)` is a vector field, if its result has the shape of `h`.
# `t` is a tensor without dimensions. This field does not use it, so it looks the same at all times.
# The outer `tanh` limits the speed, so that points stay in the picture.


# %%
class Field(nn.Module):
    """dh/dt = tanh(net(h)) in the plane."""

    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2)
        )

    def forward(self, t, h):
        return torch.tanh(self.net(h))


# %% [markdown]
# ## A model around it
#
# The stem is the identity: a path begins at the input itself. The head is linear: it can only draw a line.
# So the flow must move the moons until a line separates them. When to stop is a latent variable with a learnt posterior.

# %%
model = ltnode.LatentTimeODE(
    stem=nn.Identity(),
    field=Field(),
    head=nn.Linear(2, 2),
    end_time=ltnode.GammaTime(prior=(2.0, 0.5), window=(0.0, 3.0)),
    task="classification",
)
print(model.end_time)

# %% [markdown]
# ## A loop of your own
#
# `loss` is the negative evidence lower bound. `after_step` keeps the posterior within its range.
# We note the parameters of the posterior, to see them move.

# %%
optimizer = torch.optim.Adam(
    [
        {
            "params": [*model.field.parameters(), *model.head.parameters()],
            "lr": 1e-2,
        },
        {"params": list(model.end_time.parameters()), "lr": 2e-2},
    ]
)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
history = []
for step in range(400):
    if step % 4 == 0:
        history.append(
            (step, *model.end_time.quantile([0.05, 0.25, 0.5, 0.75, 0.95]).tolist())
        )
    batch = torch.randint(len(x), (128,))
    loss = model.loss(x[batch], y[batch], n_data=len(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    model.after_step()
    if step % 100 == 99:
        parts = model.loss_parts
        print(
            f"step {step + 1}: log-likelihood {parts.expected_log_likelihood:.3f}, KL {parts.kl:.2f}"
        )
model.eval()
model.finish_training(x, y)
p = model.predict(x_test)
print(f"test error {ltnode.metrics.error(p.probs, y_test):.3f}")

# %% [markdown]
# ## The learnt vector field
#
# Arrows show where the flow carries a point. The thick line is the boundary of the head.
# Dots are inputs, and coloured lines are their paths up to the last time of the window.

# %% alt="Streamlines of the learnt field; paths of points of both classes run to opposite sides of the head's boundary line."
times = torch.linspace(0.0, 3.0, 60)
with torch.no_grad():
    paths = ltnode.odesolve(model.field, x[:24], times, rtol=1e-5, atol=1e-5).states
reach = float(paths.abs().max()) * 1.08
side = np.linspace(-reach, reach, 40)
mesh = torch.tensor(
    np.stack(np.meshgrid(side, side), -1).reshape(-1, 2), dtype=torch.float32
)
with torch.no_grad():
    arrows = model.field(torch.tensor(0.0), mesh).reshape(40, 40, 2)
    logits = model.head(mesh).reshape(40, 40, 2)
fig, axes = plt.subplots(figsize=(5.4, 5.0))
axes.streamplot(
    side,
    side,
    arrows[..., 0].numpy(),
    arrows[..., 1].numpy(),
    color="C7",
    density=0.9,
    linewidth=0.6,
    arrowsize=0.7,
)
axes.contour(
    side,
    side,
    (logits[..., 1] - logits[..., 0]).numpy(),
    levels=[0.0],
    colors=[plt.rcParams["text.color"]],
    linewidths=2,
)
for point in range(24):
    axes.plot(
        paths[:, point, 0],
        paths[:, point, 1],
        color=f"C{int(y[point])}",
        lw=1.1,
        alpha=0.8,
    )
draw_points(axes, x[:24], y[:24], size=20)
axes.set(xlim=(-reach, reach), ylim=(-reach, reach))
plt.show()

# %% [markdown]
# **What you should see.** The paths of the two classes part, and end on opposite sides of the line.
# Paths of an autonomous field cannot cross, so the moons are bent apart, never cut.
#
# ## The plane at four times
#
# `model.solve` returns the states at any times from one solve.

# %% alt="All training points at four times: two moons at first, then bent apart until a line separates them."
moments = torch.tensor([0.0, 0.75, 1.5, 3.0])
with torch.no_grad():
    states = model.solve(model.initial_state(x), moments, "stored").states
    w, b = (
        model.head.weight[1] - model.head.weight[0],
        float(model.head.bias[1] - model.head.bias[0]),
    )
fig, grid = plt.subplots(1, 4, figsize=(6.6, 1.9))
for axes, moment, state in zip(grid, moments, states, strict=True):
    draw_points(axes, state, y, size=2)
    centre, half = state.mean(0), 1.15 * float((state - state.mean(0)).abs().max())
    on_line = (
        -b * w / (w @ w)
        + torch.tensor([[-1.0], [1.0]]) * 20 * torch.stack([-w[1], w[0]]) / w.norm()
    )
    axes.plot(*on_line.T, color=plt.rcParams["text.color"], lw=1)
    axes.set(
        xlim=(centre[0] - half, centre[0] + half),
        ylim=(centre[1] - half, centre[1] + half),
        xticks=[],
        yticks=[],
    )
    axes.set_title(f"t = {moment:g}", loc="left")
plt.show()

# %% [markdown]
# ## When should it stop?
#
# The head can be asked at every time, and each time gives an answer of its own: a *member*.
# Members at early times are bad: the points have not been moved far enough. The posterior has little mass there.

# %% alt="Left: log-likelihood of the member at time t, and the density of the posterior, which avoids early times. Right: its quantiles during training."
t = torch.linspace(0.01, 2.99, 100)


def log_likelihood_over_time(inputs, labels):
    """Mean log-likelihood of the member at every time t."""
    with torch.no_grad():
        states = model.solve(model.initial_state(inputs), t, "stored").states
        members = torch.log_softmax(model.outputs_at(states), -1)
    return members[:, torch.arange(len(labels)), labels].mean(1)


likelihood = log_likelihood_over_time(x, y)
with torch.no_grad():
    density = model.end_time.log_prob(t).exp()
    prior = ltnode.GammaTime(2.0, 0.5, window=(0.0, 3.0)).log_prob(t).exp()
fig, (left, right) = plt.subplots(1, 2, figsize=(6.6, 2.8))
left.plot(t, likelihood, color="C0", label="log-likelihood at t")
left.plot(
    t,
    log_likelihood_over_time(x_test, y_test),
    color="C0",
    ls=":",
    label="on test points",
)
left.set(xlabel="end-time t", ylim=(-1.0, 0.05))
other = left.twinx()
other.fill_between(t, 0, density, color="C1", alpha=0.3, lw=0)
other.plot(t, prior, color="C7", ls="--", lw=1)
other.set(ylim=(0, 3 * float(density.max())), yticks=[])
other.spines[:].set_visible(False)
left.plot([], [], color="C1", lw=5, alpha=0.4, label="posterior q(t)")
left.plot([], [], color="C7", ls="--", lw=1, label="prior p(t)")
left.legend(loc="lower right", bbox_to_anchor=(1.0, 0.3))
steps, *levels = np.array(history).T
right.fill_between(steps, levels[0], levels[4], color="C1", alpha=0.2, lw=0)
right.fill_between(steps, levels[1], levels[3], color="C1", alpha=0.35, lw=0)
right.plot(steps, levels[2], color="C1")
right.set(xlabel="training step", ylabel="end-time", ylim=(0, 3))
right.set_title("posterior: median, 50 %, 90 %", loc="left", fontsize=9)
plt.show()

# %% [markdown]
# ## What the members disagree about
#
# The prediction is the average of the members, and costs one solve whatever their number.
# Their disagreement is `epistemic`, in nats: it is large where the answer depends on the end-time.

# %% alt="Maps over the plane: probability of class 1, which changes between the moons, and the disagreement of the members."
side = np.linspace(-3.2, 3.2, 90)
plane = torch.tensor(
    np.stack(np.meshgrid(side, side), -1).reshape(-1, 2), dtype=torch.float32
)
answer = model.predict(plane, samples=30)
fig, grid = plt.subplots(1, 2, figsize=(6.6, 3.0))
for axes, values, name in zip(
    grid,
    (answer.probs[:, 1], answer.epistemic),
    ("probability", "epistemic"),
    strict=True,
):
    picture = axes.pcolormesh(
        side, side, values.reshape(90, 90), cmap="viridis", rasterized=True
    )
    fig.colorbar(picture, ax=axes, shrink=0.8)
    axes.scatter(*x.T, s=1.5, color="0.96", lw=0)
    axes.set_aspect("equal")
    axes.set_title(name, loc="left")
plt.show()
print(f"{answer.member_probs.shape[0]} members: {answer.stats}")

# %% tags=["check"]
assert ltnode.metrics.error(p.probs, y_test) <= 0.05
assert likelihood[-30:].mean() > likelihood[:10].mean()

# %% [markdown]
# **What you should see.** The members disagree along the boundary, and far from the moons where it continues.
# Behind the moons they agree, even where there are no data. [What the uncertainty means](uncertainty.py) shows
# what to do about that.
#
# ## Try next
#
# - Let the field use `t`: concatenate `t.expand(len(h), 1)` to `h`. Paths may then cross.
# - Replace `GammaTime` by `FixedTime(1.0)`, `UniformTime(0.0, 3.0)` or `AmortizedGammaTime(encoder)`.
# - Replace the moons by `ltnode.data.concentric_annuli(300)`. Why is this hard for a flow of the plane?
#   [The gallery](../docs/gallery/index.md) has the picture.
# - `ltnode.accelerate` gives your loop the fast training step: [your own ODE block](../docs/own-block.md).
