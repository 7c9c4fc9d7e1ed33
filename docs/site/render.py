"""Run the tutorials and the gallery, and record what their cells print and draw: ``python docs/site/render.py [SCRIPT...]``.

The site shows the records of ``docs/rendered``, so that building it takes no training. Scripts run one after another with one
thread each, in an empty folder, as notebooks do: cells share names, and the value of a last expression is printed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from drawings import ADAPTIVE, adaptive
from notebooks import RENDERED, ROOT, Cell, Output, Record, place, read_cells, scripts

import ltnode
from ltnode.report.style import themed

_CYCLE = (*ADAPTIVE.hues, ADAPTIVE.text, ADAPTIVE.faint)
"""Colours C0 to C7. As in matplotlib's own cycle, C7 is grey, so that a script looks alike without our style."""


def run_script(script: Path) -> tuple[Record, dict[str, str]]:
    """Run all cells of a script in the current folder; return the record, and its figures by name."""
    import torch

    torch.set_num_threads(1)
    names: dict[str, Any] = {"__name__": "__main__"}
    drawings: dict[str, str] = {}
    outputs = []
    start, started_cpu = time.perf_counter(), time.process_time()
    with _styled():
        for number, cell in enumerate(cell for cell in read_cells(script) if cell.is_code):
            text, svgs = _run_cell(cell, names, f"{script.name}, code cell {number}")
            if svgs and not cell.alt:
                raise ValueError(f'{script.name}, code cell {number} draws a figure: describe it with # %% alt="..."')
            figures = {str(len(drawings) + n): svg for n, svg in enumerate(svgs, start=1)}
            drawings.update(figures)
            outputs.append(Output(cell.digest, text, tuple(figures)))
    versions = {"python": platform.python_version(), "torch": torch.__version__, "ltnode": ltnode.__version__}
    seconds = round(time.perf_counter() - start, 1), round(time.process_time() - started_cpu, 1)
    return Record(*seconds, versions, tuple(outputs)), drawings


@contextlib.contextmanager
def _styled() -> Iterator[None]:
    """The style of our figures, and a backend without a window."""
    import matplotlib as mpl

    mpl.use("Agg")
    with themed(ADAPTIVE):
        settings = {"axes.prop_cycle": mpl.cycler(color=_CYCLE), "figure.constrained_layout.use": True}
        with mpl.rc_context(settings):
            yield


def _run_cell(cell: Cell, names: dict[str, Any], where: str) -> tuple[str, list[str]]:
    """Run a cell; return what it printed, and the figures that it showed or left open."""
    import matplotlib.pyplot as plt

    tree = ast.parse(cell.source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, svgs = io.StringIO(), []

    def show(*_: Any, **__: Any) -> None:
        for number in plt.get_fignums():
            picture = io.StringIO()
            plt.figure(number).savefig(picture, format="svg", metadata={"Date": None})
            svgs.append(adaptive(picture.getvalue()))
        plt.close("all")

    shown, plt.show = plt.show, show
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, where, "exec", dont_inherit=True), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), where, "eval", dont_inherit=True), names)
                if value is not None:
                    print(value)
            show()
    finally:
        plt.show = shown
    return printed.getvalue(), svgs


def write(script: Path, record: Record, drawings: dict[str, str], out: Path = RENDERED) -> None:
    """Write a record and its figures in place of those of an earlier run."""
    stem = out / place(script)
    stem.parent.mkdir(parents=True, exist_ok=True)
    for old in stem.parent.glob(f"{stem.name}-[0-9]*.svg"):
        old.unlink()
    for name, svg in drawings.items():
        stem.with_name(f"{stem.name}-{name}.svg").write_text(svg, encoding="utf-8")
    stem.with_name(f"{stem.name}.json").write_text(record.to_json(), encoding="utf-8")


def _in_own_process(script: Path, out: Path) -> None:
    """Run a script in a process and an empty folder of its own, so that nothing of another one reaches it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--here", "--out", str(out), str(script)]
        subprocess.run(command, cwd=folder, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", type=Path, help="scripts (default: all)")
    parser.add_argument("--out", type=Path, default=RENDERED, help="folder of the records")
    parser.add_argument("--here", action="store_true", help="run in this process and folder")
    arguments = parser.parse_args()
    for script in [path.resolve() for path in arguments.scripts] or scripts():
        if arguments.here:
            record, drawings = run_script(script)
            write(script, record, drawings, arguments.out)
            time_taken = f"{record.seconds:.0f} s ({record.cpu_seconds:.0f} s on the processor)"
            print(f"{script.relative_to(ROOT)}: {time_taken}, {len(drawings)} figures", flush=True)
        else:
            _in_own_process(script, arguments.out.resolve())


if __name__ == "__main__":
    main()
