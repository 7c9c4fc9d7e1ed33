# %% [markdown]
# # The effect of one column
#
# A model of 442 diabetes patients, asked about one patient whose body-mass index changes from very low to impossible.
# The band is the standard deviation of the prediction, and the marks below are the patients it was trained on.

# %% alt="Predicted progression rises with the body-mass index; the band is narrow where patients are, and wide beyond."
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import ltnode

table = load_diabetes(as_frame=True, scaled=False)
regressor = ltnode.LTNodeRegressor(random_state=0, noise="constant").fit(
    table.data, table.target
)
patient = table.data.median().to_frame().T
bmi = np.linspace(10, 75, 90)
rows = patient.loc[patient.index.repeat(len(bmi))].assign(bmi=bmi)
u = regressor.predict_uncertainty(rows)
mean = regressor.predict(rows)

fig, axes = plt.subplots(figsize=(6.4, 3.6))
for width, opacity in ((2, 0.15), (1, 0.25)):
    axes.fill_between(
        bmi,
        mean - width * u.std,
        mean + width * u.std,
        color="C0",
        alpha=opacity,
        lw=0,
    )
axes.plot(bmi, mean, color="C0", label="prediction, ±1 and ±2 std")
flagged = u.familiarity <= 0.05
axes.plot(
    bmi,
    np.where(flagged, mean, np.nan),
    color="C1",
    lw=3,
    label="flagged as unfamiliar",
)
axes.plot(
    table.data["bmi"],
    np.full(len(table.data), -60),
    "|",
    color="C7",
    ms=7,
    alpha=0.6,
    label="training patients",
)
axes.set(
    xlabel="body-mass index", ylabel="progression of the disease", xlim=(10, 75)
)
axes.legend(loc="upper left")
plt.show()

# %% [markdown]
# **Try next.** `ltnode serve` shows this curve for every column of [your own table](../../docs/own-tables.md).
