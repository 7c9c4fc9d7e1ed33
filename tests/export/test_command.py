"""``ltnode export``: from a run folder to a verified file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small_exports import VECTORS, small_model
from typer.testing import CliRunner

import ltnode
from ltnode.cli.app import make_app

_LOAD = """
import sys
sys.modules["ltnode"] = None  # an import would fail
import torch
program = torch.export.load(sys.argv[1]).module()
x = torch.load(sys.argv[2])
out = {n: {k: v.detach() for k, v in program(x[:n]).items()} for n in (1, 64)}
torch.save(out, sys.argv[3])
"""


def test_a_folder_becomes_a_torch_file_that_runs_in_a_process_without_ltnode(tmp_path: Path) -> None:
    # Reference: predict; tolerance 1e-5 as for ONNX. Batches of 1 and 64 from one file.
    model, x = small_model("lt-node", VECTORS), torch.randn(64, 2)
    ltnode.save(model, tmp_path / "run")
    np.save(tmp_path / "x.npy", x[:10].numpy())
    torch.save(x, tmp_path / "x.pt")
    file = tmp_path / "m.pt2"
    words = ["export", tmp_path / "run", "--format", "torch", "--samples", 4, "--out", file, "--inputs", tmp_path / "x.npy"]
    result = CliRunner().invoke(make_app(), [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert "Verified and kept" in result.output
    assert "on 10 inputs" in result.output
    subprocess.run(
        [sys.executable, "-c", _LOAD, file, tmp_path / "x.pt", tmp_path / "out.pt"], check=True, cwd=tmp_path, timeout=120
    )
    got = torch.load(tmp_path / "out.pt")
    for n in (1, 64):
        prediction = model.predict(x[:n], 4)
        passes = got[n]["error_ratio"] < 1
        assert passes.float().mean() > 0.5
        torch.testing.assert_close(got[n]["probs"][passes], prediction.probs[passes], rtol=0, atol=1e-5)
        torch.testing.assert_close(got[n]["times"], prediction.times, rtol=0, atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.pt2", "out.pt", "run", "x.npy", "x.pt"]
    extra = {"ltnode.json": ""}
    torch.export.load(file, extra_files=extra)
    facts = json.loads(extra["ltnode.json"])
    assert (facts["model"], facts["samples"], facts["verified_inputs"]) == ("lt-node", "4", "10")
    assert str(Path(ltnode.__file__).parent).encode() not in file.read_bytes()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--format", "tflite"), "--format must be onnx or torch"),
        (("--grid", "fine"), "--grid must be"),
        (("--grid", "0"), "--grid"),
    ],
)
def test_invalid_options_end_with_one_line(tmp_path: Path, option: tuple[str, str], message: str) -> None:
    ltnode.save(small_model("node", VECTORS), tmp_path / "run")
    result = CliRunner().invoke(make_app(), ["export", str(tmp_path / "run"), *option])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
