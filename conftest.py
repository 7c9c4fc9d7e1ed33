"""What every test shares: shape checks, fixed seeds, hypothesis settings, and when to skip.

Environment:
    LTNODE_NO_TYPECHECK=1   run without the shape checks (jaxtyping + beartype), for instance to time something; where one of
                            the two is not installed, or Triton is, they are off, and the header of the run says so
    LTNODE_DATA=FOLDER      the image sets in their official formats; tests marked ``realdata`` skip without it
    CI=1                    hypothesis draws the same examples on every run
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

try:
    import beartype  # noqa: F401  (named by the import hook below)
    import jaxtyping
except ImportError:
    jaxtyping = None  # type: ignore[assignment]

try:
    import typer  # noqa: F401
except ImportError:
    collect_ignore = ["tests/training/test_concurrent.py"]  # its last test needs the command line


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "").lower() not in {"", "0", "false"}


HAS_TRITON = find_spec("triton") is not None
CHECKED = jaxtyping is not None and not HAS_TRITON and not _is_set("LTNODE_NO_TYPECHECK")
"""Whether the shape types are checked. Triton compiles kernels from their source and fails on the wrappers of the checks."""


def _unchecked_while_compiling() -> type:
    """The class of jaxtyping's settings, with the checks off inside torch.compile and torch.export.

    Both trace the wrapper that the import hook puts around a function, and stop at its use of ``inspect``.
    """

    class UncheckedWhileCompiling(type(jaxtyping.config)):  # type: ignore[misc]
        @property
        def jaxtyping_disable(self) -> bool:
            return self._switched_off or torch.compiler.is_compiling()

        @jaxtyping_disable.setter
        def jaxtyping_disable(self, value: bool) -> None:
            self._switched_off = value

    return UncheckedWhileCompiling


def _check_shapes_of_the_package() -> None:
    """Check every annotated function of ltnode at run time; must come before the first import of ltnode."""
    if "ltnode" in sys.modules:
        raise pytest.UsageError("ltnode was imported before conftest.py: its shapes would go unchecked")
    switched_off = jaxtyping.config.__dict__.pop("jaxtyping_disable")
    jaxtyping.config.__class__ = _unchecked_while_compiling()
    jaxtyping.config.jaxtyping_disable = switched_off
    jaxtyping.install_import_hook("ltnode", "beartype.beartype")


if CHECKED:
    _check_shapes_of_the_package()

# Several processes share the cores, and sums of several threads have other last bits than those of the processes of the tests.
torch.set_num_threads(1)

_COMMON = {
    "deadline": None,  # a first call compiles or loads things; pytest-timeout guards against hanging
    "max_examples": 40,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("ltnode", **_COMMON)
settings.register_profile("ltnode-ci", **_COMMON, derandomize=True, database=None)
settings.load_profile("ltnode-ci" if _is_set("CI") else "ltnode")


def pytest_report_header() -> str | None:
    return (
        None
        if CHECKED
        else "shape checks: off (LTNODE_NO_TYPECHECK is set, Triton is installed, or jaxtyping or beartype is not installed)"
    )


@pytest.hookimpl(tryfirst=True)  # before pytest selects by -m, so that a marker added here counts
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    no_gpu = pytest.mark.skip(reason="needs a CUDA device")
    no_data = pytest.mark.skip(reason="needs the real image sets: set LTNODE_DATA to their folder")
    for item in items:
        if "real_data_root" in getattr(item, "fixturenames", ()):
            item.add_marker("realdata")
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if item.get_closest_marker("posix") and sys.platform == "win32":
            item.add_marker(pytest.mark.skip(reason="needs the signals, pipes or limits of Linux and macOS"))
        if item.get_closest_marker("realdata") and not os.environ.get("LTNODE_DATA"):
            item.add_marker(no_data)


@pytest.fixture(autouse=True)
def _same_start_for_every_test() -> Iterator[None]:
    """Seed the global generators before, and undo a changed default dtype after, each test."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  (the oracles draw from numpy's global generator)
    torch.manual_seed(0)
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_dtype(dtype)


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Let every test be interrupted by SIGINT, also if pytest runs in the background, where the shell ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _shape_checks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Turn the shape checks off for a test marked ``no_typecheck``: there ltnode's own message must come first."""
    if not CHECKED or request.node.get_closest_marker("no_typecheck") is None:
        yield
        return
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture
def rng() -> np.random.Generator:
    """A numpy generator with a fixed seed."""
    return np.random.default_rng(0)


@pytest.fixture
def generator() -> torch.Generator:
    """A torch generator with a fixed seed, apart from the global one."""
    return torch.Generator().manual_seed(0)


@pytest.fixture
def real_data_root() -> Path:
    """The folder of the real image sets (LTNODE_DATA); a wrong path fails rather than skips."""
    root = Path(os.environ["LTNODE_DATA"])
    if not root.is_dir():
        pytest.fail(f"LTNODE_DATA={root} is not a folder: point it to the image sets, or unset it to skip these tests")
    return root
