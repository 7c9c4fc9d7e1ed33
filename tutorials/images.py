# %% [markdown]
# # Images, end to end
#
# **Which digit is this, is the network sure, and is it a digit at all?**
#
# You start with a folder of small image files, one folder per class, and end with a model that can decline to answer.
# The images are the scanned digits of scikit-learn, so that everything runs in seconds on a CPU.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

import ltnode
from ltnode.evaluation.shifts import rotate

# %% [markdown]
# ## A folder per class
#
# Any folder of this form works: `digits/3/0042.png` is an image of class 3.

# %% alt="The first twenty digits of the folder, scanned at 8 by 8 pixels and enlarged to 16 by 16."
scans = load_digits()
for number, (scan, label) in enumerate(
    zip(scans.images, scans.target, strict=True)
):
    file = Path("digits") / str(label) / f"{number:04}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((scan * 255 / 16).astype(np.uint8)).resize(
        (16, 16), Image.Resampling.BICUBIC
    ).save(file)


def show(images, titles=None, columns=10, size=0.64):
    """Show a batch of grey images (N, 1, H, W)."""
    rows = -(-len(images) // columns)
    _, grid = plt.subplots(
        rows,
        columns,
        figsize=(columns * size, rows * (size + 0.3 * bool(titles))),
        squeeze=False,
    )
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, image, text in zip(
        grid.flat, images, titles or [""] * len(images), strict=False
    ):
        axes.imshow(
            image[0],
            cmap="gray",
            vmin=0,
            vmax=255 if image.dtype == torch.uint8 else 1,
            interpolation="nearest",
        )
        axes.set_title(text, fontsize=7)
    plt.show()


data = ltnode.data.from_folder("digits")
print(data)
order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(1))
show(data.train.x[order[:20]])

# %% [markdown]
# ## Training
#
# `train_preset` is the recipe for a set of this size. We shorten it, so that this page is quick.
# A part of the images is held out to choose when to abstain, and another part to calibrate the familiarity.

# %%
model = ltnode.build("lt-node", data, seed=0)
config = ltnode.train_preset("lt-node", data).replace(
    epochs=8, milestones=(6,), calibration_fraction=0.1
)
run = ltnode.fit(model, data, config, out="runs/digits")
trained = ltnode.TrainedModel.open("runs/digits")
print(
    f"{sum(p.numel() for p in model.parameters()):,} weights, {run.results['steps']} steps"
)
print(
    "end-time:", {name: round(value, 2) for name, value in model.describe().items()}
)

# %% [markdown]
# ## How good is it?

# %%
test = trained.predict(data.test.x)
print(f"error {ltnode.metrics.error(test.probs, data.test.y):.3f}")
print(
    f"log-likelihood {ltnode.metrics.log_likelihood(test.probs, data.test.y):.3f}"
)
print(
    f"{test.member_probs.shape[0]} members per answer, from one solve: {test.stats}"
)

# %% [markdown]
# ## Who is unsure about what?
#
# The entropy says how sure an answer is. These are the test images with the largest one.

# %% alt="The ten test digits with the largest entropy; several are badly written, and some answers are wrong."
hardest = test.entropy.argsort(descending=True)[:10]
show(
    data.test.x[hardest],
    [
        f"{label}? {p:.0%}\n(is {y})"
        for label, p, y in zip(
            test.labels[hardest], test.probs[hardest].amax(1), data.test.y[hardest]
        )
    ],
)

# %% [markdown]
# **What you should see.** Badly written digits, and among them many of the wrong answers.
# So the network can hand over the images with the largest entropy, and answer the others with fewer errors.

# %% alt="The share of wrong answers falls as the network answers fewer images, those with the smallest entropy first."
curve = ltnode.metrics.risk_coverage(test.probs, data.test.y, -test.entropy)
fig, axes = plt.subplots(figsize=(6.4, 2.6))
axes.plot(curve.coverage, curve.risk)
axes.set(
    xlabel="share of the images that are answered",
    ylabel="error of the answers",
    xlim=(0.7, 1),
    ylim=(0, None),
)
plt.show()
point = trained.operating_point
print(f"operating point: abstain above {point.entropy_threshold:.2f} nats")

# %% [markdown]
# ## Is it a digit at all?
#
# Now some images that are no digits. The network must name a digit nevertheless, because it knows nothing else.

# %%
samples = Path(ltnode.__file__).parent / "serve" / "samples"


def resized(name):
    """A sample image of the package at the size of the digits."""
    grey = Image.open(samples / name).convert("L")
    return torch.from_numpy(
        np.array(grey.resize((16, 16), Image.Resampling.BILINEAR))
    )[None]


generator = torch.Generator().manual_seed(0)
foreign = {
    "noise": torch.randint(
        256, (1, 16, 16), generator=generator, dtype=torch.uint8
    ),
    "black": torch.zeros(1, 16, 16, dtype=torch.uint8),
    "letter K": resized("letter-k.png"),
    "shirt": resized("shirt.png"),
    "inverted digit": 255 - data.test.x[0],
    "own digit": resized("digit-4.png"),
    "test digit": data.test.x[0],
}
batch = torch.stack(list(foreign.values()))
print(f"{'':15} answer  probability  entropy  familiarity")
for name, row in zip(foreign, trained.rows(batch), strict=True):
    flag = "  unfamiliar" if row.unfamiliar else ""
    print(
        f"{name:15} {row.name:>6} {row.probability:12.0%} {row.entropy:8.2f} {row.familiarity:12.3f}{flag}"
    )

# %% alt="Noise, a black image, a letter, a shirt, an inverted digit, a drawn digit and a test digit, with their answers."
show(
    batch,
    [
        f"{name}\n{row.name}: {row.probability:.0%}"
        for name, row in zip(foreign, trained.rows(batch))
    ],
    7,
    0.9,
)

# %% [markdown]
# **What you should see.** Foreign images get an answer like any other, sometimes a sure one.
# The familiarity, a p-value, is what gives them away. "Own digit" was drawn in another hand, so it may be flagged, too.
#
# ## Leaving the training data step by step
#
# Rotation turns digits gradually into something else. Entropy and familiarity notice it in their own ways.

# %% alt="Against the angle of rotation: error and mean entropy rise, and the share of flagged images rises to nearly all."
angles = range(0, 181, 15)
error, entropy, flagged = [], [], []
images, labels = data.test.x[:150], data.test.y[:150]
for angle in angles:
    p = trained.predict(rotate(images, angle))
    error.append(ltnode.metrics.error(p.probs, labels))
    entropy.append(float(p.entropy.mean()))
    flagged.append(
        float((p.familiarity <= trained.false_alarm_rate).double().mean())
    )
fig, axes = plt.subplots(figsize=(6.4, 2.9))
axes.plot(angles, error, "o-", ms=3, label="error")
axes.plot(angles, entropy, "s-", ms=3, label="mean entropy (nats)")
axes.plot(angles, flagged, "^-", ms=3, label="share flagged as unfamiliar")
axes.set(xlabel="rotation in degrees", xticks=range(0, 181, 30), ylim=(0, None))
axes.legend()
plt.show()
print(
    f"flagged without rotation: {flagged[0]:.1%} of {len(images)}; the false-alarm rate is {trained.false_alarm_rate:.0%}"
)

# %% [markdown]
# **What you should see.** The share of flagged images rises before most answers are wrong.
# Near a right angle the entropy *falls*, although nearly every answer is wrong: the network is surer of another digit.
# Upside down, both curves fall for a good reason: a turned 0, 1 or 8 is a digit again.
#
# ## What makes an image unfamiliar?
#
# `explain` replaces parts of an image by their training mean, and reports by how much the distance falls.
# Here somebody has spilt ink on a digit.

# %% alt="A digit with a white blot in one corner; the map of the explanation is bright where the blot is."
blotted = data.test.x[3].clone()
blotted[0, 10:16, 10:16] = 255
explanation = ltnode.trained.explain(trained, blotted[None])[0]
fig, (left, right) = plt.subplots(1, 2, figsize=(4.6, 2.3))
left.imshow(blotted[0], cmap="gray", interpolation="nearest")
right.imshow(
    explanation.falls.clamp_min(0), cmap="viridis", interpolation="nearest"
)
left.set_title("image", loc="left")
right.set_title("fall of the distance", loc="left")
left.set_axis_off()
right.set_axis_off()
plt.show()
print(
    f"familiarity {trained.rows(blotted[None])[0].familiarity:.3f}; to blame: {explanation.describe()}"
)

# %% tags=["check"]
unfamiliar = {
    name: row.unfamiliar
    for name, row in zip(foreign, trained.rows(batch), strict=True)
}
assert (
    unfamiliar["noise"]
    and unfamiliar["black"]
    and unfamiliar["inverted digit"]
    and not unfamiliar["test digit"]
)
assert flagged[2] > error[2] and entropy[6] < max(entropy[:6]) and error[6] > 0.8
assert flagged[-1] > 3 * flagged[0] and error[6] > error[0]
assert ltnode.metrics.error(test.probs, data.test.y) < 0.08

# %% [markdown]
# ## The same by commands
#
# ```bash
# ltnode train --data photos --image-size 64 --out runs/photos
# ltnode evaluate runs/photos
# ltnode predict runs/photos new-photos --explain flagged
# ltnode serve runs/photos --open
# ```
#
# ## Try next
#
# - Train for the full recipe: leave out `epochs` and `milestones`.
# - Build `"node"` in place of `"lt-node"`. Which of the curves above change, and which do not?
# - Your own photos: [your own images](../docs/own-images.md).
# - Trained models of real image sets: `ltnode.from_pretrained("lt-node-cifar10")`, see [models by name](../docs/models-by-name.md).
#   With the sets on disk, `LTNODE_DATA=folder ltnode evaluate zoo/lt-node-mnist` measures such a model.
