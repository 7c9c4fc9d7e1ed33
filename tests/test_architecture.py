"""The shape of the code: dependencies point one way, and habits that a reader would otherwise have to remember.

The rules are read from the table in CONTRIBUTING.md, so that text and test cannot drift apart. Each checker is also run
on sources written to break its rule: a checker that cannot fail checks nothing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "ltnode"
PUBLIC_NAMES = "__init__"  # the unit that stands for the package's own __init__.py
GRAB_BAGS = {"utils", "util", "misc", "helpers", "common"}
REFERENCE_UNITS = ("ode", "endtime", "objective", "models")
"""What a reader studies first: it must not depend on anything that only makes it fast."""
ALWAYS_INSTALLED = {"torch", "numpy", "safetensors", "jaxtyping", PACKAGE}
"""`import ltnode` may import these and the standard library; every other package is imported where it is used."""
LONGEST_FILE = 400
LONGEST_FUNCTION = 40


@dataclass(frozen=True)
class Layers:
    """Which unit (a folder or a module directly under the package) is in which layer, and what a layer may import."""

    of_unit: dict[str, int]
    may_import: dict[int, frozenset[int]]


def read_layers(markdown: str) -> Layers:
    """Layers from the rows ``| number | `unit`, `unit/` | what it may import |`` of a Markdown text."""
    of_unit: dict[str, int] = {}
    may_import: dict[int, frozenset[int]] = {}
    for number, units, allowed in re.findall(r"^\| *(\d+) *\|([^|]*)\|([^|]*)\|", markdown, flags=re.MULTILINE):
        layer = int(number)
        of_unit.update(dict.fromkeys((name.rstrip("/") for name in re.findall(r"`([\w/]+)`", units)), layer))
        bounds = [int(digits) for digits in re.findall(r"\d+", allowed)]
        may_import[layer] = frozenset(range(min(bounds), max(bounds) + 1)) if bounds else frozenset()
    return Layers(of_unit, may_import)


def unit_of(module: str) -> str:
    """``ltnode.ode.step`` belongs to ``ode``; ``ltnode`` itself to the public names."""
    return module.split(".")[1] if "." in module else PUBLIC_NAMES


def imports(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything imported, wherever it stands: top level, function, type checking.

    For ``from a import b`` the name is ``a.b``, whether b is a module or not.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, base] if base else parts)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def misplaced_imports(source: str, module: str, layers: Layers, *, is_package: bool = False) -> list[str]:
    """What a module imports from the package although its layer may not, as lines for a reader."""
    unit = unit_of(module)
    if unit not in layers.of_unit:
        return [f"{module}: {unit!r} is in no layer; add it to the table in CONTRIBUTING.md"]
    layer = layers.of_unit[unit]
    found = []
    for line, name in imports(source, module, is_package):
        if name.split(".")[0] != PACKAGE:
            continue
        target = unit_of(name)
        if target not in layers.of_unit:
            if name.count(".") > 1:  # a module in no layer, which is reported once, at that module
                continue
            target = PUBLIC_NAMES  # `from ltnode import build`, unlike `from ltnode import errors`
        if target != unit and layers.of_unit[target] not in layers.may_import[layer]:
            found.append(f"{module}:{line}: layer {layer} may not import {name} (`{target}`, layer {layers.of_unit[target]})")
    return found


def foreign_imports(source: str, module: str, forbidden: str) -> list[str]:
    return [
        f"{module}:{line}: imports {name}"
        for line, name in imports(source, module, is_package=False)
        if name.split(".")[0] == forbidden
    ]


def prints(source: str, module: str) -> list[str]:
    return [
        f"{module}:{node.lineno}: print()"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def grab_bags(paths: list[Path]) -> list[str]:
    return [f"{path}: name the file after its concept" for path in paths if GRAB_BAGS & {*path.parts, path.stem}]


def _top_level(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Import statements that run when the module is imported: not those in functions or for type checkers."""
    waiting: list[ast.AST] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names]


class ImportGraph:
    """Which modules of the package import which, and which third-party packages that needs, when they are imported."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._known = set(sources)
        self._direct = {name: [n for node in _top_level(ast.parse(text)) for n in _names(node)] for name, text in sources.items()}

    def module(self, name: str) -> str | None:
        """The module of the package that a dotted name lies in."""
        parts = name.split(".")
        prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
        return next((prefix for prefix in prefixes if prefix in self._known), None)

    def reached(self, start: str) -> set[str]:
        """Every dotted name that importing a module imports, directly or through other modules of the package."""
        names: set[str] = set()
        waiting, done = [start], set()
        while waiting:
            module = waiting.pop()
            if module in done:
                continue
            done.add(module)
            names.add(module)
            for name in self._direct[module]:
                names.add(name)
                own = self.module(name)
                if own is not None:
                    # Importing a.b.c also runs the __init__ of a.b; that of the package itself is running already.
                    parents = (".".join(own.split(".")[:n]) for n in range(2, own.count(".") + 2))
                    waiting += [parent for parent in parents if parent in self._known]
        return names

    def needs_an_extra(self, start: str) -> bool:
        """Whether importing a module imports a package that may not be installed."""
        packages = {name.split(".")[0] for name in self.reached(start)}
        return bool(packages - ALWAYS_INSTALLED - set(sys.stdlib_module_names))


def lazy_imports(sources: dict[str, str]) -> list[str]:
    """Imports of package modules inside functions that no optional extra explains: they are there to hide a cycle."""
    graph, found = ImportGraph(sources), []
    for module, text in sources.items():
        tree = ast.parse(text)
        at_import = set(_top_level(tree))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Import | ast.ImportFrom) or node in at_import:
                continue
            for name in _names(node):
                target = graph.module(name)
                in_function = _inside_function(tree, node)
                if in_function and target is not None and not graph.needs_an_extra(target):
                    found.append(f"{module}:{node.lineno}: {name} is imported in a function although it needs no extra")
    return found


def _inside_function(tree: ast.Module, wanted: ast.AST) -> bool:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return any(wanted is inner for function in functions for inner in ast.walk(function))


def long_functions(source: str) -> tuple[int, list[str]]:
    """The number of functions, and the names of those that are longer than a screen."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return len(functions), [f.name for f in functions if (f.end_lineno or 0) - f.lineno + 1 > LONGEST_FUNCTION]


@dataclass(frozen=True)
class Module:
    name: str
    source: str
    is_package: bool
    path: Path


def modules_of_the_package() -> list[Module]:
    found = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        relative = path.relative_to(ROOT)
        is_package = path.name == "__init__.py"
        parts = relative.parts[:-1] if is_package else relative.with_suffix("").parts
        found.append(Module(".".join(parts), path.read_text(encoding="utf-8"), is_package, relative))
    return found


LAYERS = read_layers((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
MODULES = modules_of_the_package()


def test_the_table_of_layers_was_read():
    """Guards the other tests: a table that no longer parses must not turn them into tests of nothing."""
    assert len(MODULES) > 5
    assert sorted(LAYERS.may_import) == list(range(len(LAYERS.may_import)))
    assert {"errors", "ode", "endtime", "objective", "models", "cli", PUBLIC_NAMES} <= set(LAYERS.of_unit)
    assert LAYERS.may_import[LAYERS.of_unit["ode"]] == {LAYERS.of_unit["errors"]}


def test_every_layer_imports_only_lower_ones():
    """So the table itself allows no cycle between folders."""
    assert all(max(allowed, default=-1) < layer for layer, allowed in LAYERS.may_import.items())


def test_dependencies_between_folders_point_one_way():
    found = [
        line for module in MODULES for line in misplaced_imports(module.source, module.name, LAYERS, is_package=module.is_package)
    ]
    assert not found, "\n".join(found)


def test_nothing_imports_torchvision():
    """It cannot be imported beside the CPU build of torch that the tests use."""
    found = [line for module in MODULES for line in foreign_imports(module.source, module.name, "torchvision")]
    assert not found, "\n".join(found)


def test_the_package_does_not_print():
    found = [line for module in MODULES for line in prints(module.source, module.name)]
    assert not found, "\n".join(found)


def test_no_file_is_a_grab_bag():
    found = grab_bags([module.path for module in MODULES])
    assert not found, "\n".join(found)


def test_the_reference_knows_nothing_of_the_acceleration():
    """Also not through another module: `models/` and `ode/` can be read, run and tested without a kernel."""
    graph = ImportGraph({module.name: module.source for module in MODULES})
    for module in MODULES:
        if unit_of(module.name) in REFERENCE_UNITS:
            fast = {name for name in graph.reached(module.name) if name.startswith(f"{PACKAGE}.accelerate")}
            assert not fast, f"{module.name} reaches {sorted(fast)}"


def test_no_import_inside_a_function_hides_a_cycle():
    found = lazy_imports({module.name: module.source for module in MODULES})
    assert not found, "\n".join(found)


def test_files_fit_on_a_few_screens():
    """Python, CUDA and JavaScript: nobody should have to hold more than one concept per file in mind."""
    files = [p for p in (ROOT / PACKAGE).rglob("*") if p.suffix in {".py", ".cu", ".cuh", ".js"}]
    lengths = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in files}
    too_long = {name: n for name, n in lengths.items() if n > LONGEST_FILE}
    assert not too_long, too_long


def test_few_functions_are_longer_than_a_screen():
    counted = [(module.name, *long_functions(module.source)) for module in MODULES]
    total = sum(n for _, n, _ in counted)
    long = [f"{name}.{function}" for name, _, functions in counted for function in functions]
    assert len(long) <= 0.02 * total, f"{len(long)} of {total}: {', '.join(long)}"


@pytest.mark.parametrize(
    ("module", "is_package", "source"),
    [
        ("ltnode.ode.step", False, "from ltnode.models import LatentTimeODE"),
        ("ltnode.ode.step", False, "import ltnode.endtime"),
        ("ltnode.ode.step", False, "from ..models import blocks"),
        ("ltnode.ode.step", False, "from .. import models"),
        ("ltnode.ode", True, "from ..models import blocks"),
        ("ltnode.errors", False, "from .typing import Tensor"),
        ("ltnode.endtime", False, "def lazy():\n    from ltnode.objective import elbo"),
        ("ltnode.endtime", False, "if TYPE_CHECKING:\n    from ltnode.cli import main"),
        ("ltnode.models.blocks", False, "import importlib\nimportlib.import_module('ltnode.training.engine')"),
        ("ltnode.data.synthetic", False, "from ltnode import build"),
        ("ltnode.models.blocks", False, "import ltnode"),
        ("ltnode.surprise", False, ""),
    ],
)
def test_a_misplaced_import_is_found(module: str, is_package: bool, source: str):
    """The checker can fail: absolute, relative, lazy, type-checking and dynamic imports, and a unit without a layer."""
    assert len(misplaced_imports(source, module, LAYERS, is_package=is_package)) == 1


@pytest.mark.parametrize(
    ("module", "is_package", "source"),
    [
        (
            "ltnode.models.blocks",
            False,
            "from ltnode.ode import solve\nfrom ltnode import errors\nfrom .. import typing",
        ),
        (
            "ltnode.ode",
            True,
            "from .step import step\nfrom ltnode.ode.tableau import DOPRI5\nfrom ..errors import InputError",
        ),
        ("ltnode", True, "from .models import LatentTimeODE\nfrom ltnode._version import __version__"),
        ("ltnode.cli", False, "import ltnode\nfrom ltnode.demo import demo\nimport torch, ltnode_extension"),
    ],
)
def test_an_import_of_a_lower_layer_passes(module: str, is_package: bool, source: str):
    """The checker does not cry wolf: own folder, lower layers, public names from the command line, other packages."""
    assert misplaced_imports(source, module, LAYERS, is_package=is_package) == []


def test_the_other_checkers_can_fail():
    assert prints("def f():\n    print('x')", "m") == ["m:2: print()"]
    assert prints("console.print('x')  # print()", "m") == []
    assert foreign_imports("def f():\n    from torchvision.ops import nms", "m", "torchvision")
    assert foreign_imports("import torchvisionary", "m", "torchvision") == []
    assert grab_bags([Path("ltnode/utils.py"), Path("ltnode/misc/a.py"), Path("ltnode/common.py")])
    assert grab_bags([Path("ltnode/ode/step.py")]) == []
    assert long_functions("def f():\n" + "    x = 1\n" * 40) == (1, ["f"])
    assert long_functions("def f():\n" + "    x = 1\n" * 39) == (1, [])


def test_the_checker_of_lazy_imports_tells_cycles_from_extras():
    """A function may import a module that needs an optional package, directly or through another one; nothing else."""
    sources = {
        "ltnode": "",
        "ltnode.a": "def f():\n    from ltnode import b",
        "ltnode.b": "import ltnode.a",
        "ltnode.page": "import fastapi",
        "ltnode.site": "from ltnode.page import x",
        "ltnode.c": "def f():\n    import ltnode.site\n    from ltnode.page import x",
        "ltnode.d": "if TYPE_CHECKING:\n    from ltnode.a import f",
    }
    assert [line.split(":")[0] for line in lazy_imports(sources)] == ["ltnode.a"]
    assert ImportGraph(sources).needs_an_extra("ltnode.site")
