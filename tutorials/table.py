# %% [markdown]
# # A table, end to end
#
# **What is the rent of this flat, how sure is the answer, and has the model ever seen a flat like it?**
#
# You go from a CSV file to predictions, intervals and warnings, and then to a folder that can be served.
# The flats are invented, so you can compare every answer with the truth.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import ltnode

# %% [markdown]
# ## The file
#
# The rent depends on the size, the district, the year of construction and the season.
# Some years are missing, as in any real table.

# %%
PER_SQUARE_METRE = {
    "Old town": 24.0,
    "Harbour": 19.0,
    "Hill": 16.0,
    "Station": 13.0,
}


def rent_of(flats):
    """The rent of a flat, before noise."""
    base = 350 + flats["size"] * flats["district"].map(PER_SQUARE_METRE)
    new = 1 + 0.25 * (flats["built"].fillna(1965) > 2000)
    season = 1 + 0.05 * np.cos(
        2 * np.pi * (flats["listed"].dt.dayofyear - 230) / 365
    )
    return base * new * season


rng = np.random.default_rng(0)
n = 1200
flats = pd.DataFrame(
    {
        "size": rng.gamma(9.0, 8.0, n).clip(18, 180).round(),
        "district": rng.choice(list(PER_SQUARE_METRE), n, p=[0.2, 0.3, 0.3, 0.2]),
        "built": np.where(rng.random(n) < 0.1, np.nan, rng.integers(1900, 2024, n)),
        "balcony": rng.choice(["yes", "no"], n),
        "listed": pd.Timestamp("2022-01-01")
        + pd.to_timedelta(rng.integers(0, 1000, n), unit="D"),
    }
)
flats["rent"] = (rent_of(flats) + rng.normal(0, 90, n)).round()
flats.to_csv("flats.csv", index=False)
flats.head()

# %% [markdown]
# ## Training
#
# `from_table` reads the file and infers a schema: what each column is, and what the network gets of it.

# %%
data = ltnode.data.from_table("flats.csv", "rent")
print(data)
for name in data.schema.feature_names:
    print("  ", name)

# %% [markdown]
# **What you should see.** A district became one feature per name. A missing year has a feature of its own.
# A date became a trend and points on circles, so that December is next to January.
#
# The estimator does the same with a DataFrame, and follows scikit-learn's interface.
# It holds rows out by itself: some to choose when to stop, others that choose nothing and only calibrate.

# %%
table = pd.read_csv("flats.csv", parse_dates=["listed"])
table = table.sample(frac=1, random_state=0)
train, test = table[:900], table[900:]
regressor = ltnode.LTNodeRegressor(calibration_fraction=0.15, random_state=0)
regressor.fit(train.drop(columns="rent"), train["rent"])
chosen, calibrating = (
    len(regressor.validation_rows_),
    len(regressor.calibration_rows_),
)
print(
    f"{regressor.n_iter_} epochs; {chosen} rows to choose, {calibrating} rows to calibrate; noise: {regressor.noise_}"
)

# %% [markdown]
# ## How good is it?
#
# The noise of the rents is known here, because we invented it. No model can have a smaller error than that.

# %%
X_test, y_test = test.drop(columns="rent"), test["rent"].to_numpy()
mean, std = regressor.predict(X_test, return_std=True)
rmse = np.sqrt(np.mean((y_test - mean) ** 2))
print(f"RMSE {rmse:.0f}, noise 90, a constant answer {np.std(y_test):.0f}")

# %% alt="Predicted against true rents of the test flats, with one interval per flat; most intervals cross the diagonal."
low, high = regressor.predict_interval(X_test, alpha=0.1)
inside = (low <= y_test) & (y_test <= high)
fig, axes = plt.subplots(figsize=(6.4, 3.8))
axes.axline((1500, 1500), slope=1, color="C7", lw=1, ls="--")
first = np.arange(len(inside)) < 150  # not all, so that intervals can be told apart
for hit, colour, label in (
    (first & inside, "C0", "interval holds the rent"),
    (first & ~inside, "C1", "interval misses it"),
):
    axes.errorbar(
        y_test[hit],
        mean[hit],
        (mean - low)[hit],
        fmt="o",
        ms=3,
        lw=0.8,
        alpha=0.7,
        color=colour,
        label=label,
    )
axes.set(xlabel="true rent", ylabel="predicted rent")
axes.legend()
plt.show()

# %% [markdown]
# ## Intervals that hold what they promise
#
# `predict_interval` is conformal: the calibration rows decide its width.
# Over many tables, a new row then lies inside with the chosen probability, whatever the model is worth.
# In one table the share varies with the calibration rows, which are few.

# %%
for alpha in (0.5, 0.2, 0.1, 0.05):
    low, high = regressor.predict_interval(X_test, alpha=alpha)
    share = np.mean((low <= y_test) & (y_test <= high))
    print(
        f"asked for {1 - alpha:.0%}: {share:.0%} of the test flats, mean width {np.mean(high - low):.0f}"
    )

# %% [markdown]
# ## Is this flat like the training flats?
#
# An interval answers the question "how sure?", and it assumes that the row is like the training rows.
# The `familiarity` checks this assumption. It is a p-value: small means unlike the training rows.

# %%
strange = pd.DataFrame(
    {
        "size": [75, 600, 75, 75],
        "district": ["Hill", "Hill", "Moon", "Hill"],
        "built": [1980, 1980, 1980, 1320],
        "balcony": ["yes", "yes", "yes", "yes"],
        "listed": pd.to_datetime(["2023-05-01"] * 4),
    },
    index=["ordinary", "600 square metres", "on the moon", "built in 1320"],
)
answers = pd.DataFrame(index=strange.index)
answers["rent"], answers["std"] = regressor.predict(strange, return_std=True)
u = regressor.predict_uncertainty(strange)
answers["distance"], answers["familiarity"] = u.distance, u.familiarity
answers.round(2)

# %% alt="Distances of the test flats as a histogram near zero, and the three strange flats far to the right of it."
distance = regressor.predict_uncertainty(X_test).distance
fig, axes = plt.subplots(figsize=(6.4, 2.8))
axes.hist(distance, bins=30, color="C0", alpha=0.6, label="test flats")
top = axes.get_ylim()[1]
for height, (name, value) in zip(
    (0.94, 0.8, 0.6, 0.4), answers["distance"].items(), strict=True
):
    axes.plot(
        [value, value],
        [0, (height - 0.04) * top],
        color="C7" if name == "ordinary" else "C1",
    )
    axes.text(
        value,
        height * top,
        name,
        ha="left" if name == "ordinary" else "center",
        fontsize=8,
    )
axes.set(xlabel="distance from the training flats", ylabel="test flats")
plt.show()

# %% [markdown]
# **What you should see.** The test flats and the ordinary flat are close to zero. The strange ones are far away.
# No familiarity is smaller than one divided by the number of calibration rows plus one; the distance goes on.
# The `std` of the strange flats is larger, too: the answer widens where the model knows nothing.
#
# `explain_distance` says which column makes a row strange.
# It replaces each column by its mean, and reports by how much the distance falls.

# %%
falls = pd.DataFrame(
    regressor.explain_distance(strange),
    index=strange.index,
    columns=strange.columns,
)
falls.round(1)

# %% tags=["check"]
assert (answers["familiarity"][1:] <= 0.05).all() and answers["familiarity"].iloc[
    0
] > 0.05
assert (answers["std"][1:] > 1.5 * answers["std"].iloc[0]).all()
assert list(falls.idxmax(axis=1)[1:]) == ["size", "district", "built"]

# %% [markdown]
# ## What the model believes about size
#
# A curve shows the effect of one column. Its band is the standard deviation of the prediction.
# The grey histogram says where the training flats are.

# %% alt="Predicted rent against size for two districts, with bands that widen beyond the sizes of the training flats."
sizes = np.linspace(10, 400, 80)
fig, axes = plt.subplots(figsize=(6.4, 3.4))
for colour, district in (("C0", "Old town"), ("C2", "Station")):
    rows = pd.DataFrame(
        {"size": sizes, "district": district, "built": 1980.0, "balcony": "no"}
    )
    rows["listed"] = pd.Timestamp("2023-05-01")
    mean, std = regressor.predict(rows, return_std=True)
    axes.plot(sizes, mean, color=colour, label=district)
    axes.fill_between(
        sizes, mean - 2 * std, mean + 2 * std, color=colour, alpha=0.2, lw=0
    )
    axes.plot(sizes, rent_of(rows), color=colour, ls="--", lw=1)
axes.plot([], [], color="C7", ls="--", lw=1, label="truth")
axes.set(
    xlabel="size in square metres", ylabel="rent", xlim=(10, 400), ylim=(0, None)
)
counts = axes.twinx()
counts.hist(train["size"], bins=30, color="C7", alpha=0.35)
counts.set(ylim=(0, 500), yticks=[])
counts.spines[:].set_visible(False)
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# **What you should see.** Lines and truth agree where there are flats.
# Beyond the largest training flats the lines bend away from the truth, and the bands widen.
# A wide band is a warning. It is no guarantee: far out, the truth may leave even a wide band.
#
# ## Save it, and use it without Python
#
# A saved estimator is a folder of JSON and safetensors. It answers with the same bits, and loading it runs no code.

# %%
folder = ltnode.save(regressor, "rents")
loaded = ltnode.load(folder)
assert (loaded.predict(X_test) == regressor.predict(X_test)).all()
print(sorted(path.name for path in folder.iterdir()))

# %% [markdown]
# The command line does all of this from the file, and serves the model with a form for the columns:
#
# ```bash
# ltnode train --data flats.csv --target rent --out runs/flats
# ltnode evaluate runs/flats
# ltnode predict runs/flats new-flats.csv --explain flagged
# ltnode serve runs/flats --open
# ltnode export runs/flats --out flats.onnx
# ```
#
# ## Try next
#
# - Give the noise a standard deviation that grows with the size. Does `regressor.noise_` become `"varying"`?
# - Keep only flats of one district for training. What happens to the familiarity of the others?
# - Your own file: [your own tables](../docs/own-tables.md) says what is read, and [estimators](../docs/estimators.md)
#   how it is trained.
# - When are intervals and familiarity wrong? [What the uncertainty means](uncertainty.py) breaks them on purpose.
