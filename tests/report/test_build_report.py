"""End to end: tiny models are trained and evaluated, all figures and tables are made, and a browser opens the page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from browser import look_at
from tiny_problem import image_data, image_run, other_data

import ltnode
from ltnode.data import gap_data
from ltnode.errors import InputError
from ltnode.evaluation import evaluate
from ltnode.report import build_report
from ltnode.training import TrainConfig, fit

PROTOCOLS = ["clean", "rotation", "ood", "fgsm", "pgd", "corruption", "temperature", "conformal"]
OPTIONS = {
    "draws": 2, "angles": (0, 45), "epsilons": (0.0, 0.2), "pgd_epsilons": (0.1,), "pgd_steps": 2, "pgd_restarts": 1,
    "severities": (1, 5), "corruptions": ("contrast", "jpeg"), "limit": 24,
}  # fmt: skip
FIGURES = {
    "figure-1-patterns-lt-node-default",
    "figure-1-patterns-alt-node-default",
    "figure-2",
    "figure-3-patterns",
    "figure-4-patterns",
    "figure-5-gap",
    "posterior-2-0.5-patterns",
    "figure-6-gap",
    "posterior-over-training-patterns",
    "posterior-over-training-gap",
    "reliability-patterns",
    "corruptions-patterns",
    "attacks-patterns",
}
TABLES = {
    "generalisation", "quality", "draws", "calibration", "regression", "ood", "entropy", "scores", "posteriors"
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    return image_data()


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory) -> list[Path]:
    """Three image models, one of them with two seeds, and two 1-D models with different priors; all evaluated."""
    root = tmp_path_factory.mktemp("runs")
    folders = []
    for model, seed in (("node", 0), ("lt-node", 0), ("lt-node", 1), ("alt-node", 0)):
        folder = root / f"{model}-{seed}"
        image_run(model, data, seed=seed, epochs=1, out=folder)
        protocols = PROTOCOLS if model == "node" else PROTOCOLS[:4]
        evaluate(folder, data, protocols, ood=other_data(), out=folder / "evaluation.json", device="cpu", **OPTIONS)
        folders.append(folder)
    gap = gap_data(n=40)
    for model, prior in (("node", (2.0, 0.5)), ("lt-node", (2.0, 0.5)), ("lt-node", (1.0, 0.01))):
        folder = root / f"gap-{model}-{prior[0]:g}"
        built = ltnode.build(model, gap, seed=0, width=6)
        if model == "lt-node":
            built.end_time.get_buffer("prior").copy_(torch.tensor(prior))  # the prior is saved with the weights
        config = TrainConfig(model=model, data="synthetic", preset="default", epochs=20, batch_size=None, lr=0.02, log_every=5)
        fit(built, gap, config.replace(model_options={"prior": list(prior)}), out=folder)
        evaluate(folder, gap, out=folder / "evaluation.json", device="cpu", draws=2)
        folders.append(folder)
    return folders


@pytest.fixture(scope="module")
def report(runs, data, tmp_path_factory) -> Path:
    """The folder of a report on all of them."""
    page = build_report(runs, tmp_path_factory.mktemp("report"), datasets={"patterns": data, "gap": gap_data(n=40)})
    return page.parent


def test_every_figure_is_made_as_drawing_and_for_print(report):
    for suffix, beginning in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        found = {path.stem: path for path in (report / "figures").glob(f"*.{suffix}")}
        assert set(found) == FIGURES
        assert all(path.read_bytes().startswith(beginning) for path in found.values())


def test_every_table_is_made_in_three_formats(report):
    for suffix in ("md", "tex", "html"):
        assert {path.stem for path in (report / "tables").glob(f"*.{suffix}")} == TABLES
    line = next(line for line in (report / "tables" / "generalisation.md").read_text().splitlines() if "LT-NODE" in line)
    assert " ± " in line and line.split("|")[5].strip() == "2"
    quality = (report / "index.html").read_text().split("<h2>Quality")[1].split("<h2>")[0]
    assert "paper" not in quality  # the paper says nothing about these data


def test_runs_that_differ_in_more_than_their_seed_are_distinguished(report):
    """Two LT-NODEs with different priors are not two seeds of one variant; the setting that differs is part of their names."""
    text = (report / "tables" / "regression.md").read_text()
    assert "LT-NODE (prior = [2.0, 0.5])" in text
    assert "LT-NODE (prior = [1.0, 0.01])" in text


def test_the_page_needs_nothing_else(report):
    text = (report / "index.html").read_text()
    assert "<script" not in text and '<link rel="stylesheet"' not in text
    for attribute in ("src=", "srcset=", "href="):
        assert all(part.startswith('"data:') for part in text.split(attribute)[1:])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_browser_shows_every_figure_and_asks_for_nothing(report, tmp_path, dark):
    """Headless Chromium: all pictures decode, no console message, no request except for the page, no horizontal scrolling."""
    seen = look_at(report / "index.html", tmp_path / "profile", dark)
    assert len(seen.page["images"]) == len(FIGURES)
    assert all(image["width"] > 100 and image["alt"] for image in seen.page["images"])
    for number, present in {1: False, 2: True, 3: False, 4: False, 5: True, 6: True}.items():  # only "gap" is a set of the paper
        assert any(caption.startswith(f"Figure {number}") for caption in seen.page["captions"]) is present
    assert seen.page["tables"] == len(TABLES) + 2
    assert (seen.requests, seen.page["resources"], seen.console) == (["/index.html"], [], [])
    assert seen.page["overflow"] <= 0
    brightness = sum(int(part) for part in seen.page["background"].strip("rgba()").split(",")[:3]) / 3
    assert brightness < 60 if dark else brightness > 200


def test_dark_and_light_pages_show_different_pictures(report):
    text = (report / "index.html").read_text()
    assert text.count("prefers-color-scheme: dark") >= len(FIGURES) + 1


def test_the_browser_test_can_fail(tmp_path):
    """A page with a broken picture, an error and a foreign request must not be accepted."""
    page = tmp_path / "index.html"
    page.write_text('<img src="none.png"><img src="http://127.0.0.1:9/a.png"><script>console.error("oh")</script>')
    seen = look_at(page, tmp_path / "profile")
    assert [image["width"] for image in seen.page["images"]] == [0, 0]
    assert "/none.png" in seen.requests
    assert any("oh" in line for line in seen.console)
    assert any("127.0.0.1:9" in name for name in seen.page["resources"])


def only(run: Path, folder: Path, protocols: tuple[str, ...], model: bool = True) -> dict:
    """Copy a run with the results of some protocols; returns the content of its file of results."""
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "metrics.jsonl") if model else ():
        shutil.copy(run / name, folder)
    content = json.loads((run / "evaluation.json").read_text())
    content["protocols"] = {key: part for key, part in content["protocols"].items() if key.split(":")[0] in protocols}
    (folder / "evaluation.json").write_text(json.dumps(content))
    return content


def test_figures_that_need_absent_data_are_left_out_and_the_page_says_so(runs, tmp_path, caplog):
    """The data set 'patterns' cannot be loaded by name: Figure 1 is left out, everything else is shown."""
    only(runs[1], tmp_path / "run", ("clean",))
    page = build_report([tmp_path / "run"], tmp_path)
    names = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    assert names == {"reliability-patterns", "posterior-2-0.5-patterns", "posterior-over-training-patterns"}
    assert "left out" in page.read_text() and "left out" in caplog.text


def test_a_report_of_one_protocol_is_possible(runs, tmp_path):
    """Panels of protocols without results say so, and no section is empty."""
    only(runs[0], tmp_path / "run", ("fgsm",))
    page = build_report([tmp_path / "run"], tmp_path / "report")
    assert {path.stem for path in (tmp_path / "report" / "figures").glob("*.svg")} == {"figure-4-patterns"}
    assert "Quality and calibration" not in page.read_text()


def test_published_values_are_shown_next_to_ours(runs, tmp_path):
    """If the tiny set is renamed to CIFAR10, the paper's values and the models that only the paper has are shown too."""
    content = only(runs[1], tmp_path / "run", ("clean", "ood"), model=False)
    for part in content["protocols"].values():
        for row in part["rows"]:
            row["data"] = "cifar10"
            row["setting"] = {**row["setting"], **({"ood": "svhn"} if "ood" in row["setting"] else {})}
    (tmp_path / "run" / "evaluation.json").write_text(json.dumps(content))
    published = Path(__file__).parents[2] / "paper" / "published.toml"
    build_report([tmp_path / "run" / "evaluation.json"], tmp_path / "report", published=published)
    generalisation = (tmp_path / "report" / "tables" / "generalisation.md").read_text()
    assert "0.131 ± 0.002" in generalisation and "| CIFAR10 | ALT-NODE | 0.34 M | – | 0.155 ± 0.002 | – |" in generalisation
    assert "83.553 ± 2.040" in (tmp_path / "report" / "tables" / "ood.md").read_text()


def test_a_report_draws_without_touching_the_users_matplotlib(runs, tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    build_report([runs[4]], tmp_path, datasets={"gap": gap_data(n=40)})
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("kind", ["none", "unevaluated", "missing"])
def test_runs_without_results_are_refused(kind, runs, tmp_path):
    if kind == "none":
        with pytest.raises(InputError, match="at least one"):
            build_report([], tmp_path / "report")
        return
    folder = tmp_path / "run"
    if kind == "unevaluated":
        shutil.copytree(runs[0], folder)
        (folder / "evaluation.json").unlink()
    with pytest.raises(InputError, match="ltnode evaluate"):
        build_report([folder], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_a_figure_without_results_says_what_to_run(runs):
    from ltnode.report.aggregate import Rows
    from ltnode.report.figures_images import figure_3_rotation
    from ltnode.report.style import LIGHT

    with pytest.raises(InputError, match="ltnode evaluate"):
        figure_3_rotation(LIGHT, Rows([]), "cifar10")
