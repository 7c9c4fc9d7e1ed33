"""How often rows from the source of the training rows are called unfamiliar: hundreds of small trainings, start to end.

usage: python benchmarks/guarantee.py [--fits 24] [--json FILE]
       python benchmarks/guarantee.py --render        # only write the numbers of the record into docs/predict.md

Every fit draws a new table from a new source, trains an estimator with its default settings but few epochs (one case:
`ltnode.fit` with the default preset), which holds out its own calibration rows, and asks for the familiarity of new rows from the
same source.
With n calibration rows and distances without ties, a new row has ``familiarity <= alpha`` with a probability of exactly
``floor((n + 1) alpha) / (n + 1)``, whatever the data, the labels and the network are. The number of flagged rows of one fit is
beta-binomial, which gives the standard error of the mean over fits; three of them are allowed. Four contrasts show where the
documentation says that there is no guarantee. It takes 4 minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from numpy.typing import NDArray

import ltnode
from ltnode.data import Dataset
from ltnode.models.familiar_model import FamiliarModel
from ltnode.report.table import markdown_table
from ltnode.trained import TrainedModel
from ltnode.training import train_preset
from ltnode.training.provenance import device_name, source_state

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "results" / "guarantee.json"
PAGE = ROOT / "docs" / "predict.md"
BEGIN, END = "<!-- begin: benchmarks/guarantee.py -->", "<!-- end -->"
RATES = (0.05, 0.1, 0.2)
NEW_ROWS = 500
EPOCHS = 8
SHIFT = 2.0
"""Shift of the contrast, in standard deviations of each column."""
GROUP_SIZE = 5
ALLOWED = 3.0
"""Standard errors by which the mean over fits may differ from its expected value."""

Array = NDArray[Any]
Draw = Callable[[np.random.Generator, int], tuple[Array, Array]]


# -- sources of rows ------------------------------------------------------------------------------------------------------


def blobs(columns: int, frequencies: Sequence[float], noisy: float = 0.0) -> Draw:
    """Correlated Gaussian columns around a mean per class; a share ``noisy`` of the labels is drawn at random from the others."""

    def draw(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
        classes = len(frequencies)
        means, mixing = 1.5 * rng.normal(size=(classes, columns)), rng.normal(size=(columns, columns)) / math.sqrt(columns)
        y = rng.choice(classes, size=rows, p=frequencies)
        x = means[y] + rng.normal(size=(rows, columns)) @ mixing
        wrong = rng.random(rows) < noisy
        return x, np.where(wrong, (y + rng.integers(1, classes, size=rows)) % classes, y)

    return draw


def heavy_tails(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Three columns with the t distribution of 2 degrees of freedom (infinite variance), and three log-normal ones."""
    x = np.column_stack([rng.standard_t(2, size=(rows, 3)), rng.lognormal(sigma=1.5, size=(rows, 3))])
    return x, (x[:, 0] + np.log(x[:, 3]) + rng.normal(size=rows) > 0).astype(int)


def integers(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Four columns with the values 0, 1 and 2: rows repeat, so that distances tie."""
    x = rng.integers(3, size=(rows, 4)).astype(float)
    return x, (x.sum(axis=1) + rng.normal(size=rows) > 4).astype(int)


def waves(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """A nonlinear regression with five columns."""
    x = rng.normal(size=(rows, 5))
    weights = rng.normal(size=5)
    return x, np.sin(x @ weights) + 0.3 * x[:, 0] * x[:, 1] + 0.2 * rng.normal(size=rows)


def groups(rng: np.random.Generator, rows: int) -> tuple[Array, Array]:
    """Groups of five rows with nearly the same 20 columns and the same label, one group after the other."""
    x, y = blobs(20, (0.5, 0.5))(rng, rows // GROUP_SIZE)
    x, y = np.repeat(x, GROUP_SIZE, axis=0), np.repeat(y, GROUP_SIZE)
    return x + 0.05 * rng.normal(size=x.shape), y


class Case(NamedTuple):
    """Tables of one kind.

    Attributes:
        rows: Rows of the table that is fitted.
        draw: Draws rows of one new source.
        fit: Fits a table with a seed.
        ties: Whether distances tie, so that the expected value is an upper limit only.
        exchangeable: Whether the guarantee applies.
    """

    rows: int
    draw: Draw
    fit: Callable[[Array, Array, int], Fitted]
    ties: bool = False
    exchangeable: bool = True


# -- what users call ------------------------------------------------------------------------------------------------------


class Fitted(NamedTuple):
    """A trained model as its user sees it."""

    model: FamiliarModel
    inputs: Callable[[Array], torch.Tensor]
    familiarity: Callable[[Array], Array]
    fitted_rows: Array


def estimator(kind: type[ltnode.LTNodeClassifier | ltnode.LTNodeRegressor]) -> Callable[[Array, Array, int], Fitted]:
    """Fit an estimator with default settings but few epochs."""

    def fit(x: Array, y: Array, seed: int) -> Fitted:
        fitted = kind(max_epochs=EPOCHS, random_state=seed).fit(x, y)
        held_out = np.concatenate([fitted.validation_rows_, fitted.calibration_rows_])
        return Fitted(
            fitted.model_,
            lambda rows: torch.tensor(fitted.scaler_.transform(rows), dtype=torch.float64),
            lambda rows: fitted.predict_uncertainty(rows).familiarity,
            np.setdiff1d(np.arange(len(x)), held_out),
        )

    return fit


def engine(x: Array, y: Array, seed: int) -> Fitted:
    """Train with `ltnode.fit` and the default preset but few epochs."""
    data = Dataset.from_arrays(x, y, seed=seed)
    config = train_preset("lt-node", data).replace(epochs=EPOCHS, seed=seed, device="cpu")
    trained = TrainedModel.of(ltnode.fit(ltnode.build("lt-node", data, seed=seed), data, config), data)
    assert isinstance(trained.model, FamiliarModel)

    def inputs(rows: Array) -> torch.Tensor:
        return trained.prepare(torch.tensor(rows, dtype=torch.float32))

    def familiarity(rows: Array) -> Array:
        return np.array([row.familiarity for row in trained.rows(torch.tensor(rows, dtype=torch.float32))])

    return Fitted(trained.model, inputs, familiarity, np.arange(0))


CLASSIFIER, REGRESSOR = estimator(ltnode.LTNodeClassifier), estimator(ltnode.LTNodeRegressor)
CASES = {
    "two classes, 4 columns": Case(130, blobs(4, (0.5, 0.5)), CLASSIFIER),
    "three classes, 12 columns, 20 % label noise": Case(130, blobs(12, (0.4, 0.3, 0.3), noisy=0.2), CLASSIFIER),
    "two classes, 4 columns, 20 % label noise": Case(130, blobs(4, (0.5, 0.5), noisy=0.2), CLASSIFIER),
    "three classes of 85, 10 and 5 %": Case(200, blobs(5, (0.85, 0.1, 0.05)), CLASSIFIER),
    "heavy-tailed columns": Case(130, heavy_tails, CLASSIFIER),
    "regression": Case(130, waves, REGRESSOR),
    "500 rows": Case(500, blobs(4, (0.5, 0.5)), CLASSIFIER),
    "integer columns (ties)": Case(130, integers, CLASSIFIER, ties=True),
    "`ltnode.fit`, 20 % label noise": Case(200, blobs(4, (0.5, 0.5), noisy=0.2), engine),
    "grouped rows": Case(150, groups, CLASSIFIER, exchangeable=False),
}
SHIFTED, SEEN = "shifted rows", "ranked among fitted rows"
RARE, NEW_GROUPS = "rows of the rarest class", "ranked among new groups"


# -- simulation -----------------------------------------------------------------------------------------------------------


def simulate(name: str, seed: int) -> dict[str, Any]:
    """Fit one table, and count the new rows that are flagged at each rate, also under the contrasts of this case."""
    case = CASES[name]
    rng = np.random.default_rng([seed, list(CASES).index(name)])
    x, y = case.draw(rng, case.rows + 2 * NEW_ROWS)
    table, new, more = x[: case.rows], x[case.rows : case.rows + NEW_ROWS], x[case.rows + NEW_ROWS :]
    fitted = case.fit(table, y[: case.rows], seed)
    n = fitted.model.n_calibration
    found = {"n_calibration": n, "new_rows": len(new), "flagged": flagged(fitted.familiarity(new)), "contrasts": {}}
    if name == "two classes, 4 columns":
        found["contrasts"][SHIFTED] = flagged(fitted.familiarity(new + SHIFT * table.std(axis=0)))
    if name == "three classes, 12 columns, 20 % label noise":
        fitted.model.calibrate_familiarity(fitted.inputs(table[rng.choice(fitted.fitted_rows, n, replace=False)]))
        found["contrasts"][SEEN] = flagged(fitted.familiarity(new))
    if name == "three classes of 85, 10 and 5 %":
        rare = new[y[case.rows : case.rows + NEW_ROWS] == 2]
        found["contrasts"][RARE] = {**flagged(fitted.familiarity(rare)), "rows": len(rare)}
    if name == "grouped rows":
        fitted.model.calibrate_familiarity(fitted.inputs(more[::GROUP_SIZE][:n]))
        found["contrasts"][NEW_GROUPS] = flagged(fitted.familiarity(new))
    return found


def flagged(familiarity: Array) -> dict[str, int]:
    """Number of rows that are called unfamiliar at each rate."""
    return {str(rate): int((familiarity <= rate).sum()) for rate in RATES}


def expected_rate(n: int, rate: float) -> float:
    """Probability of a flag with n calibration rows and distances without ties."""
    return math.floor((n + 1) * rate + 1e-9) / (n + 1)


def standard_error(n: int, rate: float, new_rows: int, fits: int) -> float:
    """Standard error of the mean share of flagged rows over independent fits, from the beta-binomial distribution."""
    p = expected_rate(n, rate)
    return math.sqrt(p * (1 - p) * (n + 1 + new_rows) / (new_rows * (n + 2)) / fits)


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean share of flagged rows of every case and rate, beside its expected value; only exchangeable cases are judged."""
    found = []
    for name, case in CASES.items():
        fits = [row for row in rows if row["case"] == name]
        for rate in RATES if fits else ():
            n, new_rows = fits[0]["n_calibration"], fits[0]["new_rows"]
            shares = [row["flagged"][str(rate)] / new_rows for row in fits]
            line = {"case": name, "rate": rate, "fits": len(fits), "n_calibration": n, "expected": expected_rate(n, rate)}
            error = standard_error(n, rate, new_rows, len(fits))
            line |= {"mean": float(np.mean(shares)), "sd_over_fits": float(np.std(shares, ddof=1)), "standard_error": error}
            if case.exchangeable:
                line["z"] = (line["mean"] - line["expected"]) / error
                line["holds"] = line["z"] <= ALLOWED and (case.ties or line["z"] >= -ALLOWED)
            found.append(line)
    return found


def pooled(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean over all fits of the exchangeable cases without ties, for each rate."""
    found = []
    for rate in RATES:
        of_rate = [s for s in lines if s["rate"] == rate and CASES[s["case"]].exchangeable and not CASES[s["case"]].ties]
        weights = np.array([s["fits"] for s in of_rate])
        mean, expected = (float(np.average([s[key] for s in of_rate], weights=weights)) for key in ("mean", "expected"))
        error = math.sqrt(sum((s["fits"] * s["standard_error"]) ** 2 for s in of_rate)) / int(weights.sum())
        z = (mean - expected) / error
        line = {"rate": rate, "fits": int(weights.sum()), "mean": mean, "expected": expected, "standard_error": error}
        found.append({**line, "z": z, "holds": abs(z) <= ALLOWED})
    return found


def contrasts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shares of flagged rows where there is no guarantee, over all fits, and after calibration on new groups."""
    found: list[dict[str, Any]] = []
    for name in (SHIFTED, SEEN, RARE, NEW_GROUPS):
        counts = [(row["contrasts"][name], row["new_rows"]) for row in rows if name in row["contrasts"]]
        total = sum(count.get("rows", new_rows) for count, new_rows in counts)
        shares = {str(rate): sum(count[str(rate)] for count, _ in counts) / total for rate in RATES if total}
        found.append({"contrast": name, "fits": len(counts), "rows": total, "share": shares})
    return found


# -- the page -------------------------------------------------------------------------------------------------------------


def text(record: dict[str, Any]) -> str:
    """The paragraph and the table of the page."""
    lines, overall = record["summary"], {line["rate"]: line for line in record["pooled"]}
    shares = {line["contrast"]: line["share"]["0.05"] for line in record["contrasts"]}
    grouped = next(line["mean"] for line in lines if line["case"] == "grouped rows" and line["rate"] == 0.05)
    cells = []
    for case in dict.fromkeys(line["case"] for line in lines if "z" in line):
        of_case = [line for line in lines if line["case"] == case]
        columns = [f"{line['mean']:.3f} ({line['expected']:.3f} ± {line['standard_error']:.3f})" for line in of_case]
        cells.append([case, str(of_case[0]["fits"]), str(of_case[0]["n_calibration"]), *columns])
    missed = [line for line in (*lines, *record["pooled"]) if not line.get("holds", True)]
    verdict = "none differs" if not missed else f"{len(missed)} differ"
    means = ", ".join(f"{overall[rate]['mean']:.3f} at {rate:g} (expected {overall[rate]['expected']:.3f})" for rate in RATES)
    return (
        f"We simulated it with {len(record['rows'])} trainings of {EPOCHS} epochs on generated tables, each with {NEW_ROWS} new "
        f"rows from the source of its table. The share of false alarms over the {overall[RATES[0]]['fits']} trainings without "
        f"ties or groups is {means}. The expected share is exactly floor((n + 1) α) / (n + 1) if no distances tie, and less if "
        f"they do; of these means and those in the table, {verdict} from it by more than three standard errors, "
        f"which include the random choice of the "
        f"calibration rows. In a single training the share varies with this choice: with 19 rows and "
        f"α = 0.05 its standard deviation is {standard_error(19, 0.05, NEW_ROWS, 1):.3f}.\n\n"
        + markdown_table(["table", "trainings", "n", *(f"flagged at {rate:g} (expected)" for rate in RATES)], cells)
        + f"\nWhere the guarantee does not apply, more rows were flagged at 0.05: {shares[SHIFTED]:.3f} of rows shifted by "
        f"{SHIFT:g} standard deviations; {grouped:.3f} of rows of new groups, where groups of {GROUP_SIZE} nearly equal rows "
        f"were split at random ({shares[NEW_GROUPS]:.3f} after calibration on one row of each of 19 new groups); "
        f"{shares[SEEN]:.3f} where distances are ranked among rows that were fitted; {shares[RARE]:.3f} of the rows of a class "
        f"with a share of 5 %.\n"
    )


def render(record: dict[str, Any], page: str) -> str:
    """The page with the numbers of the record between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text(record)}{END}{after}"


def main() -> None:
    """Simulate all cases, print and record them, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=24, help="trainings of every case")
    parser.add_argument("--json", type=Path, default=RECORD, help="where the record goes")
    parser.add_argument("--render", action="store_true", help="run nothing; write the numbers of the record into the page")
    options = parser.parse_args()
    if not options.render:
        torch.set_num_threads(1)
        start, rows = time.process_time(), []
        for name in CASES:
            rows += [{"case": name, "seed": seed, **simulate(name, seed)} for seed in range(options.fits)]
            lines = [line for line in summary(rows) if line["case"] == name]
            print(name, *(f"{line['mean']:.3f} ({line['expected']:.3f})" for line in lines), sep=", ", flush=True)
        lines = summary(rows)
        record = {
            "provenance": {
                "ltnode": ltnode.__version__,
                **source_state(),
                "scikit_learn": sklearn.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                "device": device_name(torch.device("cpu")),
                "cpu_seconds": round(time.process_time() - start, 1),
            },
            "summary": lines,
            "pooled": pooled(lines),
            "contrasts": contrasts(rows),
            "rows": rows,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(text(record))
    if options.json == RECORD:
        record = json.loads(RECORD.read_text(encoding="utf-8"))
        PAGE.write_text(render(record, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
