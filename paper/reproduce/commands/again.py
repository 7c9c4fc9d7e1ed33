"""``ltnode reproduce again``: evaluate stored networks with another way of predicting, to test why numbers differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode.cli import console
from ltnode.errors import InputError, unknown_name
from ltnode.evaluation import PROTOCOLS
from paper.reproduce.causes.again import CHANGES, evaluate_again
from paper.reproduce.commands.options import RESUME
from paper.reproduce.folder import PaperFolder
from paper.reproduce.images.grid import load_grid

_ABOUT = "; ".join(f"{name} ({change.about})" for name, change in CHANGES.items())


def register(group: typer.Typer) -> None:
    """Add the command."""
    example = "ltnode reproduce again zoo/lt-node-mnist-paper --changes truncated,quantiles --protocols ood"
    group.command("again", epilog=console.example(example))(reproduce_again)


def reproduce_again(
    run: Annotated[Path, typer.Argument(help="A finished run of the grid, such as one of the zoo.")],
    changes: Annotated[str, typer.Option(help=f"What is different, separated by commas: {_ABOUT}.")] = ",".join(CHANGES),
    protocols: Annotated[str, typer.Option(help=f"Some of {', '.join(PROTOCOLS)}.")] = "clean,ood",
    out: Annotated[Path | None, typer.Option(help="Folder of the records; by default PAPER/results.")] = None,
    paper: Annotated[Path, typer.Option(help="Folder with the grid and the results.")] = Path("paper"),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
) -> None:
    """Evaluate the network of a run once more, with another way of predicting and the same weights.

    `paper/causes.toml` says which hypotheses these numbers test, and `ltnode reproduce claims` what came out.
    """
    folder = PaperFolder(paper)
    names, chosen = console.words(changes), console.words(protocols)
    for kind, words, known in (("change", names, CHANGES), ("protocol", chosen, PROTOCOLS)):
        for word in words:
            if word not in known:
                raise InputError(unknown_name(kind, word, known))
    with console.resumable(RESUME):
        for name in names:
            console.say(f"{run.name}: {CHANGES[name].about}")
            _, path = evaluate_again(run, name, chosen, out or folder.results, load_grid(folder.grid), device)
            console.say(f"made {path}")
