"""Trainings in separate processes, which tests kill or start several of."""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
import sys
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch

import ltnode
from training.tiny import tiny_config, tiny_data, tiny_model


def context() -> ForkServerContext:
    """Fork processes from a server that has imported torch: they start quickly and do not inherit the threads of the tests."""
    made = mp.get_context("forkserver")
    made.set_forkserver_preload(["torch._dynamo", "ltnode.training", "training.child"])
    return made


def train(out: str, name: str, changes: dict[str, Any], options: dict[str, Any], environment: dict[str, str]) -> None:
    """Train a tiny model, resuming an existing run; an error is written to a log next to the folder, with exit code 3."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    rank = environment.get("RANK", "0")
    log = Path(out).with_name(f"{Path(out).name}-{rank}.log")
    Path(out).with_name("began").touch()
    try:
        ltnode.fit(tiny_model(name, **options), tiny_data(), tiny_config(**changes), out=out, resume=True)
    except ltnode.LTNodeError as error:
        log.write_text(f"{type(error).__name__}: {error}")
        sys.exit(3)


def start(out: Path, name: str = "lt-node", changes: Any = None, options: Any = None, environment: Any = None) -> Any:
    process = context().Process(target=train, args=(str(out), name, changes or {}, options or {}, environment or {}))
    process.start()
    return process


def start_workers(out: Path, world: int, **arguments: Any) -> list[Any]:
    """Start one process per rank with the environment variables of torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    return [start(out, environment={**shared, "RANK": str(r), "LOCAL_RANK": str(r)}, **arguments) for r in range(world)]
