# %% [markdown]
# # What would it have said earlier?
#
# A neural ODE can be read at every time. These are the class probabilities of a trained MNIST model along the path
# of three images: a clear digit, a shape between a 4 and a 9, and noise. The grey area is the posterior of the end-time.

# %% alt="Class probabilities over t: a digit is settled early, the shape between 4 and 9 is shared between them, noise gets a class as well."
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import ltnode

trained = ltnode.from_pretrained("lt-node-mnist")
model = trained.model
samples = Path(ltnode.__file__).parent / "serve" / "samples"
images = {
    "a digit": "digit-3",
    "between 4 and 9": "four-or-nine",
    "noise": "noise-grey",
}

t = torch.linspace(0.01, 2.99, 80)
fig, grid = plt.subplots(2, 3, figsize=(6.6, 3.6), height_ratios=(1, 2.4))
for (above, below), (name, file) in zip(grid.T, images.items(), strict=True):
    raw = trained.read(samples / f"{file}.png").raw
    row = trained.rows(raw)[0]
    x = trained.prepare(raw)
    with torch.no_grad():
        probs = model.outputs_at(
            model.solve(model.initial_state(x), t, "stored").states
        )[:, 0].softmax(-1)
        density = model.end_time.log_prob(t).exp()
    above.imshow(raw[0, 0], cmap="gray")
    above.set_axis_off()
    above.set_title(f"{name}: {row.name}", loc="left", fontsize=9)
    below.fill_between(t, 0, density / density.max(), color="C7", alpha=0.2, lw=0)
    shown = probs.mean(0).topk(3).indices.tolist()
    for place, digit in enumerate(shown):
        below.plot(t, probs[:, digit], color=f"C{place}", label=str(digit))
    below.set(xlabel="t", xlim=(0, 3), ylim=(0, 1.05))
    below.legend(loc="center right", fontsize=8)
    print(
        f"{name:16} {row.name}, probability {row.probability:.2f}, entropy {row.entropy:.2f}, familiarity {row.familiarity:.4f}"
    )
grid[1, 0].set_ylabel("probability")
plt.show()

# %% [markdown]
# **What you should see.** The noise gets an answer, too, and keeps it for most of the path. Its familiarity gives it away.
#
# **Try next.** The explorer page draws this curve for your own images: `ltnode serve lt-node-mnist --open`.
