"""``ltnode serve``: an HTTP server for trained models, with the explorer page."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ltnode.cli import console
from ltnode.hub import locate
from ltnode.serve import Limits, check_extra, server
from ltnode.trained import TrainedModel

EXAMPLES = ("ltnode serve runs/x", "ltnode serve lt-node-mnist node-mnist --open", "ltnode serve zoo --workers 4")


def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of finished runs or saved models, a folder that contains them, or names of models.", metavar="RUN..."
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to bind to; by default, only this machine can connect.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind to; 0 chooses a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(help="Require this token: 'Authorization: Bearer TOKEN'.", envvar="LTNODE_TOKEN")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Name under which browsers may use the server, besides localhost and --host; can be repeated."),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(help="Address of a reverse proxy whose X-Forwarded-For names the client; can be repeated."),
    ] = None,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait; one more is answered 503 at once.")] = 256,
    max_batch: Annotated[int, typer.Option(help="Most inputs in one batch, collected over requests.")] = 64,
    max_wait_ms: Annotated[float, typer.Option(help="How long a batch waits for requests that are being received.")] = 4.0,
    false_alarm_rate: Annotated[
        float | None, typer.Option(help="Familiarity at or below which inputs are called unfamiliar; by default that of the run.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Longest time of a request, including the time in the queue.")] = 30.0,
    workers: Annotated[
        int, typer.Option(help="Processes that compute predictions; limits and metrics are those of all of them.", min=1)
    ] = 1,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve trained models over HTTP, with the explorer page.

    Paths are described at /openapi.json. Models are loaded from safetensors and JSON only. Ctrl-C or SIGTERM ends the server
    after it has finished the accepted requests, which may take 6 seconds.
    """
    check_extra()
    limits = Limits(max_queue=max_queue, max_batch=max_batch, max_wait_ms=max_wait_ms, seconds=seconds)
    folders = [run for path in runs for run in _run_folders(locate(path))]
    models = [TrainedModel.open(run).with_false_alarm_rate(false_alarm_rate) for run in folders]
    _warn_of_flags(models)
    if not server.is_local(host) and not token:
        warning = f"warning: anyone who can reach {host} can use this server: set --token, or omit --host"
        console.err().print(warning, style="yellow")
    announce = partial(_announce, [trained.name for trained in models], token, open_page)
    hosts, proxies = allow_host or (), trusted_proxy or ()
    where: dict[str, Any] = {"host": host, "port": port, "workers": workers}
    ended = server.serve(models, limits, token or None, hosts=hosts, proxies=proxies, ready=announce, **where)
    if ended is False:
        # The interpreter cannot be taken down under a thread that computes: it would abort.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _warn_of_flags(models: Sequence[TrainedModel]) -> None:
    """Say once which models can never call an input unfamiliar, and why."""
    for problem in dict.fromkeys(trained.flag_problem for trained in models):
        if problem is not None:
            names = [trained.name for trained in models if trained.flag_problem == problem]
            console.warn(f"{', '.join(names)}: {problem}")


def _announce(names: Sequence[str], token: str | None, open_page: bool, address: str) -> None:
    page = f"{address}/#token={token}" if token else address
    console.say(f"Serving {', '.join(names)}")
    console.say(f"Open {page} (Ctrl-C stops)")
    if open_page:
        threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()


def _run_folders(path: Path) -> list[Path]:
    """The folder if it is a run folder, otherwise the run folders in it."""
    if (path / "config.json").exists() or not path.is_dir():
        return [path]
    return sorted(config.parent for config in path.glob("*/config.json")) or [path]
