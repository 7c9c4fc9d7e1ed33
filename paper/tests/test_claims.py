"""Claims judged by synthetic results with an obvious verdict: every kind of claim can hold, fail and lack results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ltnode.evaluation import Cost, ResultRow
from ltnode.report.published import read_values
from paper.reproduce.claims import generalisation
from paper.reproduce.claims.all_claims import all_claims
from paper.reproduce.images.results import ImageResult, compact_rows, cost_of
from paper.reproduce.pages.claims import verdict_rows
from paper.reproduce.pages.remarks import Remarks
from paper.reproduce.published import PaperValues

PUBLISHED = PaperValues(read_values(Path(__file__).parents[2] / "paper" / "published.toml"))
MODELS = ("node", "sde-net", "node-gp", "uni-node", "lt-node", "alt-node")
FOREIGN = {"cifar10": "svhn", "svhn": "cifar10", "mnist": "fashion-mnist", "fashion-mnist": "mnist"}


@pytest.fixture(autouse=True)
def no_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not count parameters, which would build 24 real networks."""
    monkeypatch.setattr(generalisation, "_parameter_count", lambda data, model: 210_000)


def result(
    data: str, model: str, preset: str = "paper", variant: str = "", seed: int = 0, device: str = "cpu", **m: float
) -> ImageResult:
    """A result in which ``good`` determines all qualities: higher values mean better likelihood, calibration and detection."""
    error, good, entropy = m.get("error", 0.1), m.get("good", 0.5), m.get("entropy", 0.5)
    common: dict[str, Any] = {"model": model, "data": data, "preset": preset, "seed": seed, "n": 10, "draw_seed": 0}

    def row(protocol: str, metric: str, value: Any, **more: Any) -> ResultRow:
        cost = Cost(m.get("evaluations", 30.0), m.get("seconds", 1.0), None)
        return ResultRow(protocol=protocol, metric=metric, value=value, cost=cost, **common, **more)

    clean = [row("clean", "error", error), row("clean", "log_likelihood", good - 1), row("clean", "ece", 1 - good)]
    rotation = [
        row("rotation", metric, value, setting={"angle": angle})
        for angle in (0, 45, 90)
        for metric, value in (
            ("error", error + angle / 200), ("log_likelihood", good - 1), ("brier", 1 - good), ("ece", 1 - good)
        )
    ]  # fmt: skip
    x = {"x": [0.0, 0.5, 0.9], "x_name": "x"}
    rotation += [
        row("rotation", "confidence_accuracy", (0.0, 0.0, good), setting={"angle": 45}, extra=x),
        row("rotation", "confidence_count", (9.0, 9.0, 100 * (1 - good)), setting={"angle": 45}, extra=x),
    ]
    other = FOREIGN[data]
    ood = [
        row("ood", name, good, setting={"ood": other, "score": "max_probability"}) for name in ("auroc", "aupr_in", "aupr_out")
    ]
    ood += [
        row("ood", "mean_entropy", entropy, setting={"ood": other, "part": "out"}),
        row("ood", "rejection_accuracy", (0.1, 0.5 + 0.1 * good, 1.0), setting={"ood": other}, extra=x),
    ]
    fgsm = [row("fgsm", "error", 1 - good, setting={"units": "normalised", "epsilon": e}) for e in (0.0, 0.1, 0.3)]
    parts = {"clean": clean, "rotation": rotation, f"ood:{other}": ood, "fgsm": fgsm}
    protocols = {
        key: {"draw_seed": 0, "provenance": {"device": device}, "cost": cost_of(rows), "rows": compact_rows(rows)}
        for key, rows in parts.items()
    }
    head = {"data": data, "model": model, "preset": preset, "variant": variant or None, "seed": seed}
    return ImageResult({**head, "learnt": {"mean": 1.8}, "protocols": protocols})


@dataclass(frozen=True)
class Shown:
    """A claim as the page shows it."""

    text: str
    paper: str
    ours: str
    seeds: str
    verdict: str
    test: str
    why: str
    command: str


def judged(results: list[ImageResult], folder: Path) -> dict[str, Shown]:
    found = all_claims(results, folder, PUBLISHED)
    rows = verdict_rows(found, Remarks())
    return {entry.claim.key: Shown(*row, entry.claim.command) for entry, row in zip(found, rows, strict=True)}


def ranked(data: str, order: tuple[str, ...], seeds: tuple[int, ...] = (0, 1)) -> list[ImageResult]:
    """Models from worst to best, the same for every seed."""
    return [
        result(data, model, seed=seed, good=0.3 + 0.1 * place, entropy=0.3 + 0.2 * place, error=0.2 - 0.01 * place)
        for place, model in enumerate(order)
        for seed in seeds
    ]


def test_without_results_everything_but_sizes_is_missing(tmp_path: Path) -> None:
    """Every missing claim still names its command."""
    found = judged([], tmp_path)
    assert {claim.verdict for key, claim in found.items() if not key.startswith("parameters")} == {"missing"}
    assert found["parameters.cifar10.lt-node"].verdict == "reproduced"
    assert found["parameters.cifar10.node-gp"].verdict == "not reproduced"
    assert all(claim.command.startswith("ltnode reproduce ") for claim in found.values())


def test_the_paper_s_order_is_reproduced_and_its_opposite_reversed(tmp_path: Path) -> None:
    """All claims that one model is better than others, with two seeds and no spread."""
    keys = [
        "rotation-log_likelihood.cifar10.lt-node", "rotation-brier.cifar10.alt-node", "rotation-ece.cifar10.lt-node",
        "rotation-ece-alt-lt.cifar10", "confidence_accuracy.cifar10.lt-node", "confidence_count.cifar10.alt-node",
        "entropy-order.cifar10.lt-node", "auroc-order.cifar10.alt-node", "auroc-alt-lt.cifar10", "fgsm.cifar10.lt-node",
    ]  # fmt: skip
    up, down = (judged(ranked("cifar10", order), tmp_path) for order in (MODELS, MODELS[::-1]))
    assert {key: up[key].verdict for key in keys} == dict.fromkeys(keys, "reproduced")
    assert {key: down[key].verdict for key in keys} == dict.fromkeys(keys, "reversed")
    assert up["rotation-error.cifar10.node"].verdict == "reproduced"
    assert up["rotation-ece.cifar10.lt-node"].seeds == "2"
    assert "Better: NODE, SDE-Net, NODE-GP, Uni-NODE" in down["auroc-order.cifar10.alt-node"].why


def test_on_svhn_the_claim_under_attack_is_the_exception(tmp_path: Path) -> None:
    up, down = (judged(ranked("svhn", order), tmp_path) for order in (MODELS, MODELS[::-1]))
    assert up["fgsm.svhn.lt-node"].verdict == "reversed"
    assert down["fgsm.svhn.lt-node"].verdict == "reproduced"
    assert judged([], tmp_path)["fgsm.svhn.lt-node"].verdict == "missing"


def test_an_order_within_the_spread_is_not_reproduced_and_one_seed_is_marked(tmp_path: Path) -> None:
    noisy = [
        result("cifar10", model, seed=seed, good=0.5 + 0.02 * place + 0.2 * seed)
        for place, model in enumerate(MODELS)
        for seed in (0, 1)
    ]
    assert judged(noisy, tmp_path)["rotation-brier.cifar10.lt-node"].verdict == "not reproduced"
    single = judged(ranked("cifar10", MODELS, (0,)), tmp_path)
    assert single["rotation-brier.cifar10.lt-node"].verdict == "reproduced (one seed)"


def test_the_published_numbers(tmp_path: Path) -> None:
    """CIFAR10, LT-NODE: 0.131 ± 0.002, 1.074 ± 0.078 nats, 83.553 ± 2.04 %; the mean over seeds is compared."""
    seeds = [
        result("cifar10", "lt-node", seed=k, error=e, entropy=h, good=g)
        for k, (e, h, g) in enumerate([(0.125, 1.0, 0.84), (0.14, 1.1, 0.83)])
    ]
    found = judged(seeds, tmp_path)
    assert (found["error.cifar10.lt-node"].verdict, found["error.cifar10.lt-node"].ours) == ("reproduced", "0.1325 ± 0.0075")
    assert found["entropy.cifar10.lt-node"].verdict == "reproduced"
    assert (found["auroc.cifar10.lt-node"].verdict, found["auroc.cifar10.lt-node"].paper) == ("reproduced", "83.553 ± 2.040")
    worse = judged([result("cifar10", "lt-node", error=0.15, entropy=0.5, good=0.7)], tmp_path)
    for key in ("error.cifar10.lt-node", "entropy.cifar10.lt-node", "auroc.cifar10.lt-node"):
        assert worse[key].verdict == "not reproduced (one seed)"


def test_weightings_have_separate_rows(tmp_path: Path) -> None:
    found = judged([result("cifar10", "lt-node", variant="softmax", error=0.131)], tmp_path)
    assert found["weighting-softmax.lt-node.error"].verdict == "reproduced (one seed)"
    assert found["weighting-density.lt-node.error"].verdict == found["error.cifar10.lt-node"].verdict == "missing"
    assert "--variants softmax" in found["weighting-softmax.lt-node.error"].command


def test_selection_cost_and_precision(tmp_path: Path) -> None:
    """NODE at five end-times; evaluations, and times measured on the same device; bf16 compared with fp32."""

    def times(errors: dict[str, float]) -> list[ImageResult]:
        return [result("fashion-mnist", "node", variant=name, error=error) for name, error in errors.items()]

    small = {"t0.25": 0.064, "t0.5": 0.064, "": 0.064, "t2": 0.064, "t3": 0.065}
    assert judged(times(small), tmp_path)["selection.fashion-mnist"].verdict == "reproduced (one seed)"
    assert judged(times({**small, "t3": 0.05}), tmp_path)["selection.fashion-mnist"].verdict == "not reproduced (one seed)"
    assert judged(times(small)[:4], tmp_path)["selection.fashion-mnist"].verdict == "missing"
    costs = [
        result("cifar10", "lt-node", evaluations=38.0, seconds=0.1),
        result("cifar10", "sde-net", evaluations=60.0, seconds=0.2),
    ]
    found = judged(costs, tmp_path)
    assert found["cost-evaluations.lt-node"].verdict == found["cost-seconds_per_1000.lt-node"].verdict == "reproduced (one seed)"
    elsewhere = judged([costs[0], result("cifar10", "sde-net", device="gpu", evaluations=60.0)], tmp_path)
    assert elsewhere["cost-evaluations.lt-node"].verdict == "reproduced (one seed)"
    assert (elsewhere["cost-seconds_per_1000.lt-node"].verdict, elsewhere["cost-seconds_per_1000.lt-node"].why) == (
        "missing", "Measured on different devices",
    )  # fmt: skip
    precisions = [result("svhn", "node"), result("svhn", "node", variant="fp32", error=0.13)]
    assert judged(precisions, tmp_path)["precision.error"].verdict == "not reproduced (one seed)"


@pytest.mark.parametrize(
    ("good", "error", "answer"), [(0.8, 0.05, "yes"), (0.2, 0.3, "no"), (0.8, 0.3, "in part"), (0.5, 0.1, "undecided")]
)
def test_the_users_question(good: float, error: float, answer: str, tmp_path: Path) -> None:
    """The default preset is compared with NODE and Uni-NODE of the paper preset; the model's own paper preset is ignored."""
    rivals = [result("cifar10", model, seed=seed) for model in ("node", "uni-node") for seed in (0, 1)]
    ours = [result("cifar10", "lt-node", "default", seed=seed, good=good, error=error) for seed in (0, 1)]
    assert judged([*rivals, *ours], tmp_path)["users.cifar10.lt-node"].verdict == answer
    assert judged([*rivals, result("cifar10", "lt-node")], tmp_path)["users.cifar10.lt-node"].verdict == "missing"
    assert judged([*rivals, ours[0]], tmp_path)["users.cifar10.lt-node"].verdict == f"{answer} (one seed)"


# -- 1-D -----------------------------------------------------------------------------------------------------------------------


def write(
    folder: Path, variant: str, entropy: float, rmse: float = 0.1, growth: float = 1.0, spread: float = 0.1, **changes: Any
) -> None:
    """Write a result of the 1-D experiment, with the paper's number of iterations by default."""
    content = {
        "variant": variant,
        "seed": 0,
        "iterations": 600 if variant == "node-gp" else 3000,  # NODE-GP has a shorter schedule
        "entropy": {"model": {"mean": entropy, "std": spread, "sets": [entropy - spread, entropy + spread]}},
        "fit": {"eval": {"rmse": rmse}},
        "posterior": {"alpha": 1.27, "beta": 0.98, "tail": 0.1} if variant.startswith("lt-node") else None,
        "curve": {"x": [-1.9, -1.1, 0.0, 1.1, 1.9], "mean": [0.0] * 5, "std": [growth, 1.0, 1.0, 1.0, growth]},
        **changes,
    }
    (folder / f"synthetic-{variant}-seed0.json").write_text(json.dumps(content))


def test_the_1d_claims_as_the_paper_has_them(tmp_path: Path) -> None:
    for variant, entropy, rmse in (
        ("lt-node", 2.42, 0.12), ("node-gp", 1.22, 0.1), ("alt-node", 1.17, 0.1), ("sde-net", -0.31, 0.1),
        ("uni-node", -0.65, 0.3),
    ):  # fmt: skip
        write(tmp_path, variant, entropy, rmse)
    write(tmp_path, "lt-node-prior-1-0.01", 2.0, posterior={"alpha": 1.05, "beta": 0.99, "tail": 0.1})
    found = {key: claim.verdict for key, claim in judged([], tmp_path).items() if key.startswith("synthetic")}
    assert found.pop("synthetic-selection") == "missing"
    assert set(found.values()) == {"reproduced (one seed)"}
    assert len(found) == 5 + 1 + 3 + 2 + 1


def test_the_1d_claims_the_other_way(tmp_path: Path) -> None:
    """Another order, other posteriors, worse fits and a growing spread; a shortened run is ignored."""
    for variant, entropy, rmse in (
        ("lt-node", -0.9, 0.1), ("node-gp", 0.0, 0.2), ("alt-node", 0.2, 0.2), ("sde-net", 1.0, 0.3), ("uni-node", 1.0, 0.05)
    ):  # fmt: skip
        write(tmp_path, variant, entropy, rmse, growth=2.0, posterior={"alpha": 2.0, "beta": 0.5, "tail": 0.5})
    write(tmp_path, "lt-node-prior-1-0.01", 2.0)
    found = {key: claim.verdict for key, claim in judged([], tmp_path).items()}
    for name in ("lt-node", "node-gp", "alt-node", "sde-net", "uni-node"):
        assert found[f"synthetic-entropy.{name}"] == "not reproduced (one seed)"
    for key in ("synthetic-order", "synthetic-fit-alt", "synthetic-fit-uni"):
        assert found[key] == "reversed (one seed)"
    for key in ("synthetic-posterior.lt-node", "synthetic-priors", "synthetic-stagnation"):
        assert found[key] == "not reproduced (one seed)"
    write(tmp_path, "sde-net", -0.31, iterations=10)
    assert judged([], tmp_path)["synthetic-entropy.sde-net"].verdict == "missing"


@pytest.mark.parametrize(
    ("entropy", "spread", "expected"),
    [(2.42, 0.0, "reproduced"), (2.2, 0.0, "reproduced"), (-0.4, 0.5, "not reproduced"), (1.5, 0.6, "reproduced")],
)
def test_a_1d_entropy_is_judged_by_its_spread(entropy: float, spread: float, expected: str, tmp_path: Path) -> None:
    """Within 0.25 nats, or within two standard deviations over sets of end-times."""
    write(tmp_path, "lt-node", entropy, spread=spread)
    found = judged([], tmp_path)["synthetic-entropy.lt-node"]
    assert (found.paper, found.verdict) == ("2.42", f"{expected} (one seed)")


def test_1d_selection_and_motivating_tasks(tmp_path: Path) -> None:
    """Small end-times that do best support the posterior; ALT-NODE must solve what NODE does not, on every seed."""
    write(tmp_path, "lt-node", 0.0)
    for time in (0.25, 0.5, 1.0, 2.0, 3.0):
        error = {"time": time, "seed": 0, "iterations": 3000, "n_validation": 300}
        content = {**error, "validation_rmse": {"eval": 0.1 if time <= 1 else 0.3, "train": 0.1}}
        (tmp_path / f"selection-t{time:g}-seed0.json").write_text(json.dumps(content))
    assert judged([], tmp_path)["synthetic-selection"].verdict == "reproduced (one seed)"
    for model, solved in (("node", False), ("alt-node", True)):
        for seed in (0, 1):
            content = {"task": "reflection", "model": model, "seed": seed, "steps": 600, "solved": solved}
            (tmp_path / f"motivating-reflection-{model}-seed{seed}.json").write_text(json.dumps(content))
    assert judged([], tmp_path)["motivating.reflection"].verdict == "reproduced"
    (tmp_path / "motivating-reflection-node-seed1.json").write_text(
        json.dumps({"task": "reflection", "model": "node", "seed": 1, "steps": 600, "solved": True})
    )
    assert judged([], tmp_path)["motivating.reflection"].verdict == "not reproduced"
