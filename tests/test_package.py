"""The package as a user gets it: a light import without extras, a typed wheel, one version, shapes checked here."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import statistics
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import jaxtyping
import pytest
import torch

import ltnode.errors
from ltnode._version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTED_AT_ONCE = {"torch", "numpy", "safetensors"}

# Makes the named top-level modules look uninstalled, also to libraries that use them when they are there.
BLOCKER = """
import sys
class Uninstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
blocked = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Uninstalled())
"""

TIMER = """
import sys, time
start = time.perf_counter()
__import__(sys.argv[1])
print(time.perf_counter() - start)
"""


def run_python(code: str, *arguments: str) -> str:
    """Standard output of a fresh interpreter outside the repository, where only the installed package is found."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        cwd=Path.home(),
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def names_of_requirements() -> set[str]:
    """Normalised names of everything pyproject.toml asks for, extras and test tools included."""
    lines = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]
    names = {re.split(r"[^\w.-]", line, maxsplit=1)[0].lower().replace("_", "-") for line in lines}
    return names - {"ltnode"}


def optional_modules() -> set[str]:
    """The import names of all requirements but the three that ``import ltnode`` may use."""
    wanted = names_of_requirements() - IMPORTED_AT_ONCE
    return {
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if module.isidentifier() and any(name.lower().replace("_", "-") in wanted for name in distributions)
    }


def test_the_list_of_optional_modules_is_complete():
    """Guards the two tests below: the names come from metadata, these are the ones CONTRIBUTING.md promises."""
    promised = {"typer", "rich", "pooch", "jaxtyping", "beartype", "scipy", "PIL", "matplotlib", "gpytorch", "sklearn"}
    assert promised <= optional_modules()
    assert not IMPORTED_AT_ONCE & optional_modules()


def test_import_works_with_nothing_but_torch_numpy_and_safetensors():
    """Every public name either is there or raises the error that names its extra; nothing optional is loaded."""
    code = (
        BLOCKER
        + """
import json, ltnode
from ltnode.errors import MissingExtraError
names = [name for name in dir(ltnode) if not name.startswith("_")]
for name in {*names, *getattr(ltnode, "__all__", ())}:
    try:
        getattr(ltnode, name)
    except MissingExtraError as error:
        assert "pip install 'ltnode[" in str(error), error
try:
    import scipy
except ModuleNotFoundError:
    pass
else:
    raise SystemExit("the blocker does not block")
print(json.dumps(sorted(blocked & set(sys.modules))))
"""
    )
    loaded = json.loads(run_python(code, ",".join(sorted(optional_modules()))))
    assert loaded == []


def test_import_of_the_installed_package_loads_no_extra():
    """With the extras installed too: import on use, not when found. jaxtyping is the one exception (ltnode.typing)."""
    heavy = optional_modules() - {"jaxtyping", "beartype"}
    # torch itself may load some of them; only what ltnode adds counts.
    code = "import sys, torch, numpy, safetensors; before = set(sys.modules); import ltnode; "
    code += "print(*(set(sys.modules) - before))"
    assert heavy & set(run_python(code).split()) == set()


def test_import_takes_under_twice_the_time_of_torch():
    """Medians of 3 fresh interpreters each, taken in turn so that other load on the machine meets both alike."""
    run_python(TIMER, "ltnode")  # byte-compiles and fills the file cache
    seconds: dict[str, list[float]] = {"torch": [], "ltnode": []}
    for _ in range(3):
        for module, taken in seconds.items():
            taken.append(float(run_python(TIMER, module)))
    alone, ours = (statistics.median(taken) for taken in seconds.values())
    assert ours < 2 * alone, f"import ltnode takes {ours:.2f} s, import torch {alone:.2f} s"


def test_version_is_the_same_everywhere():
    """The attribute, the installed metadata and the citation name one version."""
    assert ltnode.__version__ == __version__ == importlib.metadata.version("ltnode")
    cited = re.search(r"^version: *(\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert cited is not None
    assert cited.group(1) == ltnode.__version__


def test_the_changelog_has_this_version_and_says_everything_once():
    """A merge of two branches can leave a line twice, in an older and in a newer wording that begins alike."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(__version__)}\] - \d{{4}}-\d\d-\d\d$", changelog, flags=re.MULTILINE)
    beginnings = re.findall(r"^- (.{40})", changelog, flags=re.MULTILINE)
    assert len(beginnings) > 50
    assert sorted(beginnings) == sorted(set(beginnings))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120, env=os.environ)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_the_package_and_its_types_and_nothing_else(wheel: zipfile.ZipFile):
    names = set(wheel.namelist())
    on_disk = {str(path.relative_to(ROOT)) for path in (ROOT / "ltnode").rglob("*.py")}
    assert "ltnode/py.typed" in names
    assert on_disk <= names
    assert {name.split("/")[0] for name in names} == {"ltnode", f"ltnode-{__version__}.dist-info"}


def test_the_wheel_installs_the_command_and_names_the_extras(wheel: zipfile.ZipFile):
    info = f"ltnode-{__version__}.dist-info"
    assert "ltnode = ltnode.cli:main" in wheel.read(f"{info}/entry_points.txt").decode()
    metadata = wheel.read(f"{info}/METADATA").decode()
    assert {"images", "plot", "gp", "sklearn", "all", "dev"} <= set(re.findall(r"^Provides-Extra: (\S+)$", metadata, flags=re.M))


def test_the_wheel_names_its_pages_and_reads_well_on_an_index(wheel: zipfile.ZipFile):
    """An index shows the README without the repository around it, so that every link and image must be absolute."""
    metadata = wheel.read(f"ltnode-{__version__}.dist-info/METADATA").decode()
    urls = dict(re.findall(r"^Project-URL: (\w+), (\S+)$", metadata, flags=re.M))
    assert {"Homepage", "Documentation", "Repository", "Issues", "Changelog"} <= set(urls)
    page = metadata.split("\n\n", 1)[1]
    targets = re.findall(r"\]\(([^)\s]+)\)|(?:src|href|srcset)=\"([^\"]+)\"", page)
    assert targets
    assert [target for pair in targets for target in pair if target and not target.startswith(("https://", "#"))] == []


def test_all_has_every_extra_for_users():
    """`pip install 'ltnode[all]'` is everything but the tools of developers."""
    extras = PROJECT["optional-dependencies"]
    (line,) = extras["all"]
    named = set(line.removeprefix("ltnode[").removesuffix("]").split(","))
    assert named == set(extras) - {"all", "docs", "dev"}


def test_constraints_pin_every_requirement():
    """One exact version each, without a local build suffix, so that `make install` is the tested environment."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert names_of_requirements() <= {name.lower().replace("_", "-") for name in pins}
    assert all(re.fullmatch(r"[\d.]+(post\d+)?", version) for version in pins.values())


typechecked = pytest.mark.skipif(bool(os.environ.get("LTNODE_NO_TYPECHECK")), reason="LTNODE_NO_TYPECHECK is set")

SHAPED = '''
"""A module as the package writes them: postponed annotations, shapes, a name for type checkers only."""
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
from ltnode.typing import Float, Tensor
if TYPE_CHECKING:
    from collections.abc import Callable

def scale(y: Float[Tensor, "S B"], by: Float[Tensor, "S"], then: Callable[[Tensor], Tensor]) -> Float[Tensor, "S B"]:
    return then(y * by[:, None])

@dataclass(frozen=True)
class Pair:
    y: Float[Tensor, "S B"]
    by: Float[Tensor, "S"]
'''


@pytest.fixture
def shaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "shaped_example.py").write_text(SHAPED)
    monkeypatch.syspath_prepend(tmp_path)
    with jaxtyping.install_import_hook("shaped_example", "beartype.beartype"):
        import shaped_example
    yield shaped_example
    sys.modules.pop("shaped_example")


@typechecked
def test_the_package_is_type_checked_while_testing():
    """conftest.py's hook reached the package itself: an int is no iterable of names."""
    with pytest.raises(jaxtyping.TypeCheckError):
        ltnode.errors.unknown_name("method", "dopri", 5)


@typechecked
def test_wrong_shapes_are_caught(shaped):
    """Also with postponed annotations, in dataclasses, and beside a name that exists for type checkers only."""
    y, by = torch.ones(3, 4), torch.ones(4)
    shaped.scale(y, torch.ones(3), torch.sin)
    with pytest.raises(jaxtyping.TypeCheckError):
        shaped.scale(y, by, torch.sin)
    with pytest.raises(jaxtyping.TypeCheckError):
        shaped.scale(y, torch.ones(3), torch.sum)
    with pytest.raises(jaxtyping.TypeCheckError):
        shaped.Pair(y, by)


@typechecked
def test_checked_functions_compile_without_graph_breaks(shaped):
    """The checks step aside while torch.compile traces (fullgraph: a break would raise) and come back after it."""
    y, by = torch.ones(3, 4), torch.full((3,), 2.0)
    compiled = torch.compile(shaped.scale, fullgraph=True, backend="eager")
    assert torch.equal(compiled(y, by, torch.neg), -2 * y)
    with pytest.raises(jaxtyping.TypeCheckError):
        shaped.scale(y, torch.ones(4), torch.neg)


@pytest.mark.no_typecheck
def test_the_marker_switches_the_checks_off(shaped):
    """Then torch's own error comes through, as an error of ltnode's own checks would."""
    with pytest.raises(RuntimeError, match="size of tensor"):
        shaped.scale(torch.ones(3, 4), torch.ones(5), torch.sin)
