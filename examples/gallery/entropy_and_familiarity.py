# %% [markdown]
# # Two maps of one plane
#
# Three spirals, and one classifier. The left map shows how sure it is, the right one how familiar a point would be.
# The line encloses the points that are not flagged at a false-alarm rate of 5 %.

# %% alt="Left: entropy is large between the spirals and far away. Right: familiarity is large only on the spirals."
import matplotlib.pyplot as plt
import numpy as np

import ltnode


def spirals(n, seed):
    """Points on three arms."""
    rng = np.random.default_rng(seed)
    arm, radius = rng.integers(0, 3, n), np.sqrt(rng.uniform(0.03, 1, n))
    angle = 3.2 * radius + 2 * np.pi * arm / 3
    points = 2 * radius[:, None] * np.stack(
        [np.cos(angle), np.sin(angle)], 1
    ) + 0.07 * rng.normal(size=(n, 2))
    return points, arm


X, y = spirals(1500, seed=0)
classifier = ltnode.LTNodeClassifier(
    random_state=0, calibration_fraction=0.15, learning_rate=0.01
).fit(X, y)
print(f"accuracy on new points: {classifier.score(*spirals(1000, seed=1)):.3f}")

side = np.linspace(-3.5, 3.5, 140)
u = classifier.predict_uncertainty(
    np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
)
fig, grid = plt.subplots(1, 2, figsize=(6.8, 3.1))
for axes, values, name in zip(
    grid, (u.entropy, u.familiarity), ("entropy (nats)", "familiarity"), strict=True
):
    picture = axes.pcolormesh(
        side, side, values.reshape(140, 140), cmap="viridis", rasterized=True
    )
    fig.colorbar(picture, ax=axes, shrink=0.85)
    axes.contour(
        side,
        side,
        u.familiarity.reshape(140, 140),
        levels=[0.05],
        colors="0.97",
        linewidths=0.8,
    )
    for arm in range(3):
        axes.plot(*X[y == arm][::9].T, ".", ms=2.5, color=f"C{arm}")
    axes.set_title(name, loc="left")
    axes.set_aspect("equal")
plt.show()

# %% [markdown]
# **Try next.** [What the uncertainty means](../../tutorials/uncertainty.py) breaks both maps on purpose.
