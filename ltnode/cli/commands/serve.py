"""``ltnode serve``: trained models behind an HTTP interface, with the explorer page."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "serve",
        epilog=console.example(
            "ltnode serve runs/x", "ltnode serve zoo/lt-node-mnist-paper zoo/node-mnist --open", "ltnode serve zoo"
        ),
    )(serve)


def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of finished runs or saved models, or a folder of such.", metavar="RUN..."),
    ],
    host: Annotated[str, typer.Option(help="Address to bind to; the default is reached from this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(help="Ask for this token: 'Authorization: Bearer TOKEN'.", envvar="LTNODE_TOKEN")
    ] = None,
    max_queue: Annotated[int, typer.Option(help="Requests that may wait; one more is answered 503 at once.")] = 256,
    max_batch: Annotated[int, typer.Option(help="Inputs of one pass through a model, collected over requests.")] = 64,
    max_wait_ms: Annotated[float, typer.Option(help="How long a first request waits for others, in milliseconds.")] = 4.0,
    seconds: Annotated[float, typer.Option(help="Longest time of a request, waiting included.")] = 30.0,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve trained models: predictions, trajectories and the explorer page; the interface is described at /openapi.json.

    Loads safetensors and JSON only. Ctrl-C or SIGTERM finishes what was accepted and ends.
    """
    from ltnode.serve import Limits, check_extra
    from ltnode.serve.server import is_local
    from ltnode.serve.server import serve as serve_models
    from ltnode.trained import TrainedModel

    check_extra()
    limits = Limits(max_queue=max_queue, max_batch=max_batch, max_wait_ms=max_wait_ms, seconds=seconds)
    models = [TrainedModel.open(run) for path in runs for run in _run_folders(path)]
    if not is_local(host) and not token:
        console.err().print(
            f"warning: everybody who reaches {host} can use this server: set --token, or leave --host out", style="yellow"
        )

    def announce(address: str) -> None:
        page = f"{address}/#token={token}" if token else address
        console.say(f"Serving {', '.join(trained.name for trained in models)}")
        console.say(f"Open {page} (Ctrl-C stops)")
        if open_page:
            threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()

    serve_models(models, limits, token or None, host=host, port=port, ready=announce)


def _run_folders(path: Path) -> list[Path]:
    """The folder itself, or the run folders in one that is not a run."""
    if (path / "config.json").exists() or not path.is_dir():
        return [path]
    return sorted(config.parent for config in path.glob("*/config.json")) or [path]
