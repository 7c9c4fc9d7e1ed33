"""Classify your own arrays, and see where the model is uncertain: between the classes and far from the data.

Aleatoric uncertainty is ambiguity that the members agree on; epistemic uncertainty is disagreement between members that all fit
the data. Members may also agree on a confident prediction far from all data (try noise=0.15): a large spread over end-times is a
warning, but a small spread is no guarantee.

    python examples/own_arrays.py
"""

from __future__ import annotations

import numpy as np

import ltnode
from ltnode.data import Dataset


def two_moons(n: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two interleaving half circles: inputs (n, 2) and labels (n,)."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, n)
    angle = np.pi * rng.random(n)
    upper = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    lower = np.stack([1 - np.cos(angle), 0.5 - np.sin(angle)], axis=1)
    return np.where(label[:, None] == 0, upper, lower) + noise * rng.normal(size=(n, 2)), label


def main() -> None:
    data = Dataset.from_arrays(*two_moons(400, noise=0.3, seed=0))
    print(data)
    model = ltnode.build("lt-node", data, seed=0)
    config = ltnode.train_preset("lt-node", data).replace(epochs=200)
    run = ltnode.fit(model, data, config)

    test = model.predict(data.prepare(data.test.x))
    print(f"test error {ltnode.metrics.error(test.probs, data.test.y):.3f}, ", end="")
    print(f"log-likelihood {ltnode.metrics.log_likelihood(test.probs, data.test.y):.3f}")
    print("learnt end-time:", {name: round(value, 2) for name, value in model.describe().items()})
    print(f"{run.results['steps']} training steps; one solve per prediction: {test.stats}\n")

    places = {"on the upper moon": (0.0, 1.0), "between the moons": (0.5, 0.25), "far away": (6.0, 6.0)}
    p = model.predict(data.prepare(np.array(list(places.values()))))
    print(f"{'':20}{'p(class 1)':>12}{'entropy':>10}{'aleatoric':>11}{'epistemic':>11}   nats")
    for row, place in enumerate(places):
        values = (p.probs[row, 1], p.entropy[row], p.aleatoric[row], p.epistemic[row])
        print(f"{place:20}{values[0]:12.3f}{values[1]:10.3f}{values[2]:11.3f}{values[3]:11.3f}")


if __name__ == "__main__":
    main()
