# %% [markdown]
# # What the uncertainty means, and how to break it
#
# **When may you believe the two numbers of a prediction, and when not?**
#
# The entropy says how sure the answer is, if the input is like the training data.
# The familiarity says whether the input is like the training data. We break both on purpose.
# All data are generated, so the truth is known.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from sklearn.datasets import make_moons

import ltnode
from ltnode.metrics import auroc, ece, fit_temperature, log_likelihood

RATE = 0.05  # the share of false alarms that we accept


def moons(n, seed, flipped=0.0):
    """Points of two half moons; a share of the labels is flipped."""
    X, y = make_moons(n, noise=0.15, random_state=seed)
    flip = np.random.default_rng(seed).random(n) < flipped
    return X, np.where(flip, 1 - y, y)


def classifier(**options):
    """The estimator, with more rows than usual to calibrate on, so that shares vary less."""
    return ltnode.LTNodeClassifier(
        random_state=0, calibration_fraction=0.2, **options
    )


# %% [markdown]
# ## Two numbers, one plane
#
# A classifier of two moons, asked everywhere.

# %% alt="Entropy over the plane is large along the boundary and far away, and small in a rim around the moons; familiarity is large only on the moons."
X, y = moons(1000, seed=0)
clf = classifier().fit(X, y)
side = np.linspace(-4, 5, 120)
plane = np.stack(np.meshgrid(side, side - 0.5), -1).reshape(-1, 2)
u = clf.predict_uncertainty(plane)
fig, grid = plt.subplots(1, 2, figsize=(6.6, 2.9))
for axes, values, name in zip(
    grid, (u.entropy, u.familiarity), ("entropy", "familiarity"), strict=True
):
    picture = axes.pcolormesh(
        side, side - 0.5, values.reshape(120, 120), cmap="viridis", rasterized=True
    )
    fig.colorbar(picture, ax=axes, shrink=0.85)
    axes.scatter(*X[::5].T, s=1.5, color="0.96", lw=0)
    axes.set_aspect("equal")
    axes.set_title(name, loc="left")
plt.show()

# %% [markdown]
# **What you should see.** The entropy is large where the classes meet, and far away, because answers widen with the distance.
# But around the moons there is a dark rim without any points, where the answer is sure.
# The familiarity is large where the points are, and small everywhere else. Neither picture could replace the other.
#
# ## Noise: the entropy sees it, the familiarity must not
#
# We flip a share of the labels. The inputs stay as they are, so nothing is unfamiliar.
# The dashed line is the entropy of someone who knows the classes and the share of flips.

# %% alt="Mean entropy follows the dashed line of the known noise; the share of flagged points stays small."
shares = (0.0, 0.1, 0.2, 0.3)
test, _ = moons(1000, seed=1)
entropy, flagged = [], []
for share in shares:
    noisy_clf = classifier().fit(*moons(1000, seed=0, flipped=share))
    noisy = noisy_clf.predict_uncertainty(test)
    entropy.append(noisy.entropy.mean())
    flagged.append(np.mean(noisy.familiarity <= RATE))
fine = np.linspace(1e-6, 0.3, 100)
fig, axes = plt.subplots(figsize=(6.4, 2.7))
axes.plot(
    fine,
    -fine * np.log(fine) - (1 - fine) * np.log(1 - fine),
    color="C7",
    ls="--",
    label="entropy of the noise alone",
)
axes.plot(shares, entropy, "o-", label="mean entropy (nats)")
axes.plot(shares, flagged, "^-", color="C2", label="share flagged as unfamiliar")
axes.set(xlabel="share of flipped labels", ylim=(0, 0.75))
axes.legend(loc="upper left")
plt.show()
print("flagged:", ", ".join(f"{value:.1%}" for value in flagged))

# %% [markdown]
# **What you should see.** The entropy follows the noise. The flagged share stays near the rate that we accept.
# It differs from fit to fit, because every fit draws its own calibration rows.
#
# ## Far away: the entropy is blind at first, the familiarity sees
#
# We move test points away from the centre, by a factor. A perfect detector of such points has an AUROC of one.
# A detector worth nothing has one half, and below that, far points look *surer* than ordinary ones.

# %% alt="The AUROC of the distance is above that of the entropy, which begins below one half, at every factor."
centre = X.mean(axis=0)
factors = (1.25, 1.5, 2, 3, 5, 10)
near = clf.predict_uncertainty(test)
scores_far = {"distance": [], "entropy": []}
for factor in factors:
    far = clf.predict_uncertainty(centre + factor * (test - centre))
    scores_far["distance"].append(auroc(-near.distance, -far.distance))
    scores_far["entropy"].append(auroc(-near.entropy, -far.entropy))
fig, axes = plt.subplots(figsize=(6.4, 2.6))
axes.axhline(0.5, color="C7", lw=1, ls="--")
for name, marker in (("distance", "^"), ("entropy", "o")):
    axes.plot(
        factors,
        scores_far[name],
        marker=marker,
        color="C2" if name == "distance" else "C0",
        label=name,
    )
axes.set(xlabel="factor", xscale="log", ylabel="AUROC", ylim=(0, 1.05))
axes.set_xticks(factors, [f"{factor:g}" for factor in factors])
axes.minorticks_off()
axes.legend(loc="lower right")
plt.show()
for name, values in scores_far.items():
    print(f"{name:9}", ", ".join(f"{value:.2f}" for value in values))

# %% [markdown]
# **What you should see.** Just outside of the data the entropy is worse than chance: the network is surer there than at home.
# Further out, answers widen, and the entropy catches up. It does so *because* of the distance, which was first.
#
# ## Shift: the guarantee ends, and says so
#
# Nothing is unfamiliar at first, and the share of flagged points is the false-alarm rate.
# Then all points drift to the right. The guarantee does not cover that, which is why the alarm goes off.

# %% alt="As the points drift, the flagged share rises from the false-alarm rate to more than half, always above the error."
test, labels = moons(1000, seed=2)
drifts = np.linspace(0, 1.5, 7)
flagged, error = [], []
for drift in drifts:
    moved = test + [drift, 0.0]
    flagged.append(np.mean(clf.predict_uncertainty(moved).familiarity <= RATE))
    error.append(1 - clf.score(moved, labels))
fig, axes = plt.subplots(figsize=(6.4, 2.6))
axes.axhline(RATE, color="C7", lw=1, ls="--", label="false-alarm rate")
axes.plot(drifts, flagged, "^-", color="C2", label="share flagged")
axes.plot(drifts, error, "s-", color="C1", label="error")
axes.set(xlabel="drift", ylim=(0, 1.05))
axes.legend(loc="upper left")
plt.show()
drifted = clf.predict_uncertainty(test + [1.0, 0.0])
wrong = clf.predict(test + [1.0, 0.0]) != labels
print(
    f"at a drift of 1, {np.mean(drifted.familiarity[wrong] <= RATE):.0%} of the wrong answers are flagged"
)

# %% [markdown]
# **What you should see.** The alarm rises before the error does. It does not reach everybody:
# a point of one moon that drifts onto the other moon looks ordinary. One alarm about one point says little.
# The share of alarms over many points says that the source has changed.
#
# ## Groups: the alarm that goes off for everybody
#
# Now every person has five nearly equal rows. Rows are split at random, so most held-out rows have a sibling among the training rows.
# They look more familiar than anybody new ever will. `group` keeps the rows of a person on one side.

# %%
rng = np.random.default_rng(0)


def people(n):
    """Five rows for each of n persons."""
    persons = np.repeat(np.arange(n), 5)
    values = rng.normal(size=(n, 20))[persons] + 0.02 * rng.normal(size=(5 * n, 20))
    frame = pd.DataFrame(
        values, columns=[f"value {number}" for number in range(20)]
    )
    frame["ill"] = np.where(
        values[:, 0] + values[:, 1] * values[:, 2] > 0, "yes", "no"
    )
    return frame.assign(person=[f"person {number}" for number in persons])


known, new = people(200), people(200)
group_shares = {}
for group in (None, "person"):
    shares = ltnode.data.Shares(test=0.1, calibration=0.3)
    data = ltnode.data.from_table(
        known,
        "ill",
        group=group,
        ignore=() if group else ("person",),
        shares=shares,
    )
    model = ltnode.build("lt-node", data, seed=0)
    run = ltnode.fit(
        model, data, ltnode.train_preset("lt-node", data).replace(epochs=20)
    )
    familiarity = run.model.predict(
        data.prepare(data.schema.encode(new.drop(columns=["ill", "person"])).x)
    ).familiarity
    share = group_shares[group] = float((familiarity <= RATE).double().mean())
    print(
        f"group={group!r}: {share:.0%} of new persons' rows are flagged at a rate of {RATE:.0%}"
    )

# %% [markdown]
# **What you should see.** Without groups, far too many new persons are flagged. With them, the share is near the rate again.
# It still varies more than with independent rows, because there are fewer persons than rows to calibrate on.
#
# ## Temperature: repairs the test set, not the shift
#
# One network that is trained too long, on few noisy rows, without held-out ones and without weight decay, becomes overconfident.
# One temperature, chosen on new rows, divides its logits. With two classes it changes no ranking, so it finds no error.

# %%
X_noisy, y_noisy = moons(100, seed=3, flipped=0.2)
sure = ltnode.LTNodeClassifier(
    random_state=0,
    members=1,
    weight_decay=0.0,
    early_stopping=False,
    max_epochs=400,
).fit(X_noisy, y_noisy)


def log_probs(points):
    """Log-probabilities of the overconfident network."""
    return torch.tensor(sure.predict_log_proba(points))


held_out, held_out_labels = moons(500, seed=4, flipped=0.2)
temperature = fit_temperature(log_probs(held_out), torch.tensor(held_out_labels))
print(f"temperature {temperature:.2f}")
calibration = []
for name, drift in (("test points", 0.0), ("drifted points", 0.8)):
    points, truth = moons(1000, seed=5, flipped=0.2)
    before = log_probs(points + [drift, 0.0])
    after = ltnode.metrics.apply_temperature(before, temperature)
    errors = [ece(p.exp(), torch.tensor(truth)) for p in (before, after)]
    calibration.append(errors)
    scores = [log_likelihood(p.exp(), torch.tensor(truth)) for p in (before, after)]
    print(
        f"{name:14} calibration error {errors[0]:.2f} -> {errors[1]:.2f}, log-likelihood {scores[0]:.2f} -> {scores[1]:.2f}"
    )

# %% [markdown]
# **What you should see.** The temperature helps on points like those on which it was chosen.
# On drifted points it helps as well, but they stay worse calibrated than the test points were before.
#
# ## Where the familiarity is blind, too
#
# Three changes that leave no trace in what the network sees:
#
# - The labels change their meaning, and the inputs stay.
# - Strange points imitate ordinary ones: class 0 sends its mirror images, which lie exactly where class 1 lives.
# - A column was constant while training, and is left out of the network. Now it changes.

# %%
imitation = np.array([1.0, 0.5]) - test[labels == 0]


def with_site(points, site):
    """The points as a table with a column that names their site."""
    return pd.DataFrame({"x": points[:, 0], "y": points[:, 1], "site": site})


of_north = classifier().fit(with_site(X, "north"), y)
print("left out:", of_north.schema_.ignored)
cases = {
    "the labels are swapped": (clf, test, 1 - labels),
    "imitations of the other class": (clf, imitation, np.zeros(len(imitation))),
    "swapped labels at another site": (
        of_north,
        with_site(test, "south"),
        1 - labels,
    ),
}
print(f"{'':31} error  mean entropy  flagged")
for name, (estimator, rows, expected) in cases.items():
    seen = estimator.predict_uncertainty(rows)
    share = np.mean(seen.familiarity <= RATE)
    print(
        f"{name:31} {1 - estimator.score(rows, expected):5.2f} {seen.entropy.mean():13.2f} {share:8.1%}"
    )

# %% [markdown]
# **What you should see.** Nearly every answer is wrong, every answer is sure, and the alarm keeps silent.
# Only labels could have told.
#
# ## Intervals: coverage, and how it is lost
#
# Conformal intervals of a regression hold the chosen share of new targets, if these come from the same source.
# We change the source in three ways.


# %% alt="Share of the targets within their intervals: as promised on new rows, and lower if the noise, the inputs or the function change."
def table(n, seed, shift=0.0, noise=0.3, slope=1.0):
    """A regression on three columns."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 3)) + [shift, 0, 0]
    a, b, c = rows.T
    return rows, slope * np.sin(2 * a) + b * c + noise * rng.normal(size=n)


regressor = ltnode.LTNodeRegressor(
    random_state=0, calibration_fraction=0.2, noise="constant"
).fit(*table(1200, seed=0))
sources = {
    "new rows": {},
    "twice the noise": {"noise": 0.6},
    "inputs shifted": {"shift": 1.5},
    "another function": {"slope": -1.0},
}
covered, width, unfamiliar = [], [], []
for changes in sources.values():
    rows, targets = table(2000, seed=1, **changes)
    low, high = regressor.predict_interval(rows, alpha=0.1)
    covered.append(np.mean((low <= targets) & (targets <= high)))
    width.append(np.mean(high - low))
    unfamiliar.append(
        np.mean(regressor.predict_uncertainty(rows).familiarity <= RATE)
    )
fig, axes = plt.subplots(figsize=(6.4, 2.3))
axes.barh(list(sources), covered, color=["C0", "C1", "C1", "C1"], alpha=0.8)
axes.axvline(0.9, color=plt.rcParams["text.color"], lw=1, ls="--")
axes.invert_yaxis()
axes.set(xlabel="share of the targets within their 90 % interval", xlim=(0, 1))
plt.show()
for name, *values in zip(sources, covered, width, unfamiliar, strict=True):
    print(
        f"{name:17} covered {values[0]:.0%}, mean width {values[1]:.2f}, flagged {values[2]:.0%}"
    )

# %% tags=["check"]
assert (
    all(d > e for d, e in zip(scores_far["distance"], scores_far["entropy"]))
    and scores_far["entropy"][0] < 0.5
)
assert (
    flagged[0] < 0.1
    and all(f > e for f, e in zip(flagged, error))
    and group_shares[None] > 3 * group_shares["person"]
)
assert temperature > 1.5 and all(after < before for before, after in calibration)
assert calibration[1][1] > calibration[0][0]
assert all(
    1 - e.score(r, t) > 0.9
    and np.mean(e.predict_uncertainty(r).familiarity <= RATE) < 0.1
    for e, r, t in cases.values()
)
assert (
    covered[0] > 0.85
    and covered[1] < 0.7
    and covered[3] < 0.3
    and covered[2] > covered[1]
    and width[2] > 1.2 * width[0]
)

# %% [markdown]
# **What you should see.** New rows are covered as promised. More noise and another function cost coverage, and nothing is flagged:
# the inputs have not changed. Shifted inputs get wider intervals, lose less coverage, and are flagged more often.
#
# ## What to take away
#
# | change | entropy or width | familiarity | what helps |
# |---|---|---|---|
# | noisy labels | sees it | rightly silent | more data do not; a better label does |
# | far inputs | late | sees it | decline to answer |
# | drift of the inputs | partly | sees it | label some new rows, and train again |
# | grouped rows | – | false alarms | hold out whole groups |
# | overconfidence | wrong | silent | one temperature, or held-out rows |
# | labels or function change | blind | blind | labels |
# | a column that was constant | blind | blind | look at `schema_.ignored` |
#
# ## Try next
#
# - Use the `entropy` of `end_time="fixed"`, a plain neural ODE. Which experiment changes?
# - Raise the noise of the moons. At which drift does the alarm go off now?
# - [Prediction: how sure, and how familiar](../docs/predict.md) states the guarantee and what voids it.
