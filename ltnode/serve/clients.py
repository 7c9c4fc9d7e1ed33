"""Who asks: the address that counts as one client, and the hosts and origins that may be named in a request."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from ltnode.errors import InputError
from ltnode.serve.failures import ApiError

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_IPV6_CLIENT_BITS = 64
"""Part of an IPv6 address that identifies a client: providers give every household all addresses behind it."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Clients:
    """Finds the client of a request; ``proxies`` are the addresses whose X-Forwarded-For header is believed."""

    def __init__(self, proxies: Sequence[str] = ()) -> None:
        try:
            self._proxies = [ipaddress.ip_network(proxy) for proxy in proxies]
        except ValueError as error:
            raise InputError(f"a trusted proxy must be an IP address or network, such as 127.0.0.1: {error}") from error

    def is_proxy(self, peer: str) -> bool:
        """Whether a connection from this address may speak for others."""
        address = _parsed(peer)
        return address is not None and any(address in network for network in self._proxies)

    def of_peer(self, peer: str) -> str:
        """The client behind the address of a connection."""
        address = _parsed(peer)
        if address is None:
            return peer
        if address.version == 6:
            return str(ipaddress.ip_network((address, _IPV6_CLIENT_BITS), strict=False))
        return str(address)

    def of_request(self, scope: Scope) -> str:
        """The client of a request: the last address before the trusted proxies."""
        peer = (scope.get("client") or ("unknown", 0))[0]
        if not self.is_proxy(peer):
            return self.of_peer(peer)
        # Proxies append the address that they see, so that only the end of the list can be believed.
        forwarded = [part.strip() for value in Headers(scope=scope).getlist("x-forwarded-for") for part in value.split(",")]
        for named in reversed(forwarded):
            if _parsed(named) is None:
                break
            if not self.is_proxy(named):
                return self.of_peer(named)
        return self.of_peer(peer)


class Access:
    """Which names of this server a request may use, and which pages may send requests.

    A page of another site can make a browser send requests to this machine (cross-site requests), and can give its own name
    the address of this machine (DNS rebinding). Both name the other site, in the header Origin or Host.

    Args:
        hosts: Names of this server besides localhost; ``"*"`` allows every name.
        any_address: Allow every IP address in place of a name, for a server that listens on all of its addresses.
    """

    def __init__(self, hosts: Sequence[str] = (), any_address: bool = False) -> None:
        self._hosts = {_host_name(host) for host in hosts}
        self._everything, self._any_address = "*" in hosts, any_address

    def check(self, scope: Scope) -> None:
        """Refuse a request for another host, or one that a page of another origin has sent, with an ApiError."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")  # only old clients leave it out, and browsers never do
        if host and not self._allows(_host_name(host)):
            reason = f"this server is not called {host[:80]!r}: use localhost, or allow the name with --allow-host"
            raise ApiError(403, "foreign_host", reason)
        origin = headers.get("origin")
        if scope["method"] in _SAFE_METHODS or origin is None or self._everything:
            return
        sent_from = urlsplit(origin).netloc.lower() if "://" in origin else ""
        if sent_from != host.lower() and _host_name(sent_from) not in self._hosts:
            reason = f"a page of {origin[:80]!r} may not use this server: open its own page, or allow the host with --allow-host"
            raise ApiError(403, "foreign_origin", reason)

    def _allows(self, name: str) -> bool:
        if self._everything or name == "localhost" or name in self._hosts:
            return True
        address = _parsed(name)
        return address is not None and (address.is_loopback or self._any_address)


def _host_name(netloc: str) -> str:
    """The name of ``name:port`` or ``[address]:port``, in lower case and without a trailing dot; "" if it is malformed."""
    try:
        return (urlsplit(f"//{netloc}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _parsed(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
