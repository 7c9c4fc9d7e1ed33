"""Limits of connections: in total, for one client, and on the time that a connection may wait for the header of a request.

A connection that waits can be closed at any time, so that there is always room for another one: whoever opens more than the
limit closes its own oldest connection. A connection that arrives while all of its client are busy is accepted, but only
/healthz is answered on it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from ltnode.serve.clients import Clients
from ltnode.serve.limits import Limits
from ltnode.serve.metrics import Metrics

BACKLOG = 128
"""Connections that the event loop may accept before it looks at any of them."""
EXCESS = "excess"
"""Key in the state of a request that arrived on a connection beyond the limit of its client."""
_EXCESS_CONNECTIONS = 4
_OTHER_DESCRIPTORS = 128
_SWEEP_SECONDS = 1.0


class Connections:
    """All open connections of a server."""

    def __init__(self, limits: Limits, clients: Clients, metrics: Metrics) -> None:
        self.limits, self.clients, self.metrics = limits, clients, metrics
        self.most = min(limits.connections, max(16, _descriptors() - BACKLOG - _OTHER_DESCRIPTORS))
        self._open: dict[Any, str] = {}
        self._count: Counter[str] = Counter()
        self._sweep: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: Any) -> None:
        """Count a new connection, and close another one or this one if there are too many."""
        peer = connection.client[0] if connection.client else "unknown"
        client = self.clients.of_peer(peer)
        self._open[connection] = client
        self._count[client] += 1
        if self._sweep is None:
            self._sweep = connection.loop.call_later(_SWEEP_SECONDS, self._close_late, connection.loop)
        most = self.limits.client_connections
        if self._count[client] > most and not self.clients.is_proxy(peer) and not self._close_waiting(client, connection):
            if self._count[client] > most + _EXCESS_CONNECTIONS:
                self._close(connection)
            else:
                connection.app_state = {**connection.app_state, EXCESS: True}
        # Whoever has most connections loses one.
        if len(self._open) > self.most and not any(
            self._close_waiting(name, connection) for name, _ in self._count.most_common()
        ):
            self._close(connection)

    def closed(self, connection: Any) -> None:
        """Forget a connection."""
        client = self._open.pop(connection, None)
        if client is not None:
            self._count[client] -= 1
            if not self._count[client]:
                del self._count[client]

    def _close_waiting(self, client: str, newest: Any) -> bool:
        """Close the connection of a client that has waited longest for a request; False if all are busy."""
        waiting = [one for one, owner in self._open.items() if owner == client and one is not newest and not one.busy]
        if waiting:
            self._close(min(waiting, key=lambda one: one.waiting_since))
        return bool(waiting)

    def _close(self, connection: Any) -> None:
        self.metrics.refused.labels("connection").inc()
        self.closed(connection)
        connection.transport.abort()

    def _close_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what has waited too long for a header, or for a client that does not read its answer."""
        limits, now = self.limits, loop.time()
        for connection in list(self._open):
            allowed = limits.header_seconds + (2 * limits.seconds if connection.busy else 0)
            if now - connection.waiting_since > allowed:
                self._close(connection)
        self._sweep = loop.call_later(_SWEEP_SECONDS, self._close_late, loop) if self._open else None


def limited_protocol(connections: Connections) -> type[asyncio.Protocol]:
    """The HTTP protocol of uvicorn, with these limits.

    It is always that of h11, which refuses a header of more than 64 KiB: with httptools, which uvicorn would prefer where it is
    installed, a client could send gigabytes of headers before their deadline.
    """

    class LimitedProtocol(H11Protocol):
        """One connection."""

        waiting_since = 0.0

        @property
        def busy(self) -> bool:
            """Whether a request is being answered."""
            return self.cycle is not None and not self.cycle.response_complete

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            """Count the connection."""
            super().connection_made(transport)
            self.waiting_since = self.loop.time()
            connections.opened(self)

        def connection_lost(self, exc: Exception | None) -> None:
            """Forget the connection."""
            connections.closed(self)
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            """Wait for the next request."""
            self.waiting_since = self.loop.time()
            super().on_response_complete()

    return LimitedProtocol


def _descriptors() -> int:
    """How many files and sockets this process may open."""
    with contextlib.suppress(ImportError):
        import resource

        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return soft if soft != resource.RLIM_INFINITY else 1 << 20
    return 1 << 9
