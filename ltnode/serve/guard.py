"""The outermost layer of the server: host, token, size and duration of a body, security headers, metrics, no tracebacks."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import Counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ltnode.serve.clients import Access, Clients
from ltnode.serve.failures import ApiError, as_api_error, stopping
from ltnode.serve.fair_queue import current_client
from ltnode.serve.limits import Limits
from ltnode.serve.metrics import Metrics

SECURITY_HEADERS = {
    # Images may also come from data: addresses or from a canvas.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_OPEN_PREFIX = "/api/samples/"
_BODY_SHARE = 0.9
"""Share of the time of a request in which its body must arrive, so that there is time left to answer."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})


class Guard:
    """ASGI middleware around the application; ``token`` is required under /api unless it is None."""

    def __init__(
        self, app: ASGIApp, limits: Limits, token: str | None, metrics: Metrics, access: Access, clients: Clients
    ) -> None:
        self.app, self.limits, self.metrics, self.access, self.clients = app, limits, metrics, access, clients
        self._token = None if token is None else token.encode()
        self._held_bytes = 0
        self._arriving: set[_Body] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        client = self.clients.of_request(scope)
        current_client.set(client)
        body = _Body(self, receive, client)
        status = 0

        async def send_safely(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store" if scope["path"].startswith("/api") else "no-cache")
            await send(message)

        try:
            self._check(scope)
            await self.app(scope, body.receive, send_safely)
        except (Exception, asyncio.CancelledError) as error:  # cancelled: the grace time of a shutdown is over
            failure = stopping() if isinstance(error, asyncio.CancelledError) else as_api_error(error)
            if not status:  # Otherwise a part of the answer has been sent, and only the log can tell.
                await failure.response()(scope, receive, send_safely)
        finally:
            self._held_bytes -= body.arrived
            self._arriving.discard(body)
            path = _path_label(scope)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.metrics.requests.labels(method, path, str(status) if status else "none").inc()
            self.metrics.latency.labels(path).observe(time.monotonic() - began)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        path = scope["path"]
        if scope.get("state", {}).get("excess") and path != "/healthz":
            reason = f"this client has more than {self.limits.client_connections} connections; close some of them"
            raise ApiError(503, "connections", reason, {"Retry-After": "1", "Connection": "close"})
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy may believe one of them and this server the other, and take the rest of the body for another request.
            reason = "a request must not have both Content-Length and Transfer-Encoding"
            raise ApiError(400, "bad_request", reason, {"Connection": "close"})
        self.access.check(scope)
        if self._token is not None and path.startswith("/api") and not path.startswith(_OPEN_PREFIX):
            scheme, _, token = headers.get("authorization", "").partition(" ")
            correct = hmac.compare_digest(token.strip().encode("latin-1", "replace"), self._token)
            if scheme.lower() != "bearer" or not correct:
                self.metrics.refused.labels("token").inc()
                reason = "this server requires a token: send the header 'Authorization: Bearer TOKEN'"
                raise ApiError(401, "unauthorized", reason, {"WWW-Authenticate": "Bearer"})
        declared = headers.get("content-length", "0")
        if declared.isdecimal() and int(declared[:20]) > self.limits.body_bytes:
            raise self.too_large()

    def too_large(self) -> ApiError:
        """The answer to a body over the limit."""
        self.metrics.refused.labels("body").inc()
        return ApiError(413, "too_large", f"the request must have at most {self.limits.body_bytes:,} bytes; it has more")

    def hold(self, body: _Body, size: int) -> None:
        """Count bytes that have arrived; if all bodies together exceed the limit, one that is still arriving is given up.

        That is the one that has waited longest among those of the client that holds most: clients that send slowly cannot keep
        the others out. An ApiError of status 503 if it is this body, or if there is none.
        """
        self._arriving.add(body)
        self._held_bytes += size
        while self._held_bytes > self.limits.held_bytes:
            held: Counter[str] = Counter()
            for other in self._arriving:
                held[other.client] += other.arrived
            largest = held.most_common(1)[0][0]
            victim = min((one for one in self._arriving if one.client == largest), key=lambda one: one.progress)
            self.metrics.refused.labels("memory").inc()
            self._held_bytes -= victim.arrived
            victim.give_up()
            if victim is body:
                raise _busy()

    def complete(self, body: _Body) -> None:
        """A body has arrived as a whole, and can no longer be given up."""
        self._arriving.discard(body)


class _Body:
    """Wraps ``receive`` of one request and counts bytes and time while the body arrives."""

    def __init__(self, guard: Guard, receive: Receive, client: str) -> None:
        self._guard, self._receive, self.client = guard, receive, client
        self.progress = self._began = asyncio.get_running_loop().time()
        self._complete = self._given_up = False
        self._timeout: asyncio.Timeout | None = None
        self.arrived = 0

    def give_up(self) -> None:
        """Forget the bytes that have arrived, and end the wait for the others."""
        self._guard.complete(self)
        self._given_up, self.arrived = True, 0
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def receive(self) -> Message:
        """Receive the next part of the body."""
        if self._complete:  # Starlette now waits for the client to disconnect, for which there is no time limit.
            return await self._receive()
        limits = self._guard.limits
        last = self._began + _BODY_SHARE * limits.seconds
        try:
            async with asyncio.timeout_at(min(last, self.progress + limits.stall_seconds)) as self._timeout:
                message = await self._receive()
        except TimeoutError:
            if self._given_up:
                raise _busy() from None
            reason = (
                f"the body must arrive within {_BODY_SHARE * limits.seconds:g} s, without pauses of {limits.stall_seconds:g} s"
            )
            raise ApiError(408, "slow_body", reason, {"Connection": "close"}) from None
        finally:
            self._timeout = None
        if self._given_up:
            raise _busy()
        size = len(message.get("body", b""))
        self.progress = asyncio.get_running_loop().time()
        self.arrived += size
        self._complete = message["type"] == "http.request" and not message.get("more_body", False)
        self._guard.hold(self, size)
        if self.arrived > limits.body_bytes:
            raise self._guard.too_large()
        if self._complete:
            self._guard.complete(self)
        return message


def _busy() -> ApiError:
    reason = "the server holds as many large requests as it can: try again"
    return ApiError(503, "busy", reason, {"Retry-After": "1", "Connection": "close"})


def _path_label(scope: Scope) -> str:
    """The route of a request: labels made from paths would let a client grow the metrics without bound."""
    route = scope.get("route")
    if route is not None and hasattr(route, "path"):
        return str(route.path)
    return "/static" if scope["path"].startswith("/static/") else "other"
