"""The options of commands that can use many processes or machines."""

from __future__ import annotations

from typing import Annotated

import typer

Engine = Annotated[str, typer.Option(help="local: processes of this machine; ray: a Ray cluster.")]
OptionalEngine = Annotated[
    str | None, typer.Option(help="Train elsewhere. local: processes of this machine; ray: a Ray cluster.")
]
Address = Annotated[
    str | None, typer.Option(help="Address of the Ray cluster, such as auto or ray://host:10001; by default a new one here.")
]
Jobs = Annotated[int | None, typer.Option(help="Most trainings or predictions at the same time; chosen by default.", min=1)]
Threads = Annotated[int, typer.Option(help="Threads, and CPUs of the cluster, of each of them.", min=1)]
Gpus = Annotated[
    float | None, typer.Option(help="Share of a GPU that each of them needs on Ray, such as 0.25; chosen by default.", min=0)
]
