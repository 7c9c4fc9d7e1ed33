"""``ltnode models``: list trained models by name, fetch them, and pack one's own for others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ltnode import hub
from ltnode.cli import console
from ltnode.cli.run_folder import RunFolder

Name = Annotated[str, typer.Argument(help="Name of a model, as `ltnode models` lists it.")]


class _ListByDefault(TyperGroup):
    """A group that lists the models if no command is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line."""
        return super().parse_args(ctx, args or ["list"])


def register(app: typer.Typer) -> None:
    """Add the command."""
    group = typer.Typer(cls=_ListByDefault, rich_markup_mode="rich")
    group.command("list", epilog=console.example("ltnode models list"))(show)
    group.command("fetch", epilog=console.example("ltnode models fetch lt-node-cifar10 --out runs/cifar10"))(fetch)
    group.command("pack", epilog=console.example("ltnode models pack runs --out models"))(pack)
    group.command("push", epilog=console.example("ltnode models push runs/cifar10 me/cifar10 --license mit"))(push)
    examples = console.example("ltnode models", "ltnode models fetch lt-node-mnist")
    app.add_typer(group, name="models", help="List trained models by name, fetch them, or pack your own.", epilog=examples)


def show() -> None:
    """List the models that can be used by name, and whether a network is needed to use them."""
    place, models = hub.list_models()
    rows = [
        (
            name,
            entry.model,
            entry.data or "–",
            " × ".join(map(str, entry.shape)),
            f"{entry.size / 1e6:.1f}",
            "yes" if kept else "no",
        )
        for name, (entry, kept) in models.items()
    ]
    console.table("", ("name", "model", "data", "input", "MB", "on this machine"), rows, words=(0, 1, 2, 5))
    console.say(f"From {place.address}; use a name in place of a run folder: ltnode predict NAME INPUT")


def fetch(
    name: Name,
    out: Annotated[
        Path | None, typer.Option(help="Copy the run folder here, to change it; by default it stays in the cache.")
    ] = None,
) -> None:
    """Fetch a model, so that no network is needed later, or copy it to a folder of your own."""
    folder = hub.fetch_model(name) if out is None else hub.copy_model(name, out)
    console.say(f"{name} is in {folder}")


def pack(
    folder: Annotated[Path, typer.Argument(help="Folder of finished run folders or saved models.")],
    out: Annotated[Path, typer.Option(help="Folder for one archive per model, and their index with checksums.")],
) -> None:
    """Pack run folders, so that others can use them by name: publish the folder, and set LTNODE_MODELS to its address."""
    models = hub.pack_models(folder, out)
    console.say(f"{len(models)} models and their index are in {out}. To use them: LTNODE_MODELS={out.resolve()} ltnode models")


def push(
    run: RunFolder,
    repository: Annotated[str, typer.Argument(help="Repository of the Hugging Face Hub.", metavar="OWNER/NAME")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    license: Annotated[str | None, typer.Option(help="Licence that the model card states, such as mit.")] = None,
) -> None:
    """Publish a run with a model card on the Hugging Face Hub; log in first with hf auth login, or set HF_TOKEN.

    Others open it with ltnode.from_pretrained("OWNER/NAME"), and in commands as hf://OWNER/NAME.
    """
    console.say(f"Published: {hub.push_to_hub(hub.locate(run), repository, private=private, license=license)}")
