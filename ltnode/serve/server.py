"""Runs the application: opens the socket, and on a signal finishes the accepted requests before it returns."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ltnode.errors import InputError
from ltnode.serve import check_extra, create_app
from ltnode.serve.limits import Limits

if TYPE_CHECKING:
    from ltnode.trained import TrainedModel

_BACKLOG = 1024
_GRACE_S = 5.0
"""Additional time beyond its limit that a request may take while the server shuts down."""


def is_local(host: str) -> bool:
    """Whether a server that is bound to this host can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket, or raise an InputError; connections wait from now on, instead of being refused."""
    if not 0 <= port <= 65535:
        raise InputError(f"port must be in 1..65535, or 0 for any free port, not {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot listen on {host} port {port}: {reason}; choose another with --port or --host") from error
    return bound


def address_of(bound: socket.socket) -> str:
    """The address to open in a browser to reach a socket."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    models: Sequence[TrainedModel],
    limits: Limits | None = None,
    token: str | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serve until SIGTERM or SIGINT; then accept nothing new, finish the accepted requests, and return.

    Args:
        models: The models to serve.
        limits: Limits of the server.
        token: Token that is required under /api; None requires none.
        host: Address to bind to.
        port: Port to bind to; 0 chooses a free one.
        ready: Called with the address once the server accepts connections.

    Raises:
        InputError: The address cannot be bound.
        MissingExtraError: The extra ``serve`` is not installed.
    """
    check_extra()
    import uvicorn

    limits = limits or Limits()
    config = uvicorn.Config(
        create_app(models, limits, token),
        log_config=None,
        log_level=logging.WARNING,
        server_header=False,
        date_header=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=int(limits.seconds + _GRACE_S),
    )
    with bind(host, port) as bound, _signals_ignored_at_exit():
        ready(address_of(bound))
        uvicorn.Server(config).run(sockets=[bound])


@contextmanager
def _signals_ignored_at_exit() -> Iterator[None]:
    """Ignore the signal that uvicorn raises again after it has shut down: a server that stops on request did not fail."""
    previous = {number: signal.signal(number, lambda number, frame: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
