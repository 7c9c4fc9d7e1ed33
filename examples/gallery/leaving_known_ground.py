# %% [markdown]
# # Leaving known ground
#
# The path of an input through the ODE tells how familiar the input is. The lines show, over t, how far the state is from those of
# training images, for one digit that is turned step by step. The dashed line is a typical training image.

# %% alt="Distance of the state over t for a digit at angles from 0 to 90 degrees; the lines rise with the angle."
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import ltnode
from ltnode.evaluation.shifts import rotate

trained = ltnode.from_pretrained("lt-node-mnist")
raw = trained.read(
    Path(ltnode.__file__).parent / "serve" / "samples" / "digit-5.png"
).raw
angles = range(0, 91, 15)
turned = torch.cat([rotate(raw, angle) for angle in angles])
times, distance = trained.model.path_profile(trained.prepare(turned))
rows = trained.rows(turned)

colours = plt.get_cmap("viridis")
fig, grid = plt.subplots(2, 1, figsize=(6.4, 4.0), height_ratios=(1, 3.2))
strip = torch.cat(list(turned[:, 0]), dim=1)
grid[0].imshow(strip, cmap="gray")
grid[0].set_axis_off()
for number, (angle, row) in enumerate(zip(angles, rows, strict=True)):
    colour = colours(0.92 * number / (len(rows) - 1))
    grid[0].text(
        28 * number + 14, -4, f"{angle}°: {row.name}", ha="center", fontsize=9
    )
    grid[1].plot(
        times, distance[:, number], "o-", ms=3, color=colour, label=f"{angle}°"
    )
grid[1].axhline(1, color="C7", ls="--", lw=1)
grid[1].set(xlabel="t", ylabel="distance of the state", ylim=(0, None))
grid[1].legend(ncols=2)
plt.show()
for angle, row in zip(angles, rows, strict=True):
    print(
        f"{angle:3d}°: {row.name}, probability {row.probability:.2f}, familiarity {row.familiarity:.4f}",
        "unfamiliar" * row.unfamiliar,
    )

# %% [markdown]
# **Try next.** `trained.read("yours.png")` takes an image of your own. [Familiarity](../../docs/predict.md#familiarity) says what is
# guaranteed about the number.
