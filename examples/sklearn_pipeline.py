"""Use the scikit-learn estimators on nonlinear problems: cross-validation, pipelines and uncertainty.

python examples/sklearn_pipeline.py
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import make_friedman1, make_moons
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import ltnode


def classification() -> None:
    X, y = make_moons(300, noise=0.3, random_state=0)
    X, X_test, y, y_test = train_test_split(X, np.array(["upper", "lower"])[y], random_state=0)
    classifier = ltnode.LTNodeClassifier(max_epochs=30, random_state=0)
    print(f"accuracy, 2-fold: {cross_val_score(classifier, X, y, cv=2).mean():.3f}")

    classifier.fit(X, y)
    entropy = classifier.predict_uncertainty(X_test).entropy
    sure = entropy <= np.median(entropy)
    print(
        f"accuracy on the half of the test set with the lowest entropy: {classifier.score(X_test[sure], y_test[sure]):.3f}, ",
        end="",
    )
    print(f"on the other half: {classifier.score(X_test[~sure], y_test[~sure]):.3f}")


def regression() -> None:
    X, y = make_friedman1(400, n_features=5, noise=1.0, random_state=0)
    X, X_test, y, y_test = train_test_split(X, y, random_state=0)
    # Every step of a pipeline is fitted on the training part only; the regressor standardises inputs and targets itself.
    pipeline = make_pipeline(FunctionTransformer(np.sqrt), ltnode.LTNodeRegressor(max_epochs=40, random_state=0)).fit(X, y)
    mean, std = pipeline.predict(X_test, return_std=True)
    covered = np.abs(y_test - mean) < 1.645 * std
    print(f"RMSE {np.sqrt(np.mean((y_test - mean) ** 2)):.2f} (noise 1.00), 90 % intervals cover {covered.mean():.0%}")
    u = pipeline[-1].predict_uncertainty(np.sqrt(X_test))
    print(f"median standard deviation {np.median(u.std):.2f}: noise {np.median(u.noise_std):.2f}, ", end="")
    print(f"model {np.median(u.model_std):.2f}")


if __name__ == "__main__":
    classification()
    regression()
