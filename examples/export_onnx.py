"""Train a small classifier, export it to ONNX, and run the file with onnxruntime alone.

The file returns averaged probabilities, aleatoric and epistemic uncertainty, and ``error_ratio``, which is 1 or more if the fixed
steps are too coarse for the tolerance of the model. Requires the extra ``onnx``.

    python examples/export_onnx.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import ltnode
from ltnode.data import Dataset


def rings(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A disc inside a ring: inputs (n, 2) and labels (n,)."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, n)
    radius = np.where(label == 0, rng.uniform(0, 1, n), rng.uniform(1.5, 2.5, n))
    angle = rng.uniform(0, 2 * np.pi, n)
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1), label


def main() -> None:
    data = Dataset.from_arrays(*rings(400, seed=0))
    model = ltnode.build("alt-node", data, seed=0)
    ltnode.fit(model, data, ltnode.train_preset("alt-node", data).replace(epochs=60))

    with tempfile.TemporaryDirectory() as folder:
        exported = ltnode.export_model(
            model, Path(folder) / "rings.onnx", samples=10, normalise=data.normalise, class_names=("disc", "ring")
        )
        agreement = exported.agreement
        print(
            f"{exported.size / 1e3:.0f} kB, differs from the library by {agreement.difference:.1e} on {agreement.inputs} inputs\n"
        )
        session = onnxruntime.InferenceSession(exported.path)

    points = np.array([[0.0, 0.0], [1.25, 0.0], [2.0, 0.0], [9.0, 9.0]], dtype=np.float32)
    names = [output.name for output in session.get_outputs()]
    out = dict(zip(names, session.run(None, {"x": points}), strict=True))
    print(f"{'x':>14}{'p(ring)':>10}{'aleatoric':>11}{'epistemic':>11}{'error ratio':>13}   median T")
    for row, point in enumerate(points):
        values = (out["probs"][row, 1], out["aleatoric"][row], out["epistemic"][row], out["error_ratio"][row])
        print(f"{point!s:>14}{values[0]:10.3f}{values[1]:11.3f}{values[2]:11.3f}{values[3]:13.3f}", end="")
        print(f"   {np.median(out['times'][:, row]):.2f}")


if __name__ == "__main__":
    main()
