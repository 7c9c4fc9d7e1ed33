"""Runs the application: opens the socket, and on a signal finishes the accepted requests before it returns."""

from __future__ import annotations

import gc
import ipaddress
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ltnode.allocator import keep_memory
from ltnode.errors import InputError
from ltnode.serve import check_extra, quiet_log
from ltnode.serve.limits import Limits

if TYPE_CHECKING:
    import uvicorn

    from ltnode.trained import TrainedModel

_BACKLOG = 1024
"""Connections that wait in the kernel; a client whose connection finds no place tries again after a second."""
_EVERYWHERE = ("0.0.0.0", "::")


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
    hosts: Sequence[str] = (),
    proxies: Sequence[str] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    ready: Callable[[str], None] = lambda address: None,
) -> bool:
    """Serve until SIGTERM or SIGINT; then accept nothing new, finish the accepted requests within the grace time, and return.

    Args:
        models: The models to serve.
        limits: Limits of the server.
        token: Token that is required under /api; None requires none.
        hosts: Names under which browsers may use the server, besides localhost and ``host``; ``"*"`` allows every name.
        proxies: Addresses or networks of reverse proxies, whose header X-Forwarded-For names the client.
        host: Address to bind to.
        port: Port to bind to; 0 chooses a free one.
        workers: Number of processes that compute predictions; 1 computes in this one.
        ready: Called with the address once the server accepts connections.

    Returns:
        Whether all work has ended; False if a model still computes, which nothing but the end of the process can stop.

    Raises:
        InputError: The address cannot be bound.
        MissingExtraError: The extra ``serve`` is not installed.
    """
    check_extra()
    import uvicorn

    from ltnode.serve.app import make_app
    from ltnode.serve.clients import Access, Clients
    from ltnode.serve.connections import BACKLOG, Connections, limited_protocol

    keep_memory()
    limits, clients = limits or Limits(), Clients(proxies)
    app = make_app(models, limits, token, Access((*hosts, host), any_address=host in _EVERYWHERE), clients, workers)
    quiet_log.install()
    config = uvicorn.Config(
        app,
        http=limited_protocol(Connections(limits, clients, app.state.service.metrics)),
        backlog=BACKLOG,
        proxy_headers=False,  # uvicorn would believe every program on this machine
        log_config=None,
        log_level=logging.WARNING,
        server_header=False,
        date_header=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=math.ceil(limits.grace_seconds),
    )
    with bind(host, port) as bound, _signals_ignored_at_exit(), _short_collections():
        ready(address_of(bound))
        _server(config).run(sockets=[bound])
    return app.state.service.ended


def _server(config: uvicorn.Config) -> uvicorn.Server:
    """The server of uvicorn, which would shorten the queue of waiting connections to the number that is accepted at once."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for one in sockets or ():
                one.listen(_BACKLOG)

    return Server(config)


@contextmanager
def _short_collections() -> Iterator[None]:
    """Exclude what exists now, models and libraries, from collections of garbage, each of which would go through all of it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _signals_ignored_at_exit() -> Iterator[None]:
    """Ignore the signal that uvicorn raises again after it has shut down: a server that stops on request did not fail."""
    previous = {number: signal.signal(number, lambda number, frame: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
