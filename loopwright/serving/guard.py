"""Who may ask, and how much may be sent: the key, the host, the kind and the size of a body."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from loopwright.serving.schema import Refusal, ServerLimits
from loopwright.serving.sse import Receive

BODY_SECONDS = 30.0  # for all of a body
LEFT_SECONDS = 1.0  # for what is still sent of a body that is refused


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return _plain(host) == "localhost"


@dataclass(frozen=True)
class Hosts:
    """The names by which a server may be asked: loopback's, the address it is bound to, and those that were given.

    A web page could otherwise reach it under a name of its own that it lets point here (DNS rebinding). No page has an address for
    a name, so a server bound to every address (0.0.0.0) answers to all of them.
    """

    bound: str = "127.0.0.1"
    given: tuple[str, ...] = ()

    def know(self, header: str) -> bool:
        """Whether a Host header names this server."""
        host = _plain(_host(header))
        if is_loopback(host) or host in (_plain(name) for name in (self.bound, *self.given)):
            return True
        try:
            return ipaddress.ip_address(self.bound).is_unspecified and bool(ipaddress.ip_address(host))
        except ValueError:
            return False


OWN = Hosts()  # of a server on loopback


@dataclass(frozen=True)
class Guard:
    """Checks a request before its body is read. `key` None: nobody needs one."""

    limits: ServerLimits
    key: str | None = None
    hosts: Hosts = OWN

    def check_caller(self, headers: Mapping[str, str]) -> None:
        """Refuses a wrong key; without a key, a name that is not this server's."""
        if self.key is not None:
            sent = headers.get("authorization", "")
            scheme, _, word = sent.partition(" ")
            same = hmac.compare_digest(word.strip().encode(), self.key.encode())  # takes as long whatever is wrong
            if scheme.lower() != "bearer" or not same:
                raise Refusal(
                    "authorization: the key is missing or wrong; send 'Authorization: Bearer KEY'",
                    status=401, code="invalid_api_key", headers={"www-authenticate": "Bearer"},
                )  # fmt: skip
        else:
            self.check_host(headers)

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuses names other than this server's where no key guards it. A page's own files need no more."""
        if self.key is None and not self.hosts.know(headers.get("host", "")):
            raise Refusal(
                f"host: {headers.get('host', '')[:100]!r} is no name of this server; without a key it answers to localhost, to "
                "its own address and to --allowed-host alone",
                status=403,
            )  # fmt: skip

    def trusts(self, headers: Mapping[str, str]) -> bool:
        """Whether a caller may be told what is served."""
        try:
            self.check_caller(headers)
        except Refusal:
            return False
        return True

    async def body(self, headers: Mapping[str, str], receive: Receive, seconds: float = BODY_SECONDS) -> bytes:
        """Returns the body of a request: JSON by its header, of at most so many bytes, sent within a time."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        declared, left = headers.get("content-length", ""), True
        parts, size = [], 0
        try:
            if kind != "application/json":  # others a web page may send without asking
                raise Refusal(f"content-type: {kind[:100]!r}; allowed: application/json", status=415)
            if declared.isdigit():
                self.limits.check_body(int(declared[:20]))
            async with asyncio.timeout(seconds):
                while left:
                    message: Any = await receive()
                    left = message.get("more_body", False)
                    if message["type"] == "http.disconnect":
                        raise Refusal("body: client disconnected before it was sent", status=499)
                    size += len(message.get("body", b""))
                    self.limits.check_body(size)
                    parts.append(message.get("body", b""))
                return b"".join(parts)
        except TimeoutError:
            raise Refusal(f"body: not sent within {seconds:g} s", status=408, headers={"connection": "close"}) from None
        except Refusal:
            if left:
                await throw_away(receive)
            raise


async def throw_away(receive: Receive) -> None:
    """Reads what is still sent of a body, for a short time, and keeps nothing: a client that sends on after the connection was
    closed would see a reset in the place of the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LEFT_SECONDS):
            message: Any = {"more_body": True}
            while message.get("more_body", False):
                message = await receive()


def _plain(host: str) -> str:
    return host.rstrip(".").lower()


def _host(header: str) -> str:
    """Returns the name of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
