"""Who may ask, and how much may be sent: the key, the host, the kind and the size of a body."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loopwright.serve.limits import Limits, Refusal
from loopwright.serve.response.sse import Receive

BODY_SECONDS = 30.0  # for all of a body


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


@dataclass(frozen=True)
class Guard:
    """Checks a request before its body is read. `key` None: nobody needs one."""

    limits: Limits
    key: str | None = None
    local: bool = False  # bound to loopback alone

    def check_caller(self, headers: Mapping[str, str]) -> None:
        """Refuses a wrong key. Without a key, a server on loopback answers to loopback's names alone.

        A web page could otherwise reach it under a name of its own that it lets point to this machine (DNS rebinding).
        """
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
        """Refuses names other than loopback's where nothing but loopback guards the server. A page's own files need no more."""
        if self.key is None and self.local and not is_loopback(_host(headers.get("host", ""))):
            raise Refusal(
                f"host: {headers.get('host', '')[:100]!r} is not this machine; without a key only localhost is served", status=403
            )

    async def body(self, headers: Mapping[str, str], receive: Receive, seconds: float = BODY_SECONDS) -> bytes:
        """Returns the body of a request: JSON by its header, of at most so many bytes, sent within a time."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # others a web page may send without asking
            raise Refusal(f"content-type: {kind[:100]!r}; allowed: application/json", status=415)
        declared = headers.get("content-length", "")
        if declared.isdigit():
            self.limits.check_body(int(declared[:20]))
        parts, size = [], 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message: Any = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal("body: the client went before it was sent", status=499)
                    size += len(message.get("body", b""))
                    self.limits.check_body(size)
                    parts.append(message.get("body", b""))
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refusal(f"body: not sent within {seconds:g} s", status=408, headers={"connection": "close"}) from None


def _host(header: str) -> str:
    """Returns the name of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
