"""Archives of sessions: what they hold, and how they are merged."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from ltnode.errors import DataError
from paper.reproduce.edition import packing
from paper.reproduce.edition.packing import merge, pack_results, pack_runs
from paper.reproduce.images.cells import Places
from paper.reproduce.images.results import read_result

NODE = "images-mnist-node-paper-seed0.json"


def result_file(folder: Path, protocols: tuple[str, ...], weights: str = "w") -> Path:
    """A result file with some protocols."""
    part = {"options": {}, "draw_seed": 0, "provenance": {}, "cost": None, "rows": [{"metric": "error", "n": 1, "value": 0.1}]}
    content = {
        "format": 1,
        "experiment": "images",
        "data": "mnist",
        "model": "node",
        "preset": "paper",
        "variant": None,
        "seed": 0,
    }
    content |= {"weights_sha256": weights, "learnt": {"of": weights}, "protocols": dict.fromkeys(protocols, part)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NODE
    path.write_text(json.dumps(content))
    return path


def test_merging_completes_results_and_replaces_none(tmp_path: Path) -> None:
    """Protocols of the same weights are added in their order; other weights are reported and taken only on request."""
    places = Places(tmp_path / "runs", tmp_path / "results")
    for name, protocols, weights in (("a", ("rotation",), "w"), ("b", ("clean", "rotation"), "w"), ("c", ("clean",), "other")):
        pack_results(tmp_path / name, [result_file(tmp_path / f"{name}-results", protocols, weights), tmp_path / "missing.json"])
    a, b, c = (tmp_path / name / "results.zip" for name in "abc")
    assert merge(a, places).new == [NODE]
    assert merge(a, places) == packing.Merged()
    assert merge(b, places).completed == [NODE]
    merged = (places.out / NODE).read_bytes()
    assert list(read_result(places.out / NODE).protocols) == ["clean", "rotation"]
    for archive in (a, b):
        assert merge(archive, places) == packing.Merged()
    assert merge(c, places).kept == [NODE]
    assert (places.out / NODE).read_bytes() == merged
    assert merge(c, places, overwrite=True).new == [NODE]
    assert read_result(places.out / NODE).content["weights_sha256"] == "other"


def test_archives_of_runs_are_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest checkpoint is packed, a second archive begins where the first is full, and old archives are removed."""
    runs = []
    for name in ("one", "two"):
        for step in ("step-0000000001", "step-0000000002"):
            (tmp_path / name / "checkpoints" / step).mkdir(parents=True)
            (tmp_path / name / "checkpoints" / step / "state.json").write_bytes(b"x" * 600)
        (tmp_path / name / "config.json").write_text("{}")
        runs.append(tmp_path / name)
    monkeypatch.setattr(packing, "LARGEST_ARCHIVE", 1000)
    pack_runs(tmp_path / "pack", runs)
    assert sorted(path.name for path in (tmp_path / "pack").iterdir()) == ["runs-1.zip", "runs-2.zip"]
    with zipfile.ZipFile(tmp_path / "pack" / "runs-1.zip") as archive:
        assert archive.namelist() == ["runs/one/checkpoints/step-0000000002/state.json", "runs/one/config.json"]
    pack_runs(tmp_path / "pack", runs[:1])
    assert [path.name for path in (tmp_path / "pack").iterdir()] == ["runs-1.zip"]


@pytest.mark.parametrize("name", ["../results/x.json", "results/../x.json", "runs/a/../../b", "/results/x.json", "other/x.json"])
def test_archives_that_hold_something_else_are_refused(tmp_path: Path, name: str) -> None:
    """Nothing of such an archive is written, not even the good part."""
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("results/good.json", "{}")
        archive.writestr(name, "{}")
    places = Places(tmp_path / "runs", tmp_path / "results")
    with pytest.raises(DataError, match="no archive of a session"):
        merge(tmp_path / "bad.zip", places)
    assert not places.out.exists()


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.zip").write_bytes(b"PK\x03\x04 and nothing more")
    with zipfile.ZipFile(tmp_path / "text.zip", "w") as archive:
        archive.writestr("results/x.json", "{")
    for path in (tmp_path / "cut.zip", tmp_path / "text.zip", tmp_path / "none.zip"):
        with pytest.raises(DataError, match="is damaged"):
            merge(path, Places(tmp_path / "runs", tmp_path / "results"))
