# %% [markdown]
# # Whom to reject first
#
# A classifier of handwritten digits gets a mixture: four fifths are digits, and one fifth are digits with shuffled pixels.
# It may decline some of them. Each line rejects by another number, and counts a foreign input that is answered as an error.

# %% alt="Accuracy of the answered inputs against the share that is rejected, for four orders of rejection."
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import ltnode

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X, y, test_size=0.4, random_state=0
)
classifier = ltnode.LTNodeClassifier(random_state=0).fit(X_train, y_train)

rng = np.random.default_rng(0)
foreign = rng.permuted(X_test[: len(X_test) // 4], axis=1)
rows = np.concatenate([X_test, foreign])
correct = np.concatenate(
    [classifier.predict(X_test) == y_test, np.zeros(len(foreign), dtype=bool)]
)
u = classifier.predict_uncertainty(rows)


def rank(values):
    """The position of each value, from 0 to 1."""
    return np.argsort(np.argsort(values)) / (len(values) - 1)


orders = {
    "entropy": u.entropy,
    "distance": u.distance,
    "larger rank of both": np.maximum(rank(u.entropy), rank(u.distance)),
    "at random": rng.random(len(rows)),
}
rejected = np.arange(len(rows)) / len(rows)
fig, axes = plt.subplots(figsize=(6.4, 3.5))
for (name, score), colour in zip(
    orders.items(), ("C0", "C2", "C1", "C7"), strict=True
):
    order = np.argsort(score)  # the surest first
    accuracy = np.cumsum(correct[order]) / np.arange(1, len(rows) + 1)
    axes.plot(rejected[:-20], accuracy[::-1][:-20], color=colour, label=name)
    print(
        f"{name:20} accuracy after rejecting a quarter: {accuracy[::-1][len(rows) // 4]:.3f}"
    )
axes.axvline(len(foreign) / len(rows), color="C7", lw=1, ls="--")
axes.set(
    xlabel="share that is rejected",
    ylabel="accuracy of the answers",
    xlim=(0, 0.5),
    ylim=(0.7, 1.01),
)
axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.4))
plt.show()

# %% [markdown]
# The dashed line is the share of foreign inputs. The entropy does well here, because answers widen as the distance grows.
#
# **Try next.** Use noise in place of shuffled digits, or no foreign inputs at all. Which order wins then?
# [Prediction](../../docs/predict.md) explains why there are two numbers and two flags.
