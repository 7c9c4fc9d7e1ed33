"""The commit of a result: git's where there is a repository, LTNODE_COMMIT's where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ltnode.errors import ConfigError
from ltnode.training.provenance import source_state


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """The answer is kept for the life of a process."""
    source_state.cache_clear()
    yield
    source_state.cache_clear()


def test_without_git_the_environment_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTNODE_COMMIT", "3e66a10")
    assert source_state(tmp_path) == {"git_commit": "3e66a10", "git_modified": None}


def test_without_git_and_environment_it_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LTNODE_COMMIT", raising=False)
    assert source_state(tmp_path) == {"git_commit": None, "git_modified": None}


def test_what_is_no_commit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LTNODE_COMMIT", "main")
    with pytest.raises(ConfigError, match="7 to 40 hexadecimal digits"):
        source_state(tmp_path)


def test_a_repository_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable left over from elsewhere does not change what git says; a tree without git has nothing to say."""
    monkeypatch.setenv("LTNODE_COMMIT", "3e66a10")
    if not (Path(__file__).parents[2] / ".git").exists():
        pytest.skip("this is no clone")
    assert source_state()["git_commit"] != "3e66a10"
