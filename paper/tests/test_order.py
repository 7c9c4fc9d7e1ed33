"""What a session does first, how it says what is left, and what its record says about the time of an edition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_edition import MADE, expected, recorded

from ltnode.errors import DataError
from paper.reproduce.claims.claim import AtMost, Claim, Section
from paper.reproduce.claims.evidence import Evidence, Seeds
from paper.reproduce.claims.verdict import JudgedClaim, Outcome, Verdict
from paper.reproduce.edition.order import claims_per_set, ordered
from paper.reproduce.edition.record import Made, measured_text, read_records, write_record
from paper.reproduce.edition.remaining import Remaining
from paper.reproduce.images.cells import State
from paper.reproduce.images.grid import Cell


def cell(data: str, model: str, seed: int = 0, variant: str = "") -> Cell:
    return Cell(data, model, "paper", variant, seed, {"weight_decay": 1e-3} if variant else {})


def claim(command: str, fewest: int, most: int) -> JudgedClaim:
    """A claim whose numbers a command makes, from so many seeds."""
    made = Claim("key", Section.ERROR, "text", AtMost(1.0), command)
    return JudgedClaim(made, Evidence({}, ""), Verdict(Outcome.REPRODUCED, Seeds(fewest, most)))


def test_claims_count_for_their_data_set_until_they_have_five_seeds() -> None:
    """Claims that do not depend on seeds, such as the number of parameters, and those on no images wait for nothing."""
    command = "ltnode reproduce images --data {} --models node"
    claims = [claim(command.format("svhn"), 1, 3), claim(command.format("svhn"), 5, 5), claim(command.format("mnist"), 4, 4)]
    claims += [claim("ltnode reproduce claims", 0, 0), claim(command.format("cifar10"), 0, 0)]
    assert claims_per_set(claims) == {"svhn": 1, "mnist": 1}


def test_the_set_with_the_most_claims_per_second_comes_first() -> None:
    """MNIST takes 45 s a cell here; SVHN takes twice as long for three times as many claims. A model's seeds stay together.

    Cells that are done do not count towards the time, and variants come after everything else.
    """
    known = expected(recorded("mnist", shared=6), recorded("svhn", shared=3, wall_time_s=180.0))
    mnist = [cell("mnist", "node", seed) for seed in range(2)]
    svhn = [cell("svhn", "node", seed) for seed in range(2)]
    variant = cell("mnist", "node", 0, "other")
    claims = [claim("x --data mnist", 1, 1)] + 3 * [claim("x --data svhn", 1, 1)]
    grid = [variant, mnist[0], svhn[0], mnist[1], svhn[1]]
    assert ordered(grid, grid, claims, known) == [*svhn, *mnist, variant]
    assert ordered(grid, [*svhn, mnist[1]], 2 * claims[:1] + claims[1:2], known) == [*mnist, *svhn, variant]
    assert ordered(grid, grid, [], expected()) == [*mnist, *svhn, variant]  # without any record


def test_the_rest_is_expected_at_the_pace_so_far() -> None:
    """15 s of training and 20 s of evaluation, by two processes, are 25 s a cell; at first as recorded, then as measured."""
    cells = [cell("mnist", "node", seed) for seed in range(4)]
    states = dict.fromkeys(cells, State.MISSING)
    remaining = Remaining(cells, states.__getitem__, expected(recorded(shared=6)), evaluators=2)
    assert remaining.text(0.0) == "0 of 4 cells done, 0 s used; the rest is expected to take 100 s"
    states |= {cells[0]: State.DONE, cells[1]: State.TRAINED, cells[2]: State.INTERRUPTED}
    # Left are 10 s of the second, 7.5 + 10 s of the third and 25 s of the fourth, at twice the expected time.
    assert remaining.text(2 * 47.5) == "1 of 4 cells done, 95 s used; the rest is expected to take 105 s"
    states |= dict.fromkeys(cells, State.DONE)
    assert remaining.text(150.0) == "4 of 4 cells done, 2 min used"


def test_an_edition_is_added_up_from_sessions_and_expected_times(tmp_path: Path) -> None:
    """Two of 120 cells in 100 s; other cells of the session count with their share of its time, other devices not at all."""
    known = expected(*(recorded(data, "node", shared=6) for data in ("mnist", "fashion-mnist", "cifar10", "svhn")))
    grid = [cell("mnist", "node", 0), cell("mnist", "node", 1), cell("mnist", "node", 0, "other"), cell("svhn", "node", 0)]
    records: list[dict[str, Any]] = [{"cells": [c.name for c in grid[:2]], "seconds": 100.0, "provenance": {"device": "GPU"}}]
    assert measured_text([], grid, known) == ""
    assert measured_text([{**records[0], "provenance": {"device": "cpu"}}], grid, known) == ""
    text = measured_text(records, grid, known)
    assert text.startswith("Sessions on one GPU made 2 of the 3 cells of the paper in 100 s.")
    assert "an edition takes 2 min" in text  # 100 s + 35 s
    shared = {**records[0], "cells": [c.name for c in grid[:3]], "seconds": 150.0}
    assert measured_text([shared], grid, known) == text


def test_the_record_of_a_session_names_what_it_completed(tmp_path: Path) -> None:
    """What was done before, and trials, are not in it; a session that completes nothing leaves no record."""
    first, second = cell("mnist", "node", 0), cell("mnist", "node", 1)
    made = Made.before([first])
    assert write_record(tmp_path, made, [first], 1.0, "cpu", together=1) is None
    path = write_record(tmp_path, made, [first, second], 12.34, "cpu", together=1)
    assert path is not None
    (content,) = read_records(tmp_path)
    assert content["cells"] == [second.name]
    assert (content["seconds"], content["together"]) == (12.3, 1)
    assert set(content["provenance"]) >= set(MADE) - {"wall_time_s"}
    path.write_text(json.dumps(content)[:-3])
    with pytest.raises(DataError, match="is damaged"):
        read_records(tmp_path)
