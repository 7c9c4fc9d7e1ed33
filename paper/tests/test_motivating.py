"""The motivating tasks: the obstruction itself, the models, the command, and its figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import colours
from typer.testing import CliRunner

from ltnode.cli.app import make_app
from ltnode.errors import InputError
from paper.reproduce.claims.motivating import motivating_claims
from paper.reproduce.claims.verdict import Outcome
from paper.reproduce.motivating import figure as motivating_figure
from paper.reproduce.motivating import tasks as motivating

APP = make_app()


@pytest.mark.parametrize("seed", range(4))
def test_a_node_keeps_the_order_of_points_on_the_line(seed: int) -> None:
    """For any weights, x < x' is preserved, so y = -x cannot be reached and the classes stay nested.

    Weights are scaled up to make the flow strong; 1e-4 covers the solver's error at tolerance 1e-3 for near points.
    """
    x = torch.linspace(-1, 1, 101)[:, None]
    for task in ("reflection", "concentric-1d"):
        model = motivating.build_model(task, "node", seed)
        with torch.no_grad():
            for p in model.field.parameters():
                p.mul_(2.5)
        assert torch.equal(model.initial_state(x), x)
        states = model.solve(x, torch.tensor([1.0]), "adaptive").states[0, :, 0].detach()
        assert bool((states.diff() > -1e-4).all())


def test_models_of_the_motivating_tasks() -> None:
    """The state is the input itself, except in the control with one more dimension; the head for reflection has no parameters."""
    x = torch.randn(5, 2)
    assert torch.equal(motivating.build_model("concentric", "alt-node", 0).initial_state(x), x)
    augmented = motivating.build_model("concentric", "node-augmented", 0).initial_state(x)
    assert augmented.shape == (5, 3)
    assert torch.equal(augmented[:, 2], torch.zeros(5))
    assert not list(motivating.build_model("reflection", "node", 0).head.parameters())
    with pytest.raises(InputError, match="Did you mean 'node'"):
        motivating.build_model("reflection", "nod", 0)
    train, test = (getattr(motivating.training_data("concentric", 0), name) for name in ("train", "test"))
    assert (len(train), len(test)) == (500, 10_000)


def test_the_motivating_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps on fewer points: a table, negative verdicts, a figure that is not blank, and one result per run."""
    monkeypatch.setattr(motivating, "_FRESH", 50)
    monkeypatch.setattr(motivating_figure, "_SIDE", 10)
    words = ["reproduce", "motivating", "--seeds", "0", "--steps", "2", "--out", str(tmp_path), "--runs", str(tmp_path / "runs")]
    result = CliRunner().invoke(APP, words)
    assert result.exit_code == 0, result.output
    assert result.output.count("✗") == 3
    assert "0 of 1 seeds" in result.output
    assert colours(tmp_path / "motivating.png") > 100
    assert len((tmp_path / "motivating-2it.md").read_text().splitlines()) == 2 + 9
    assert len(list(tmp_path.glob("motivating-*-2it.json"))) == 9
    saved = json.loads((tmp_path / "motivating-reflection-node-seed0-2it.json").read_text())
    assert not saved["solved"]
    assert saved["scores"]["rmse"] > motivating.SUCCESS["reflection"]


def test_the_motivating_verdict_needs_both_halves() -> None:
    """ALT-NODE must solve it and NODE must not, on every seed."""

    def results(node: list[bool], alt: list[bool]) -> list[dict[str, Any]]:
        return [
            {"task": "reflection", "model": model, "seed": k, "solved": flag}
            for model, flags in (("node", node), ("alt-node", alt))
            for k, flag in enumerate(flags)
        ]

    def outcome(node: list[bool], alt: list[bool]) -> Outcome:
        return next(e.verdict.outcome for e in motivating_claims(results(node, alt)) if e.claim.key == "motivating.reflection")

    assert outcome([False, False], [True, True]) is Outcome.REPRODUCED
    assert outcome([False, True], [True, True]) is Outcome.NOT_REPRODUCED
    assert outcome([False, False], [True, False]) is Outcome.NOT_REPRODUCED
    assert outcome([], []) is Outcome.MISSING


def test_the_motivating_figure_shows_what_was_trained(tmp_path: Path) -> None:
    """It also works for untrained models; a task without models has no row."""
    network = motivating.build_model("reflection", "alt-node", 0)
    entry = motivating.Trained("reflection", "alt-node", 0, network, {"scores": {"rmse": 1.0}})
    assert colours(motivating_figure.draw(tmp_path, [entry]).png) > 50
