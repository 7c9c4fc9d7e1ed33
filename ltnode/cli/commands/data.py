"""``ltnode data``: download, import and inspect the image data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ltnode import data as data_sets
from ltnode.cli import console
from ltnode.data import SetInfo

Root = Annotated[Path | None, typer.Option(help="Data folder; by default LTNODE_DATA, or the cache folder of the user.")]
Name = Annotated[str, typer.Argument(help=f"One of {', '.join(data_sets.SPECS)}.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    group.command("fetch", epilog=console.example("ltnode data fetch cifar10"))(fetch)
    group.command("import", epilog=console.example("ltnode data import mnist ~/Downloads/mnist"))(import_files)
    group.command("info", epilog=console.example("ltnode data info"))(info)
    group.command("sheet", epilog=console.example("ltnode data sheet svhn --out svhn.png"))(sheet)
    examples = console.example("ltnode data fetch mnist", "ltnode data info")
    app.add_typer(group, name="data", help="Download, import and inspect the image data sets.", epilog=examples)


def fetch(
    name: Name,
    root: Root = None,
    mirror: Annotated[
        str | None, typer.Option(help="Address of another folder with the official files; the checksums are still verified.")
    ] = None,
) -> None:
    """Download an image data set and verify it; an interrupted download is continued."""
    with console.resumable("Run the same command again: it continues the download."):
        _show([data_sets.fetch(name, root, base_url=mirror)])


def import_files(
    name: Name,
    folder: Annotated[Path, typer.Argument(help="Folder with the official files.")],
    root: Root = None,
    unverified: Annotated[bool, typer.Option("--unverified", help="Accept files that differ from the official ones.")] = False,
) -> None:
    """Import the official files of an image data set from a folder."""
    _show([data_sets.import_files(name, folder, root, unverified=unverified)])


def info(root: Root = None) -> None:
    """List the image data sets and whether they are complete."""
    console.say(f"Data folder: {data_sets.data_root(root)}")
    _show(data_sets.info(root))


def sheet(
    name: Name,
    out: Annotated[Path | None, typer.Option(help="PNG file to write; by default NAME.png.")] = None,
    root: Root = None,
    columns: Annotated[int, typer.Option(help="Images per class.", min=1)] = 12,
) -> None:
    """Write a PNG file with some images of every class."""
    console.say(f"{data_sets.contact_sheet(name, out or Path(f'{name}.png'), root=root, columns=columns)}")


def _show(sets: Sequence[SetInfo]) -> None:
    rows = []
    for entry in sets:
        status = f"{entry.status}: {entry.detail}" if entry.detail else entry.status
        megabytes = f"{entry.n_bytes / 1e6:.0f}" if entry.n_bytes else "–"
        counts = (str(entry.n_train or "–"), str(entry.n_test or "–"), megabytes)
        rows.append((entry.name, status, " × ".join(map(str, entry.shape)), *counts, entry.source or "–"))
    console.table("", ("set", "status", "shape", "training", "test", "MB", "content"), rows, words=(0, 1, 6))
