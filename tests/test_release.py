"""The workflows call what exists and cover what the package promises, and the notes of a release come from the changelog."""

from __future__ import annotations

import itertools
import re
import shlex
import tomllib
from typing import Any

import pytest
from repository import ROOT, load_script, repository_file

from ltnode._version import __version__

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = ["ci", "release"]
RELEASED = """# Changelog

## [Unreleased]
- Later.

## [1.2.0] - 2030-01-02
### Added
- This.

## [1.1.0] - 2029-01-02
- That.
"""


def workflow(name: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load(repository_file(f".github/workflows/{name}.yml").read_text(encoding="utf-8"))


def commands(job: dict[str, Any]) -> list[str]:
    return [command for step in job["steps"] if "run" in step for command in re.split(r"&&|\n", step["run"])]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_call_what_the_repository_has(name: str):
    """Scripts, tests and targets; a step either runs commands or uses an action of a stated version."""
    targets = set(re.findall(r"^([a-z][\w-]*):", repository_file("Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    called = []
    for job in workflow(name)["jobs"].values():
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
        for command in commands(job):
            words = shlex.split(command)
            called += [word for word in words if re.match(r"(\.ci|tests|zoo|ltnode)/", word)]
            assert words[0] != "make" or set(words[1:]) <= targets
    assert called
    assert [path for path in called if not (ROOT / path).exists()] == []


def test_the_tests_run_on_every_python_system_and_both_ends_of_torch():
    """Every Python of the classifiers, on three systems, with the newest torch; on each system once with the oldest."""
    matrix = workflow("ci")["jobs"]["test"]["strategy"]["matrix"]
    promised = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert set(matrix["python"]) == promised == {"3.11", "3.12", "3.13"}
    assert set(matrix["os"]) == {"ubuntu-latest", "macos-latest", "windows-latest"}
    runs = {(*pair, "newest") for pair in itertools.product(matrix["os"], matrix["python"])}
    runs |= {(run["os"], run["python"], run["torch"]) for run in matrix["include"]}
    assert {system for system, _, torch in runs if torch == "oldest"} == set(matrix["os"])
    assert len(runs) == 12


def test_the_oldest_versions_are_the_lower_bounds():
    oldest = load_script(".ci/oldest_versions.py").oldest_versions
    assert oldest(["torch>=2.8", "numpy>=1.26.4", "safetensors>=0.4", "rich>=13", "typer>=0.19"]) == [
        "torch==2.8.0", "numpy==1.26.4", "safetensors==0.4.0", "typer==0.19.0"
    ]  # fmt: skip
    assert len(oldest(PROJECT["dependencies"])) == 4


def test_only_the_publishing_job_may_publish_and_nothing_has_a_password():
    """Trusted publishing: an identity for one job in a protected environment; the rest of the workflow can read only."""
    release = workflow("release")
    jobs = release["jobs"]
    assert release["permissions"] == {"contents": "read"}
    assert jobs["publish"]["environment"] == "release" and jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in repository_file(".github/workflows/release.yml").read_text(encoding="utf-8")
    uses = [step["uses"].partition("@")[0] for step in jobs["build"]["steps"] if "uses" in step]
    assert "actions/attest-build-provenance" in uses
    assert jobs["announce"]["needs"] == "build" and jobs["publish"]["needs"] == "announce"


def test_the_notes_of_a_release_are_its_section():
    notes = load_script(".ci/release_notes.py").release_notes
    assert notes("v1.2.0", "1.2.0", RELEASED) == "### Added\n- This.\n"
    assert notes("v1.1.0", "1.1.0", RELEASED) == "- That.\n"
    assert notes(f"v{__version__}", __version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("tag", "version", "reason"),
    [
        ("v1.2.1", "1.2.0", "the tag must be v1.2.0"),
        ("1.2.0", "1.2.0", "the tag must be v1.2.0"),
        ("v1.3.0", "1.3.0", "no section with a date for 1.3.0"),
    ],
)
def test_a_wrong_tag_and_a_missing_section_stop_the_release(tag: str, version: str, reason: str):
    with pytest.raises(ValueError, match=re.escape(reason)):
        load_script(".ci/release_notes.py").release_notes(tag, version, RELEASED)
