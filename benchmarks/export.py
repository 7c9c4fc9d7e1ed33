"""Export every model of the zoo and compare the files with the library on test images: size, differences, flagged inputs.

usage: python benchmarks/export.py --data FOLDER [--models zoo/lt-node-cifar10 ...] [--images 100] [--json FILE]

ONNX on the stored grid for all of them; `lt-node-cifar10` also with adaptive steps and as a torch program. Prints the table of
docs/export.md; the record is written after every export. An existing record is continued: exports of the same weights are kept.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

import ltnode
from ltnode.export import export_model
from ltnode.trained import TrainedModel
from ltnode.training.provenance import source_state

ZOO = Path(__file__).parents[1] / "zoo"
Way = tuple[Literal["onnx", "torch"], Literal["stored", "adaptive"]]
STORED: Way = ("onnx", "stored")
TOLERANCE = 1e-4
"""Ten times the default of `export_model`, which would refuse a file: here its difference is wanted."""
OTHER_WAYS: tuple[Way, ...] = (("onnx", "adaptive"), ("torch", "stored"))


def exported(trained: TrainedModel, images: torch.Tensor, way: Way) -> dict[str, Any]:
    """One row: the file's size and agreement with the library, and the processor time that it took."""
    format, grid = way
    began = time.process_time()
    options = {"shape": trained.shape, "grid": grid, "normalise": trained.normalise, "inputs": images, "tolerance": TOLERANCE}
    with tempfile.TemporaryDirectory() as folder:
        done = export_model(trained.model, Path(folder) / "model", format, **options)
    agreement = done.agreement
    return {
        "model": trained.name,
        "weights_sha256": trained.weights_digest(),
        "format": format,
        "grid": grid,
        "samples": int(done.metadata["samples"]),
        "inputs": agreement.inputs,
        "bytes": done.size,
        "difference": agreement.difference,
        "flagged": agreement.flagged,
        "from_predict": agreement.from_predict,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def _weights(folder: Path) -> str | None:
    """Digest of the weights of a model of the zoo; None if it is not there."""
    return TrainedModel.open(folder).weights_digest() if folder.is_dir() else None


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table of docs/export.md."""
    titles = ("zoo model", "file", "size", "difference", "`error_ratio >= 1`", "largest difference from `predict`")
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    for row in rows:
        file = "ONNX" if row["format"] == "onnx" else "torch"
        cells = [f"`{row['model']}`", f"{file}, {row['grid']} steps", f"{row['bytes'] / 1e6:.2f} MB", f"{row['difference']:.1e}"]
        cells += [f"{row['flagged']:.0%}".replace("%", " %"), f"{row['from_predict']:.1e}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the image sets; by default LTNODE_DATA")
    parser.add_argument("--models", type=Path, nargs="+", help="run folders; by default the whole zoo")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    models = options.models or sorted(path.parent for path in ZOO.glob("*/model.safetensors"))
    record: dict[str, Any] = {"machine": platform.machine(), "torch": torch.__version__, **source_state(), "rows": []}
    done = json.loads(options.json.read_text())["rows"] if options.json and options.json.exists() else []
    record["rows"] = [row for row in done if row.get("weights_sha256") == _weights(ZOO / row["model"])]
    finished = {(row["model"], row["format"], row["grid"]) for row in record["rows"]}
    for folder in models:
        trained = TrainedModel.open(folder)
        assert trained.data is not None
        images = ltnode.data.load(trained.data, options.data).test.x[: options.images].float() / 255
        for way in (STORED, *(OTHER_WAYS if trained.name == "lt-node-cifar10" else ())):
            if (trained.name, *way) in finished:
                continue
            record["rows"].append(exported(trained, images, way))
            print(record["rows"][-1], flush=True)
            record["rows"].sort(key=lambda row: row["model"])
            if options.json:
                options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(markdown(record["rows"]))


if __name__ == "__main__":
    main()
