"""A server under attack: how long /healthz and an ordinary prediction take meanwhile, and how long the server takes to end.

``python benchmarks/under_attack.py [--seconds 20] [--out FILE]``. Every attack has a new server (``ltnode serve`` with a model of
the zoo and 1,024 descriptors) on 127.0.0.1, and comes from 127.0.0.2; the ordinary client has the address 127.0.0.1. SIGTERM is
sent while the attack continues. Promised: /healthz within 1 s, predictions within 3 s, the end within 10 s.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from serve.attack_files import picture, progressive_bomb  # noqa: E402

import ltnode  # noqa: E402
from ltnode.training import tensor_file  # noqa: E402
from ltnode.training.provenance import source_state  # noqa: E402

GOOD = ROOT / "zoo" / "lt-node-mnist-paper"
SAMPLE = ROOT / "ltnode" / "serve" / "samples" / "digit-3.png"
ATTACKER = "127.0.0.2"
Attack = Callable[[str, threading.Event], None]


def ask(address: str, method: str, path: str, body: bytes = b"", kind: str = "", client: str = "127.0.0.1") -> tuple[int, bytes]:
    """One request on a connection of its own; http.client costs the machine less than larger libraries."""
    host, port = address.removeprefix("http://").split(":")
    link = http.client.HTTPConnection(host, int(port), timeout=60, source_address=(client, 0))
    try:
        link.request(method, path, body, {"Content-Type": kind} if kind else {})
        answer = link.getresponse()
        return answer.status, answer.read()
    finally:
        link.close()


def form(model: str, files: list[bytes]) -> tuple[bytes, str]:
    """The body and content type of a form with files."""
    mark = b"--files\r\nContent-Disposition: form-data; name="
    body = mark + b'"model"\r\n\r\n' + model.encode() + b"\r\n"
    for content in files:
        body += mark + b'"file"; filename="a.png"\r\n\r\n' + content + b"\r\n"
    return body + b"--files--\r\n", "multipart/form-data; boundary=files"


def attack_with(address: str, path: str, body: bytes, kind: str = "application/json") -> None:
    try:
        ask(address, "POST", path, body, kind, ATTACKER)
    except (OSError, http.client.HTTPException):
        time.sleep(0.2)  # refused or closed: the attacker must not take the processor from the server


def repeated(n: int, request: Callable[[str], object]) -> Attack:
    """``n`` clients that send the same request again and again."""

    def attack(address: str, over: threading.Event) -> None:
        def one() -> None:
            while not over.is_set():
                request(address)

        threads = [threading.Thread(target=one, daemon=True) for _ in range(n)]
        for thread in threads:
            thread.start()
        over.wait()

    return attack


def bombs(address: str) -> None:
    attack_with(address, "/api/predict", *form(GOOD.name, [BOMB]))


def many_large(address: str) -> None:
    attack_with(address, "/api/predict", *form(GOOD.name, [LARGE] * 8))


def sweeps(address: str) -> None:
    body = {"models": [GOOD.name] * 8, "angles": list(range(61)), "samples": 100, "sample": "digit-3"}
    attack_with(address, "/api/sweep", json.dumps(body).encode())


def late_model(address: str) -> None:
    attack_with(address, "/api/predict", json.dumps({"model": "late", "inputs": [[0.5, 0.5]], "samples": 10}).encode())


def connect(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10, source_address=(ATTACKER, 0))


def dribble(address: str, over: threading.Event) -> None:
    """1,100 sockets that send a header byte by byte, and are opened again when they are closed."""
    sockets: list[Any] = [None] * 1100
    while not over.is_set():
        for n, one in enumerate(sockets):
            if over.is_set():
                break
            try:
                if one is None:
                    sockets[n] = connect(address)
                    sockets[n].sendall(b"GET / HTTP/1.1\r\nX-A: ")
                else:
                    one.send(b"a")
            except OSError:
                if one is not None:
                    one.close()
                sockets[n] = None
                time.sleep(0.002)  # the attacker must not take the processor from the server
        over.wait(0.05)
    for one in sockets:
        if one is not None:
            one.close()


def almost_whole(address: str, over: threading.Event) -> None:
    """16 sockets, each one byte short of 8 MiB, opened again when they are closed."""
    size = 8 * 1024 * 1024
    head = f"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"

    def one() -> None:
        while not over.is_set():
            try:
                with connect(address) as link:
                    link.sendall(head.encode() + b" " * (size - 1))
                    link.settimeout(60)
                    link.recv(1000)
            except OSError:
                over.wait(0.1)

    for _ in range(16):
        threading.Thread(target=one, daemon=True).start()
    over.wait()


BOMB = progressive_bomb(1000)
LARGE = picture(4000, 4000, "I;16")
ATTACKS: dict[str, Attack] = {
    "1 decoding bombs": repeated(6, bombs),
    "1 eight 16-bit images": repeated(6, many_large),
    "2 dribbled headers": dribble,
    "3 a model with endless end-times": repeated(6, late_model),
    "6 bodies one byte short": almost_whole,
    "7 sweeps": repeated(6, sweeps),
}


def hostile_model(folder: Path) -> Path:
    """A model whose files pass every check, but whose posterior asks for end-times far beyond its prediction grid."""
    model = ltnode.build("lt-node", ltnode.InputSpec((2,), "classification", 3), preset="default", seed=0, width=4)
    ltnode.save(model, folder)
    path = folder / "model.safetensors"
    tensors = tensor_file.read(path)
    tensors["grid"] = torch.tensor([0.0, 1e-7], dtype=torch.float64)
    path.write_bytes(tensor_file.to_bytes(tensors))
    return folder


class Probe:
    """Asks again and again, and keeps the longest time and what went wrong."""

    def __init__(self, address: str) -> None:
        self.address, self.over = address, threading.Event()
        self.slowest = {"healthz": 0.0, "prediction": 0.0}
        self.count = {"healthz": 0, "prediction": 0}
        self.failures: list[str] = []
        body = form(GOOD.name, [SAMPLE.read_bytes()])
        self.threads = [
            threading.Thread(target=self._ask, args=("healthz", 0.1, "GET", "/healthz")),
            threading.Thread(target=self._ask, args=("prediction", 0.2, "POST", "/api/predict", *body)),
        ]

    def _ask(self, name: str, pause: float, *request: Any) -> None:
        while not self.over.is_set():
            began = time.monotonic()
            try:
                status, text = ask(self.address, *request)
                problem = "" if status == 200 else f"{name} {status} {text[:100]!r}"
            except (OSError, http.client.HTTPException) as error:
                problem = f"{name} {type(error).__name__}"
            self.slowest[name] = max(self.slowest[name], time.monotonic() - began)
            self.count[name] += 1
            self.failures += [problem] if problem else []
            self.over.wait(pause)


def memory_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    except (OSError, IndexError):
        return 0.0


def start(folders: list[Path], log: Any) -> tuple[subprocess.Popen[str], str]:
    command = ["bash", "-c", 'ulimit -n 1024; exec "$@"', "serve", sys.executable, "-m", "ltnode.cli", "serve"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, *map(str, folders), "--port", "0"], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
    )
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"Open (http://\S+)", line):
            return process, found[1]
    raise SystemExit("the server did not start")


def measure(name: str, attack: Attack, seconds: float, folders: list[Path]) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as log:
        process, address = start(folders, log)
        try:
            ask(address, "POST", "/api/predict", *form(GOOD.name, [SAMPLE.read_bytes()]))
            probe, over, peak = Probe(address), threading.Event(), 0.0
            attacker = threading.Thread(target=attack, args=(address, over), daemon=True)
            for thread in (attacker, *probe.threads):
                thread.start()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                peak = max(peak, memory_mib(process.pid))
                time.sleep(0.1)
            probe.over.set()
            for thread in probe.threads:
                thread.join(40)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            status = process.wait(60)
            ended = time.monotonic() - began
            over.set()
            log.seek(0, os.SEEK_END)
            log_bytes = log.tell()
            log.seek(0)
            said = log.read()
        finally:
            process.kill()
    record = {
        "attack": name,
        "seconds": seconds,
        "healthz_slowest_s": round(probe.slowest["healthz"], 3),
        "prediction_slowest_s": round(probe.slowest["prediction"], 3),
        "healthz_requests": probe.count["healthz"],
        "predictions": probe.count["prediction"],
        "failures": probe.failures[:5],
        "memory_peak_mib": round(peak),
        "log_bytes": log_bytes,
        "log_end": said[-1500:] if "Traceback" in said else "",
        "sigterm_s": round(ended, 2),
        "status": status,
    }
    held = probe.slowest["healthz"] <= 1 and probe.slowest["prediction"] <= 3 and not probe.failures and ended <= 10
    return record | {"held": held}


def refused_folder(folder: Path) -> dict[str, Any]:
    """``ltnode serve`` with a reversed grid: how long until it is refused, and with which words."""
    ltnode.save(ltnode.build("lt-node", "mnist", seed=0, width=8), folder)
    path = folder / "model.safetensors"
    tensors = tensor_file.read(path)
    tensors["grid"] = tensors["grid"].flip(0).contiguous()
    path.write_bytes(tensor_file.to_bytes(tensors))
    began = time.monotonic()
    command = [sys.executable, "-m", "ltnode.cli", "serve", str(folder), "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    return {
        "attack": "3 a reversed grid",
        "status": done.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "says": done.stderr[-300:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    parser.add_argument("--out", type=Path, default=None)
    chosen = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folders = [GOOD, hostile_model(Path(scratch) / "late")]
        for name, attack in ATTACKS.items():
            if chosen.only in name:
                rows.append(measure(name, attack, chosen.seconds, folders))
                print(json.dumps(rows[-1]), flush=True)
        rows.append(refused_folder(Path(scratch) / "reversed"))
        print(json.dumps(rows[-1]), flush=True)
    if chosen.out is not None:
        record = {"provenance": {**source_state(), "cores": os.cpu_count(), "load": os.getloadavg()}, "attacks": rows}
        chosen.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
