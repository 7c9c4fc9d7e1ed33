"""The outermost layer of the server: token, size and duration of a body, security headers, metrics, no tracebacks."""

from __future__ import annotations

import asyncio
import hmac
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ltnode.serve.failures import ApiError, as_api_error
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

    def __init__(self, app: ASGIApp, limits: Limits, token: str | None, metrics: Metrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self._token = None if token is None else token.encode()
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.monotonic()
        body = _Body(self, receive, began)
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
        except Exception as error:
            failure = as_api_error(error)
            if not status:  # Otherwise a part of the answer has been sent, and only the log can tell.
                await failure.response()(scope, receive, send_safely)
        finally:
            self._held_bytes -= body.arrived
            path = _path_label(scope)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.metrics.requests.labels(method, path, str(status) if status else "none").inc()
            self.metrics.latency.labels(path).observe(time.monotonic() - began)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        path = scope["path"]
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

    def hold(self, size: int) -> None:
        """Count bytes that have arrived; an ApiError of status 503 if all bodies together exceed the limit."""
        self._held_bytes += size
        if self._held_bytes > self.limits.held_bytes:
            self.metrics.refused.labels("memory").inc()
            raise ApiError(503, "busy", "the server holds as many large requests as it can: try again", {"Retry-After": "1"})


class _Body:
    """Wraps ``receive`` of one request and counts bytes and time while the body arrives."""

    def __init__(self, guard: Guard, receive: Receive, began: float) -> None:
        self._guard, self._receive, self._began = guard, receive, began
        self._complete = False
        self.arrived = 0

    async def receive(self) -> Message:
        """Receive the next part of the body."""
        if self._complete:  # Starlette now waits for the client to disconnect, for which there is no time limit.
            return await self._receive()
        limits = self._guard.limits
        allowed = _BODY_SHARE * limits.seconds
        left = allowed - (time.monotonic() - self._began)
        try:
            message = await asyncio.wait_for(self._receive(), max(left, 0.001))
        except TimeoutError:
            reason = f"the request did not arrive within {allowed:g} s"
            raise ApiError(408, "slow_body", reason, {"Connection": "close"}) from None
        size = len(message.get("body", b""))
        self.arrived += size
        self._complete = message["type"] == "http.request" and not message.get("more_body", False)
        self._guard.hold(size)
        if self.arrived > limits.body_bytes:
            raise self._guard.too_large()
        return message


def _path_label(scope: Scope) -> str:
    """The route of a request: labels made from paths would let a client grow the metrics without bound."""
    route = scope.get("route")
    if route is not None and hasattr(route, "path"):
        return str(route.path)
    return "/static" if scope["path"].startswith("/static/") else "other"
