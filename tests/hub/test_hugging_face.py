"""Publishing and reading models in the layout of the Hugging Face Hub, with a fake of its API on this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hugging_face import Hub, fake_hub
from typer.testing import CliRunner

import ltnode
from ltnode import hub as models
from ltnode.cli.app import make_app
from ltnode.errors import CheckpointError, DataError, InputError, MissingExtraError
from ltnode.hub.card import card
from ltnode.hub.huggingface import repository_of

constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra hub")

REPOSITORY = "me/lt-node-points"
X = torch.tensor([[0.5], [2.0]])


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained and evaluated run."""
    folder = tmp_path_factory.mktemp("runs") / "points"
    data = ltnode.data.gap_data(40, 0)
    run = ltnode.fit(ltnode.build("lt-node", data, seed=0, width=4), data, ltnode.TrainConfig(epochs=1, device="cpu"), out=folder)
    ltnode.evaluate(run, data, protocols=("regression",), draws=0, out=folder / "evaluation.json")
    return folder


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("LTNODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with fake_hub() as running:
        # What HF_ENDPOINT would set when the client is imported.
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield running


def metadata(text: str) -> dict[str, Any]:
    _, front, _ = text.split("---\n", 2)
    return yaml.safe_load(front)


def predicted(model: Any) -> torch.Tensor:
    return model.model.predict(X).mean


def test_what_is_published_is_opened_again(server: Hub, run_folder: Path) -> None:
    """The same bits; the repository has the two files of the layout, a card, and nothing of the training's checkpoints."""
    address = ltnode.hub.push_to_hub(run_folder, REPOSITORY, license="mit")
    assert address.startswith(f"{server.url}/{REPOSITORY}/commit/")
    _, files = server.find(REPOSITORY, "main") or ("", {})
    assert {"config.json", "model.safetensors", "README.md"} <= set(files)
    assert not any("/" in name for name in files)
    opened = ltnode.from_pretrained(REPOSITORY)
    assert opened.name == "lt-node-points"
    assert torch.equal(predicted(opened), predicted(ltnode.TrainedModel.open(run_folder)))
    assert "Bearer hf_secret" in server.tokens


def test_the_card_has_metadata_with_the_recorded_numbers(server: Hub, run_folder: Path) -> None:
    """The numbers are those of evaluation.json, not typed in."""
    ltnode.hub.push_to_hub(run_folder, REPOSITORY, license="mit")
    _, files = server.find(REPOSITORY, "main") or ("", {})
    read = metadata(files["README.md"].decode())
    assert (read["library_name"], read["license"], read["pipeline_tag"]) == ("ltnode", "mit", "tabular-regression")
    assert "lt-node" in read["tags"]
    (result,) = read["model-index"][0]["results"]
    rows = {row.metric: row.value for row in ltnode.evaluation.read_rows(run_folder / "evaluation.json") if not row.setting}
    assert result["metrics"]
    assert all(rows[metric["type"]] == metric["value"] for metric in result["metrics"])


def test_a_card_of_ones_own_is_kept(run_folder: Path, tmp_path: Path) -> None:
    """Metadata comes before the page; a page that has metadata stays as it is."""
    folder = Path(shutil.copytree(run_folder, tmp_path / "run"))
    (folder / "README.md").write_text("# Mine\n")
    assert card(folder, REPOSITORY).endswith("---\n# Mine\n")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    assert card(folder, REPOSITORY) == "---\nlicense: mit\n---\n# Mine\n"


def test_names_in_a_run_cannot_break_out_of_the_metadata(run_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(run_folder, tmp_path / "run"))
    evil = 'x"\n---\nlicense: other\nlicense: "y'
    config = json.loads((folder / "config.json").read_text())
    config["model"]["model"] = evil
    (folder / "config.json").write_text(json.dumps(config))
    read = metadata(card(folder, REPOSITORY))
    assert "license" not in read
    assert read["tags"][-1] == evil


def test_models_in_memory_and_estimators_are_published(server: Hub) -> None:
    sklearn_data = X.repeat(10, 1).numpy()
    regressor = ltnode.LTNodeRegressor(max_epochs=1, width=4, random_state=0).fit(sklearn_data, sklearn_data[:, 0])
    ltnode.hub.push_to_hub(regressor, "me/regressor")
    assert (ltnode.from_pretrained("me/regressor").predict(sklearn_data) == regressor.predict(sklearn_data)).all()
    model = ltnode.build("node", ltnode.InputSpec((1,), "regression"), seed=0, width=4)
    ltnode.hub.push_to_hub(model, "me/node", private=True)
    assert torch.equal(predicted(ltnode.from_pretrained("me/node")), model.eval().predict(X).mean)
    assert server.private == {"me/node"}


def test_without_a_network_the_revision_used_last_is_opened(
    server: Hub, run_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a warning that says so; a revision that is named by its commit needs no network at all."""
    ltnode.hub.push_to_hub(run_folder, REPOSITORY)
    first = predicted(ltnode.from_pretrained(REPOSITORY))
    commit, _ = server.find(REPOSITORY, "main") or ("", {})
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert torch.equal(predicted(ltnode.from_pretrained(f"hf://{REPOSITORY}@{commit}")), first)
    assert not caplog.records
    assert torch.equal(predicted(ltnode.from_pretrained(REPOSITORY)), first)
    assert "which was used last, is opened" in caplog.text
    with pytest.raises(DataError, match="could not read me/other"):
        ltnode.from_pretrained("me/other")


def test_a_new_commit_is_fetched_and_an_old_one_stays(server: Hub, run_folder: Path, tmp_path: Path) -> None:
    ltnode.hub.push_to_hub(run_folder, REPOSITORY)
    old, _ = server.find(REPOSITORY, "main") or ("", {})
    first = predicted(ltnode.from_pretrained(REPOSITORY))
    other = ltnode.save(ltnode.build("lt-node", ltnode.InputSpec((1,), "regression"), seed=5, width=4), tmp_path / "other")
    ltnode.hub.push_to_hub(other, REPOSITORY)
    assert not torch.equal(predicted(ltnode.from_pretrained(REPOSITORY)), first)
    assert torch.equal(predicted(ltnode.from_pretrained(f"hf://{REPOSITORY}@{old}")), first)


def test_files_that_belong_to_no_model_are_never_downloaded(server: Hub, run_folder: Path) -> None:
    ltnode.hub.push_to_hub(run_folder, REPOSITORY)
    server.commit(REPOSITORY, {"evil.py": b"raise SystemExit", "pytorch_model.bin": b"pickle", "../up": b"x"})
    opened = ltnode.from_pretrained(REPOSITORY)
    assert not {"evil.py", "pytorch_model.bin"} & {path.name for path in opened.path.iterdir()}
    assert not any("evil" in path or ".bin" in path for path in server.requests)


def test_a_repository_that_is_too_large_is_refused_before_anything_is_downloaded(server: Hub, run_folder: Path) -> None:
    ltnode.hub.push_to_hub(run_folder, REPOSITORY)
    server.sizes = {"model.safetensors": 1 << 40}
    with pytest.raises(DataError, match="at most 1,073,741,824 bytes"):
        ltnode.from_pretrained(REPOSITORY)
    assert not any("resolve" in path for path in server.requests)


def test_a_repository_of_another_library_is_refused(server: Hub) -> None:
    """Without the files of the layout, or with a config.json of somebody else."""
    server.commit("me/other", {"config.json": b"{}"})
    with pytest.raises(DataError, match=r"is no model of ltnode: it has no model.safetensors"):
        ltnode.from_pretrained("me/other")
    server.commit("me/bert", {"config.json": b'{"model_type": "bert"}', "model.safetensors": b"x"})
    with pytest.raises(CheckpointError, match="was not written by ltnode"):
        ltnode.from_pretrained("me/bert")


@pytest.mark.parametrize("name", ["me", "me/a/b", "../x", "me/", "/x", "me/..", "-me/x", "me/x y"])
def test_names_of_repositories_are_checked(server: Hub, run_folder: Path, name: str) -> None:
    with pytest.raises(InputError, match="repository must be OWNER/NAME"):
        ltnode.hub.push_to_hub(run_folder, name)
    assert not server.requests


def test_addresses_of_repositories() -> None:
    """Also with one slash, as a path in a command line is normalised to."""
    assert repository_of("hf://me/x") == repository_of("hf:/me/x") == ("me/x", "main")
    assert repository_of("hf://me/x@v1.0") == ("me/x", "v1.0")
    assert [repository_of(text) for text in ("me/x", "hf://me", "hf://me/x@", "hf://me/x@../y", "https://me/x")] == [None] * 5


def test_a_path_that_looks_like_a_repository_is_a_path_in_commands(server: Hub) -> None:
    """A mistyped run folder must not become a request to the network."""
    assert models.locate("runs/x") == Path("runs/x")
    assert not server.requests


def test_the_commands(server: Hub, run_folder: Path, tmp_path: Path) -> None:
    def command(*words: str | Path) -> Any:
        return CliRunner().invoke(make_app(), [str(word) for word in words], prog_name="ltnode")

    pushed = command("models", "push", run_folder, REPOSITORY, "--license", "mit")
    assert pushed.exit_code == 0, pushed.output
    (tmp_path / "x.csv").write_text("0.5\n")
    by_name, by_path = (command("predict", run, tmp_path / "x.csv", "--json") for run in (f"hf://{REPOSITORY}", run_folder))
    assert by_name.exit_code == 0, by_name.output
    assert json.loads(by_name.stdout)["predictions"] == json.loads(by_path.stdout)["predictions"]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'ltnode\[hub\]'"):
        ltnode.from_pretrained("me/x")
