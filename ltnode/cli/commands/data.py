"""``ltnode data``: get the image sets, look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ltnode import data as data_sets
from ltnode.cli import console
from ltnode.data import SetInfo

Root = Annotated[Path | None, typer.Option(help="Data folder; by default LTNODE_DATA, else the user's cache folder.")]
Name = Annotated[str, typer.Argument(help=f"One of {', '.join(data_sets.SPECS)}.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
    group.command("fetch", epilog=console.example("ltnode data fetch cifar10"))(fetch)
    group.command("import", epilog=console.example("ltnode data import mnist ~/Downloads/mnist"))(import_files)
    group.command("info", epilog=console.example("ltnode data info"))(info)
    group.command("sheet", epilog=console.example("ltnode data sheet svhn --out svhn.png"))(sheet)
    app.add_typer(
        group,
        name="data",
        help="Download, import and look at the image sets.",
        epilog=console.example("ltnode data fetch mnist", "ltnode data info"),
    )


def fetch(
    name: Name,
    root: Root = None,
    mirror: Annotated[str | None, typer.Option(help="Address of a folder with the official files; the checksums stay.")] = None,
) -> None:
    """Download an image set, verify it, and keep it; a download that broke is continued."""
    with console.resumable("Run the same command again: it continues with what has arrived."):
        _show([data_sets.fetch(name, root, base_url=mirror)])


def import_files(
    name: Name,
    folder: Annotated[Path, typer.Argument(help="Where the official files are.")],
    root: Root = None,
    unverified: Annotated[bool, typer.Option("--unverified", help="Accept content that is not the official one.")] = False,
) -> None:
    """Take the official files of an image set that are already on this machine."""
    _show([data_sets.import_files(name, folder, root, unverified=unverified)])


def info(root: Root = None) -> None:
    """What is there of every image set."""
    console.say(f"Data folder: {data_sets.data_root(root)}")
    _show(data_sets.info(root))


def sheet(
    name: Name,
    out: Annotated[Path | None, typer.Option(help="The PNG to write; by default NAME.png.")] = None,
    root: Root = None,
    columns: Annotated[int, typer.Option(help="Images per class.", min=1)] = 12,
) -> None:
    """Write a picture with some images of every class."""
    console.say(f"{data_sets.contact_sheet(name, out or Path(f'{name}.png'), root=root, columns=columns)}")


def _show(sets: list[SetInfo]) -> None:
    rows = [
        (
            entry.name,
            entry.status if not entry.detail else f"{entry.status}: {entry.detail}",
            " × ".join(map(str, entry.shape)),
            str(entry.n_train or "–"),
            str(entry.n_test or "–"),
            f"{entry.n_bytes / 1e6:.0f}" if entry.n_bytes else "–",
            entry.source or "–",
        )
        for entry in sets
    ]
    console.table("", ("set", "status", "shape", "training", "test", "MB", "content"), rows, words=(0, 1, 6))
