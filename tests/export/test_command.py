"""``ltnode export``: from a folder to a verified file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small_exports import VECTORS, small_model
from typer.testing import CliRunner

import ltnode
from ltnode.cli.app import make_app


def test_a_folder_becomes_a_file_that_agrees_with_predict(tmp_path: Path) -> None:
    # The torch format, which is the quicker one; reference predict on inputs that the command compared on, 1e-5.
    model, x = small_model("node", VECTORS), torch.randn(10, 2)
    ltnode.save(model, tmp_path / "run")
    np.save(tmp_path / "x.npy", x.numpy())
    words = ["export", tmp_path / "run", "--format", "torch", "--out", tmp_path / "m.pt2", "--inputs", tmp_path / "x.npy"]
    result = CliRunner().invoke(make_app(), [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert "Verified and kept" in result.output
    assert "on 10 inputs" in result.output
    got = torch.export.load(tmp_path / "m.pt2").module()(x)
    torch.testing.assert_close(got["probs"], model.predict(x).probs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--format", "tflite"), "--format must be onnx or torch"),
        (("--grid", "fine"), "--grid must be"),
        (("--grid", "0"), "--grid"),
    ],
)
def test_impossible_options_end_with_one_line(tmp_path: Path, option: tuple[str, str], message: str) -> None:
    ltnode.save(small_model("node", VECTORS), tmp_path / "run")
    result = CliRunner().invoke(make_app(), ["export", str(tmp_path / "run"), *option])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
