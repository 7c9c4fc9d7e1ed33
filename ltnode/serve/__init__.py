"""``ltnode serve``: an HTTP server for trained models, with the explorer page (extra ``serve``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ltnode.errors import require
from ltnode.serve.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ltnode.trained import TrainedModel

__all__ = ["Limits", "create_app"]

_PACKAGE_OF_MODULE = {
    "fastapi": "FastAPI",
    "uvicorn": "uvicorn",
    "python_multipart": "python-multipart",
    "prometheus_client": "prometheus_client",
    "PIL": "Pillow",
}


def check_extra() -> None:
    """Raise `ltnode.errors.MissingExtraError` if a package of the extra ``serve`` is not installed."""
    require(_PACKAGE_OF_MODULE, "serve", "the server")


def create_app(
    models: Sequence[TrainedModel],
    limits: Limits | None = None,
    token: str | None = None,
    *,
    hosts: Sequence[str] = (),
    proxies: Sequence[str] = (),
) -> FastAPI:
    """Build the server as an ASGI application.

    Args:
        models: The models to serve, with distinct names.
        limits: Limits of the server; the defaults suit a machine with two cores.
        token: Token that clients must send as ``Authorization: Bearer TOKEN`` to every path under /api except the sample
            images; None requires no token.
        hosts: Names under which browsers may use the server, besides localhost; ``"*"`` allows every name.
        proxies: Addresses or networks of reverse proxies, whose header X-Forwarded-For names the client.

    Raises:
        MissingExtraError: The extra ``serve`` is not installed.
        InputError: There are no models, or two with the same name.
    """
    check_extra()
    from ltnode.serve.app import make_app
    from ltnode.serve.clients import Access, Clients

    return make_app(models, limits or Limits(), token, Access(hosts), Clients(proxies))
