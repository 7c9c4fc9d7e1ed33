"""``ltnode serve``: trained models behind an HTTP interface, with the explorer page (extra ``serve``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ltnode.errors import missing_extra
from ltnode.serve.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ltnode.trained import TrainedModel

__all__ = ["Limits", "create_app"]

_NEEDED = {"fastapi": "FastAPI", "uvicorn": "uvicorn", "python_multipart": "python-multipart", "PIL": "Pillow"}


def check_extra() -> None:
    """Raise `ltnode.errors.MissingExtraError` where a package of the extra ``serve`` is not installed."""
    for module, package in _NEEDED.items():
        try:
            found = importlib.util.find_spec(module) is not None
        except ValueError:  # a module that was marked as not there
            found = False
        if not found:
            raise missing_extra(package, "serve", "the server")


def create_app(models: Sequence[TrainedModel], limits: Limits | None = None, token: str | None = None) -> FastAPI:
    """The server as an ASGI application.

    Args:
        models: What it answers for; names must differ.
        limits: What a request may ask for; the defaults suit two cores.
        token: Asked for as ``Authorization: Bearer TOKEN`` on everything under /api but the sample pictures; None asks nobody.

    Raises:
        MissingExtraError: The extra ``serve`` is not installed.
        InputError: No models, or two of the same name.
    """
    check_extra()
    from ltnode.serve.app import make_app

    return make_app(models, limits or Limits(), token)
