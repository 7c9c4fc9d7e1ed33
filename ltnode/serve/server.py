"""Running the application: a socket of one's own, signals that finish what was accepted."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ltnode.errors import InputError
from ltnode.serve import check_extra, create_app
from ltnode.serve.limits import Limits

if TYPE_CHECKING:
    from ltnode.trained import TrainedModel

_BACKLOG = 1024
_GRACE_S = 5.0
"""What a request may take on top of its own limit while the server shuts down."""


def is_local(host: str) -> bool:
    """Whether only this machine can reach a server bound to a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A listening socket: from here on connections wait, none is refused.

    Raises:
        InputError: The address is not this machine's, or the port is taken or not allowed.
    """
    if not 0 <= port <= 65535:
        raise InputError(f"port {port} is impossible: choose one of 1 to 65535, or 0 for any free one")
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
    """What to put into a browser to reach a socket."""
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
    """Serve until SIGTERM or SIGINT; then take nothing new, finish what was accepted, and return.

    Args:
        models: What to answer for.
        limits: What a request may ask for.
        token: Wanted under /api.
        host: Address to bind to.
        port: Port; 0 takes a free one.
        ready: Called with the address once connections are taken.

    Raises:
        InputError: The address cannot be bound.
        MissingExtraError: The extra ``serve`` is not installed.
    """
    check_extra()
    import uvicorn

    limits = limits or Limits()
    app = create_app(models, limits, token)
    with bind(host, port) as bound:
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=int(limits.seconds + _GRACE_S),
        )
        server = uvicorn.Server(config)
        before = {number: signal.signal(number, _finished) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            ready(address_of(bound))
            server.run(sockets=[bound])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _finished(number: int, frame: types.FrameType | None) -> None:
    # uvicorn raises the signal again when it is done; a server that was asked to stop and did has not failed.
    pass
