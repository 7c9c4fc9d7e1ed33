"""Functions of the caller during a training: when they are called, with what, and that they change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ltnode
from training.tiny import Stop, assert_same_run, tiny_config, tiny_data, tiny_model


def test_callbacks_see_every_step_epoch_and_checkpoint_and_change_nothing(tmp_path: Path) -> None:
    """24 steps in 8 epochs, with a checkpoint after each; the run equals one without callbacks, bit for bit."""
    events: dict[str, list[Mapping[str, Any]]] = {"step": [], "epoch": [], "checkpoint": []}
    run = ltnode.fit(
        tiny_model(),
        tiny_data(),
        tiny_config(),
        tmp_path / "watched",
        on_step=events["step"].append,
        on_epoch=events["epoch"].append,
        on_checkpoint=events["checkpoint"].append,
    )
    assert [event["step"] for event in events["step"]] == list(range(1, 25))
    assert all(event["total_steps"] == 24 and float(event["loss"]) > -1e9 for event in events["step"])
    assert [(event["epoch"], event["step"]) for event in events["epoch"]] == [(epoch, 3 * epoch + 3) for epoch in range(8)]
    assert events["epoch"][-1]["log"] == run.history[-1]
    assert [event["step"] for event in events["checkpoint"]] == list(range(3, 25, 3))
    assert Path(events["checkpoint"][-1]["path"]).is_dir()
    ltnode.fit(tiny_model(), tiny_data(), tiny_config(), tmp_path / "alone")
    assert_same_run(tmp_path / "watched", tmp_path / "alone")


def test_an_exception_of_a_callback_ends_the_training_which_can_be_resumed(tmp_path: Path) -> None:
    def stop(event: Mapping[str, Any]) -> None:
        if event["step"] == 10:
            raise Stop

    with pytest.raises(Stop):
        ltnode.fit(tiny_model(), tiny_data(), tiny_config(), tmp_path / "stopped", on_step=stop)
    ltnode.fit(tiny_model(), tiny_data(), tiny_config(), tmp_path / "stopped", resume=True)
    ltnode.fit(tiny_model(), tiny_data(), tiny_config(), tmp_path / "alone")
    assert_same_run(tmp_path / "stopped", tmp_path / "alone")
