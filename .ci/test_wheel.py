"""Install the wheel and the source distribution into fresh environments and use them outside of the clone: ``make test-wheel``.

1. Build both; the wheel from the clone and the wheel from the unpacked source distribution must hold the same files.
2. The wheel without extras: ``ltnode demo`` gives a result and says what to add for pictures; every command that needs an extra
   names it before any work begins.
3. The wheel with the extras of the five-minute start: its blocks (docs/start.md) one after the other, then predict, serve and
   export, and a model by its name.
4. The source distribution: it installs, trains and predicts, and some of its own tests pass in its folder.

``--keep FOLDER`` works there and leaves it; ``--free`` installs the newest versions that pyproject.toml allows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import venv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from test_readme import SHELLS, sections  # noqa: E402  (the blocks of a page, as its test reads them)

LIMIT_S = 900
START = ROOT / "docs" / "start.md"
BLOCKS = r"""
import json, subprocess, sys
names = {"__name__": "page"}
for language, line, text in json.load(open(sys.argv[1], encoding="utf-8")):
    print(f"docs/start.md:{line}", flush=True)
    if language == "python":
        exec(compile("\n" * (line - 1) + text, "docs/start.md", "exec"), names)
    elif subprocess.run(text, shell=True, stdin=subprocess.DEVNULL).returncode:
        sys.exit(f"docs/start.md:{line}: the command failed: {text}")
"""
PREDICTS = """
import ltnode, torch
model = ltnode.build("lt-node", "concentric", seed=0, width=8)
ltnode.fit(model, ltnode.data.load("concentric"), ltnode.TrainConfig(epochs=2, device="cpu"), out="runs/rings")
(row,) = ltnode.TrainedModel.open("runs/rings").rows(torch.zeros(1, 2))
print(ltnode.__version__, ltnode.__file__, row.name, row.entropy, row.familiarity)
"""


class Environment:
    """A fresh virtual environment with one installed file, and an empty folder to work in, both outside of the clone."""

    def __init__(self, folder: Path, requirement: str, *, tested: bool) -> None:
        self.folder, self.work = folder, folder / "work"
        self.work.mkdir(parents=True)
        venv.create(folder / "env", with_pip=True)
        self.bin = folder / "env" / ("Scripts" if os.name == "nt" else "bin")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LTNODE_"))}
        self.variables = {
            **kept,
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "MPLBACKEND": "Agg",
            "PYTHONIOENCODING": "utf-8",
            "LTNODE_CACHE": str(folder / "cache"),
        }
        self.install(requirement, tested=tested)

    def install(self, requirement: str, *, tested: bool) -> None:
        """Install a requirement, with the versions that are tested if asked for."""
        constraints = ("-c", str(ROOT / "constraints.txt")) if tested else ()
        self.run("python", "-m", "pip", "install", "-q", "--disable-pip-version-check", *constraints, requirement)

    def run(self, *command: str, fails: bool = False) -> str:
        """What a command writes; it must succeed, or, with ``fails``, end with a status that says that it did not."""
        done = self._run(command)
        said = done.stdout + done.stderr
        if (done.returncode != 0) != fails:
            raise SystemExit(f"`{' '.join(command)}` ended with {done.returncode}:\n{said[-4000:]}")
        if "Traceback" in said:
            raise SystemExit(f"`{' '.join(command)}` shows a traceback:\n{said[-4000:]}")
        return said

    def _run(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        program = shutil.which(command[0], path=str(self.bin))
        if program is None:
            raise SystemExit(f"the package did not install the command {command[0]}")
        words = [program, *command[1:]]
        return subprocess.run(
            words, cwd=self.work, env=self.variables, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, encoding="utf-8", timeout=LIMIT_S, check=False,
        )  # fmt: skip

    @contextmanager
    def server(self, *arguments: str) -> Iterator[str]:
        """The address of ``ltnode serve``, which is ended afterwards."""
        program = str(shutil.which("ltnode", path=str(self.bin)))
        command = [program, "serve", *arguments, "--port", "0"]
        here = {"cwd": self.work, "env": self.variables, "encoding": "utf-8"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **here) as process:
            try:
                assert process.stdout is not None
                lines: list[str] = []
                for line in process.stdout:
                    lines.append(line)
                    if found := re.search(r"Open (http://[^\s/]+)", line):
                        yield found[1]
                        return
                raise SystemExit("the server did not start:\n" + "".join(lines))
            finally:
                process.terminate()


def expect(condition: bool, claim: str) -> None:
    """End with the claim that is not true; ``assert`` would do nothing under ``python -O``."""
    if not condition:
        raise SystemExit(f"not true: {claim}")


def built(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution; their packages hold the same files."""
    hatch = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(hatch, cwd=ROOT, check=True, capture_output=True, timeout=LIMIT_S)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder / "source", filter="data")
    (unpacked,) = (folder / "source").iterdir()
    again = folder / "again"
    subprocess.run([*hatch[:-1], str(again), "-t", "wheel"], cwd=unpacked, check=True, capture_output=True, timeout=LIMIT_S)
    names = [set(zipfile.ZipFile(path).namelist()) for path in (wheel, *again.glob("*.whl"))]
    expect(names[0] == names[1], f"both wheels hold the same files; they differ in {sorted(names[0] ^ names[1])[:5]}")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {source.name}: {source.stat().st_size / 1e6:.1f} MB")
    return wheel, source


def without_extras(wheel: Path, folder: Path, tested: bool) -> None:
    """The demo has a result and names the extra for pictures; a missing extra is named before anything is written."""
    plain = Environment(folder, str(wheel), tested=tested)
    said = plain.run("ltnode", "demo", "--out", "demo")
    expect("pip install 'ltnode[plot]'" in said, "the demo says what to install for figures")
    expect("LT-NODE" in said and (plain.work / "demo" / "index.html").exists(), "the demo prints its table and writes its page")
    run = "demo/runs/lt-node"
    (plain.work / "t.csv").write_text("size,price\n" + "".join(f"{n},{2 * n}\n" for n in range(60)))
    (plain.work / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (plain.work / "s.toml").write_text('[data]\nname = "concentric"\n')
    (plain.work / "photos" / "cat").mkdir(parents=True)
    (plain.work / "photos" / "cat" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    needs = {
        "plot": ("report", run, "--out", "new"),
        "serve": ("serve", run),
        "onnx": ("export", run, "--out", "new"),
        "tables": ("train", "--data", "t.csv", "--target", "price", "--out", "new"),
        "images": ("train", "--data", "photos", "--out", "new"),
        "gp": ("train", "--model", "node-gp", "--data", "concentric", "--out", "new"),
        "tensorboard": ("train", "--model", "lt-node", "--data", "concentric", "--set", "tensorboard=true", "--out", "new"),
        "cluster": ("sweep", "s.toml", "--out", "new"),
        "hub": ("models", "push", run, "me/model"),
    }
    for extra, command in needs.items():
        start = time.monotonic()
        said, called = plain.run("ltnode", *command, fails=True), f"`ltnode {' '.join(command)}`"
        expect(f"'ltnode[{extra}]'" in said, f"{called} names the extra {extra}, not: {said}")
        expect(not (plain.work / "new").exists(), f"{called} writes nothing")
        print(f"  {extra}: named after {time.monotonic() - start:.1f} s")
    said = plain.run("python", "-c", "import ltnode\ntry: ltnode.LTNodeClassifier\nexcept ImportError as error: print(error)")
    expect("'ltnode[sklearn]'" in said, "the estimators name their extra")


def five_minutes(wheel: Path, folder: Path, tested: bool) -> None:
    """The blocks of the five-minute start, and then what they lead to."""
    page = START.read_text(encoding="utf-8")
    extras = re.findall(r"pip install 'ltnode(\[[\w,]+\])'", page)[0]
    with_extras = Environment(folder, f"{wheel}{extras}", tested=tested)
    blocks = [
        (block.language if block.language == "python" else "shell", block.line, text)
        for section in sections(page)
        for block in section.blocks
        if not block.not_run
        for text in ([block.text] if block.language == "python" else block.commands if block.language in SHELLS else [])
    ]
    expect(len(blocks) >= 6, "the five-minute start has its blocks")
    (folder / "blocks.json").write_text(json.dumps(blocks), encoding="utf-8")
    (folder / "blocks.py").write_text(BLOCKS, encoding="utf-8")
    print(with_extras.run("python", str(folder / "blocks.py"), str(folder / "blocks.json")))
    answers = json.loads((with_extras.work / "predictions.json").read_text(encoding="utf-8"))
    flagged = [row["unfamiliar"] for row in answers["predictions"]]
    expect(flagged == [False, True], f"the large flat is flagged and the other is not: {flagged}")

    with with_extras.server("runs/flats") as address:
        with urllib.request.urlopen(f"{address}/", timeout=60) as page_of_server:
            expect("html" in page_of_server.headers["content-type"], "the server has its page")
        body = json.dumps({"rows": [{"size": 80, "city": "Bern"}]}).encode()
        asked = urllib.request.Request(f"{address}/api/predict", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            served = json.loads(answer.read())
    expect("familiarity" in json.dumps(served), "the server answers with a familiarity")

    with_extras.install(f"{wheel}[onnx]", tested=tested)
    with_extras.run("ltnode", "export", "runs/flats", "--out", "flats.onnx")
    expect((with_extras.work / "flats.onnx").stat().st_size > 0, "the model is exported")
    with_extras.variables["LTNODE_MODELS"] = str(folder / "models")
    with_extras.run("ltnode", "models", "pack", str(ROOT / "zoo"), "--out", str(folder / "models"))
    expect("lt-node-cifar10" in with_extras.run("ltnode", "models"), "models are listed by name")
    code = "import ltnode, torch; print(ltnode.from_pretrained('lt-node-cifar10').rows(torch.rand(2, 3, 32, 32))[0].unfamiliar)"
    expect("True" in with_extras.run("python", "-c", code), "a model by its name flags noise")


def source_distribution(source: Path, folder: Path, tested: bool) -> None:
    """It installs and works, and tests in its unpacked folder pass: everything that they need came along."""
    environment = Environment(folder, str(source), tested=tested)
    said = environment.run("python", "-c", PREDICTS)
    expect(str(ROOT) not in said, f"the installed package is used, not the clone: {said}")
    environment.run("ltnode", "demo", "--help")
    (unpacked,) = (source.parent / "source").iterdir()
    chosen = [
        "tests/metrics",
        "tests/ode/test_tableau.py",
        "tests/trained/test_run_folders.py",
        "tests/test_package.py",
        "-k",
        "not import",
    ]
    command = [sys.executable, "-m", "pytest", *chosen, "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=unpacked, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    expect(done.returncode == 0, f"tests of the source distribution pass:\n{done.stdout[-3000:]}")
    print(f"  its tests: {done.stdout.strip().splitlines()[-1]}")


def main() -> None:
    """Do all of it and say how long each part took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="an empty folder to work in, which stays")
    parser.add_argument("--free", action="store_true", help="the newest versions allowed, not those of constraints.txt")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ltnode-packages-") as temporary:
        folder = (arguments.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        wheel, source = built(folder / "dist")
        for name, step, file in (
            ("the wheel without extras", without_extras, wheel),
            ("the five-minute start", five_minutes, wheel),
            ("the source distribution", source_distribution, source),
        ):
            start = time.monotonic()
            print(f"==== {name}", flush=True)
            step(file, folder / name.replace(" ", "-"), not arguments.free)
            print(f"ok, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
