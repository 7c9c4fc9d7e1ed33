"""The names that users rely on: few, documented with an example that runs, and with warnings where one has changed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

import ltnode
from ltnode.cli.app import make_app

PAGES = sorted((Path(__file__).parents[1] / "docs" / "reference").glob("*.md"))
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
DESCRIBED = re.findall(r"^::: ltnode\.([\w.]+)$", REFERENCE, flags=re.MULTILINE)
EXAMPLES = "\n".join(re.findall(r"```python\n(.*?)```", REFERENCE, flags=re.DOTALL))


@pytest.mark.parametrize("name", ltnode.__all__)
def test_every_public_name_has_an_example(name: str):
    """tests/test_readme.py runs the examples of the pages."""
    assert re.search(rf"\bltnode\.{name}\b", EXAMPLES), f"docs/reference has no example of ltnode.{name}"


def test_every_public_name_is_described_once():
    """``::: ltnode.NAME`` puts signature and docstring on the page; a module stands for its public members."""
    assert len(DESCRIBED) == len(set(DESCRIBED))
    assert {name.partition(".")[0] for name in DESCRIBED} == set(ltnode.__all__) - {"__version__"}


def test_the_reference_names_nothing_else():
    mentioned = set(re.findall(r"\bltnode\.(\w+)", REFERENCE))
    assert mentioned <= set(ltnode.__all__)


def test_the_reference_names_every_command():
    page = next(page for page in PAGES if page.name == "command-line.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `ltnode ([\w-]+)` \|", page, flags=re.MULTILINE)
    assert sorted(named) == sorted(get_command(make_app()).commands)


def test_there_are_about_forty():
    """A list that a newcomer can read: adding a name should mean that another one goes."""
    assert len(set(ltnode.__all__) - {"__version__"}) <= 45


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("KeptGrid", ltnode.TrainingGrid),
        ("ResultRow", ltnode.evaluation.ResultRow),
        ("gamma_kl", ltnode.endtime.gamma_kl),
        ("Solution", ltnode.ode.Solution),
    ],
)
def test_old_names_still_work_and_warn(old: str, new: object):
    with pytest.warns(DeprecationWarning, match=f"ltnode.{old} is deprecated"):
        assert getattr(ltnode, old) is new


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'LatentTimeODEs'"):
        _ = ltnode.LatentTimeODEs
