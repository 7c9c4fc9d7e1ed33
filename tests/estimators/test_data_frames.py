"""DataFrames with categories, booleans, dates and missing cells."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import cross_val_score
from sklearn.utils.validation import NotFittedError

import ltnode
from ltnode.errors import InputError

QUICK = {"max_epochs": 2, "width": 4, "random_state": 0}


def frame(n=160, seed=0):
    """Every kind of column; the target depends on the number, the category and whether the second number is missing."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "area": rng.normal(80, 20, size=n),
            "city": rng.choice(["Bonn", "Köln", "Ulm"], size=n),
            "balcony": pd.array(rng.choice([True, False, None], size=n), dtype="boolean"),
            "sold": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 700, size=n), unit="D"),
            "year": np.where(rng.random(n) < 0.3, np.nan, rng.integers(1950, 2020, size=n)),
            "zone": pd.Categorical(rng.integers(1, 4, size=n)),
            "country": "DE",
        }
    )
    y = X["area"] / 20 + 3 * (X["city"] == "Ulm") + 2 * X["year"].isna() + 0.1 * rng.normal(size=n)
    return X, y.rename("price")


@pytest.fixture(scope="module")
def fitted():
    return ltnode.LTNodeRegressor(noise="constant", max_epochs=15, width=16, random_state=0).fit(*frame(240))


def test_columns_of_every_kind_are_encoded_and_learnt_from(fitted):
    """R^2 on new rows is above 0.8; without category and missing cells, the best possible is 0.3."""
    X, y = frame(400, 1)
    assert fitted.score(X, y) > 0.8
    kinds = {column.name: column.kind for column in fitted.schema_.columns}
    assert kinds == {
        "area": "number",
        "city": "category",
        "balcony": "boolean",
        "sold": "date",
        "year": "number",
        "zone": "category",
    }
    assert fitted.schema_.ignored == (("country", "constant"),) and fitted.schema_.target.name == "price"
    assert list(fitted.feature_names_in_) == list(X) and fitted.n_features_in_ == 7


def test_rows_are_independent_and_unknown_cells_have_an_answer(fitted):
    """A row alone agrees with the batch to 1e-9; unseen categories and missing cells give finite, more distant predictions."""
    X, _ = frame(20, 2)
    np.testing.assert_allclose(fitted.predict(X.iloc[[7]]), fitted.predict(X)[[7]], rtol=1e-9)
    strange = X.astype({"city": object}).assign(city="Rom", area=np.nan)
    assert np.isfinite(fitted.predict(strange)).all()
    assert fitted.score_samples(strange).mean() < fitted.score_samples(X).mean()
    low, high = fitted.predict_interval(X)
    assert (low < high).all()


def test_the_distance_is_explained_by_columns_of_the_frame(fitted):
    """An absurd area is what makes a row unfamiliar; the column that is not used contributes nothing."""
    X, _ = frame(3, 3)
    explained = fitted.explain_distance(X.assign(area=2000.0))
    assert explained.shape == (3, 7)
    assert (explained.argmax(axis=1) == list(X).index("area")).all()
    assert (explained[:, list(X).index("country")] == 0).all()


@pytest.mark.no_typecheck
def test_other_columns_are_refused_with_a_clear_answer(fitted):
    X, y = frame(20, 2)
    with pytest.raises(InputError, match="X must be a DataFrame with the columns that fit was given, not ndarray"):
        fitted.predict(X.to_numpy())
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(X.drop(columns="city"))
    with pytest.raises(InputError, match="column 'area' must hold numbers, but row 1 has 'big'"):
        fitted.predict(X.astype({"area": object}).assign(area="big"))
    with pytest.raises(InputError, match="no column of X is of use"):
        ltnode.LTNodeRegressor(**QUICK).fit(X[["country"]], y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        ltnode.LTNodeRegressor(**QUICK).fit(X, y[:-1])
    with pytest.raises(NotFittedError):
        ltnode.LTNodeRegressor(**QUICK).predict(X)


def test_calibration_rows_have_no_influence_on_the_encoding():
    """Categories and values that only calibration rows have are unknown to the schema and to the standardisation."""
    X, y = frame(120)
    reg = ltnode.LTNodeRegressor(noise="constant", **QUICK)
    rows = reg.fit(X, y).calibration_rows_
    changed = X.copy()
    changed.loc[rows, "city"] = "Rom"
    changed.loc[rows, "area"] = 1e6
    again = ltnode.LTNodeRegressor(noise="constant", **QUICK).fit(changed, y)
    np.testing.assert_array_equal(again.predict(X), reg.predict(X))
    assert again.schema_ == reg.schema_


def test_a_frame_of_numbers_is_a_matrix_and_classifiers_take_frames():
    """Numbers alone give the same bits as their matrix; a classifier works in cross-validation."""
    X, y = frame(120)
    numbers = X[["area"]].assign(other=np.arange(120.0) ** 0.5)
    first, second = (ltnode.LTNodeRegressor(noise="constant", **QUICK).fit(rows, y) for rows in (numbers, numbers.to_numpy()))
    assert first.schema_ is None
    np.testing.assert_array_equal(first.predict(numbers), second.predict(numbers.to_numpy()))
    labels = X["city"].where(X["city"] != "Bonn", "Ulm")
    assert (cross_val_score(ltnode.LTNodeClassifier(max_epochs=15, width=8, random_state=0), X, labels, cv=2) > 0.8).all()
