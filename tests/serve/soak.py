"""Mixed traffic to a server for a while: ``python -m serve.soak --seconds 3600`` (in ``tests/``).

The server is a process of its own on 127.0.0.1. Ordinary clients predict arrays and images; others send damaged files, decoding
bombs, sweeps, half requests, and disconnect. Once a minute the memory, descriptors and processes of the server are written down.
The run fails if an ordinary request fails, if anything is answered 500, if the log has a traceback, or if memory or descriptors
in the last quarter exceed those of the second quarter by more than a tenth. It ends by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
from fuzz.mutation import mutated_bytes, mutated_json

from serve.attack_files import picture, progressive_bomb
from serve.serving import CELLS, images

PROGRAM = """
from ltnode.serve.server import serve
from serve.serving import classifier, line, table_model
models = [classifier("lt"), classifier("alt", "alt-node"), line(), table_model()]
serve(models, port=0, ready=lambda address: print(address, flush=True))
"""
PAUSE_SECONDS = 0.05
"""Between two requests of a client, so that the number of requests is bounded on any machine."""
ORDINARY = 4
EARLY = "0001-01-01T00:00:00+14:00"
"""A date that is before the first year in UTC."""


def server_processes(pid: int) -> list[int]:
    """The server and its decoding processes."""
    children = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *(int(child) for of_thread in children for child in of_thread)]


def resident_mib(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Traffic:
    """The clients, and what they were answered."""

    def __init__(self, address: str, until: float) -> None:
        self.address, self.until = address, until
        self.ordinary: Counter[str] = Counter()
        self.hostile: Counter[str] = Counter()
        self.slowest = 0.0

    async def ordinary_client(self, number: int) -> None:
        rng = random.Random(number)
        arrays = {"model": "lt", "inputs": images(1, number).tolist(), "samples": 3}
        file = {"model": "lt", "images": [base64.b64encode(picture(64, 64)).decode()], "samples": 3}
        rows = {"model": "table", "rows": [CELLS] * 3, "samples": 3}
        transport = httpx.AsyncHTTPTransport(local_address=f"127.0.0.{10 + number}")
        async with httpx.AsyncClient(transport=transport, base_url=self.address, timeout=30) as client:
            while time.monotonic() < self.until:
                began = time.monotonic()
                try:
                    answer = await client.post("/api/predict", json=rng.choice((arrays, file, rows)))
                    self.ordinary[str(answer.status_code)] += 1
                except httpx.HTTPError as error:
                    self.ordinary[type(error).__name__] += 1
                self.slowest = max(self.slowest, time.monotonic() - began)
                await asyncio.sleep(PAUSE_SECONDS)

    async def hostile_client(self, number: int) -> None:
        rng = random.Random(1000 + number)
        transport = httpx.AsyncHTTPTransport(local_address=f"127.0.0.{100 + number}")
        corpus = [picture(30, 30), picture(30, 30, "RGB", "JPEG"), progressive_bomb(3, 256)]
        async with httpx.AsyncClient(transport=transport, base_url=self.address, timeout=40) as client:
            while time.monotonic() < self.until:
                try:
                    self.hostile[await self._attack(client, corpus, rng)] += 1
                except httpx.HTTPError as error:
                    self.hostile[type(error).__name__] += 1
                await asyncio.sleep(rng.uniform(0, 10 * PAUSE_SECONDS))

    async def _attack(self, client: httpx.AsyncClient, corpus: list[bytes], rng: random.Random) -> str:
        match rng.randrange(11):
            case 0:
                body = {"model": "lt", "images": [base64.b64encode(progressive_bomb(200)).decode()]}
                return str((await client.post("/api/predict", json=body)).status_code)
            case 1:
                sweep = {"models": ["lt", "alt"] * 4, "angles": list(range(61)), "sample": "digit-3", "samples": 20}
                return str((await client.post("/api/sweep", json=sweep)).status_code)
            case 2 | 3:
                damaged = mutated_bytes(rng.choice(corpus), corpus, rng)
                form = {"file": ("x.png", damaged, "image/png")}
                return str((await client.post("/api/predict", data={"model": "lt", "samples": "1"}, files=form)).status_code)
            case 4:
                content = mutated_bytes(b'{"model": "lt", "inputs": [[[1, 2], [3, 4]]]}', [b"[[["], rng)
                answer = await client.post("/api/predict", content=content, headers={"content-type": "application/json"})
                return str(answer.status_code)
            case 5:
                return await self._half_request()
            case 6:
                return str((await client.post("/api/predict", headers={"origin": "http://evil.example"})).status_code)
            case 7:
                effect = {"model": "table", "row": CELLS, "column": rng.choice(list(CELLS)), "points": 500, "samples": 100}
                return str((await client.post("/api/effect", json=effect)).status_code)
            case 8:
                content = mutated_json(json.dumps({"model": "table", "rows": [CELLS, {**CELLS, "sold": EARLY}]}).encode(), rng)
                answer = await client.post("/api/predict", content=content, headers={"content-type": "application/json"})
                return str(answer.status_code)
            case 9:
                long = {"model": "lt", "sample": "digit-3", "points": 500, "samples": 100, "explain": True}
                return str((await client.post("/api/trajectory", json={**long, "change": {"epsilon": 0.3}})).status_code)
            case _:
                task = asyncio.create_task(client.post("/api/trajectory", json={"model": "lt", "sample": "digit-3"}))
                await asyncio.sleep(rng.uniform(0, 0.05))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return "cancelled"

    async def _half_request(self) -> str:
        host, port = self.address.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.200", 0))
        writer.write(b"POST /api/predict HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        await writer.drain()
        if random.random() < 0.5:
            writer.close()
        return "half"


async def watch(process: subprocess.Popen[str], until: float, rows: list[tuple[float, int, int]], every: float) -> None:
    """Write down memory, descriptors and number of processes."""
    began = time.monotonic()
    while time.monotonic() < until:
        await asyncio.sleep(every)
        mib = resident_mib(process.pid)
        rows.append((mib, len(list(Path(f"/proc/{process.pid}/fd").iterdir())), len(server_processes(process.pid))))
        print(
            f"{time.monotonic() - began:7.0f} s  {mib:7.1f} MiB  {rows[-1][1]:4d} descriptors  {rows[-1][2]} processes",
            flush=True,
        )


async def soak(process: subprocess.Popen[str], address: str, seconds: float) -> tuple[Traffic, list[tuple[float, int, int]]]:
    until = time.monotonic() + seconds
    traffic, rows = Traffic(address, until), []
    clients = [traffic.ordinary_client(number) for number in range(ORDINARY)]
    clients += [traffic.hostile_client(number) for number in range(3)]
    await asyncio.gather(*clients, watch(process, until, rows, min(60.0, seconds / 12)))
    return traffic, rows


def verdicts(traffic: Traffic, rows: list[tuple[float, int, int]], log: str) -> list[str]:
    """What is wrong; empty if all is well."""
    quarter = max(1, len(rows) // 4)
    early, late = rows[quarter : 2 * quarter] or rows[:1], rows[-quarter:]
    problems = []
    for column, name, slack in ((0, "memory (MiB)", 32), (1, "descriptors", 16), (2, "processes", 1)):
        before, after = (max(row[column] for row in part) for part in (early, late))
        if after > 1.1 * before + slack:
            problems.append(f"{name} grew from {before:.0f} to {after:.0f}")
    if set(traffic.ordinary) != {"200"}:
        problems.append(f"ordinary requests were answered {dict(traffic.ordinary)}")
    if "500" in traffic.hostile:
        problems.append(f"{traffic.hostile['500']} requests were answered 500")
    if "Traceback" in log or len(log) > 100_000:
        problems.append(f"the log has {len(log)} characters:\n{log[-2000:]}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    chosen = parser.parse_args()
    with tempfile.TemporaryFile("w+") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address), "the server did not start"
            traffic, rows = asyncio.run(soak(process, address, chosen.seconds))
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            status = process.wait(30)
            log.seek(0)
            problems = verdicts(traffic, rows, log.read())
        finally:
            process.kill()
    if status != 0:
        problems.append(f"the server ended with status {status}")
    print(f"ordinary {dict(traffic.ordinary)}, slowest {traffic.slowest:.2f} s; hostile {dict(traffic.hostile)}")
    print(f"ended {time.monotonic() - began:.1f} s after SIGTERM with status {status}")
    print("\n".join(problems) or "nothing lost, memory and descriptors flat")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
