"""Who may ask, and how much may be sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loopwright.serving.guard import Guard, Hosts, is_loopback
from loopwright.serving.schema import Refusal, ServerLimits

JSON = {"content-type": "application/json; charset=utf-8"}
SMALL = Guard(ServerLimits(body_bytes=10))


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer wrong", "Basic secret-key", "Bearer secret-ke", "Bearer secret-key-", "é"]
)
def test_a_wrong_key_is_refused(header: str) -> None:
    guard = Guard(ServerLimits(), "secret-key")
    with pytest.raises(Refusal) as refused:
        guard.check_caller({"authorization": header})
    assert refused.value.status == 401 and refused.value.headers["www-authenticate"] == "Bearer"


def test_the_right_key_is_taken_under_any_host() -> None:
    Guard(ServerLimits(), "secret-key").check_caller({"authorization": "bearer secret-key", "host": "example.org"})


FOREIGN = (
    "evil.example:8000",
    "",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "[::2]",
    "10.0.0.7",
    "null",
    "localhost@evil",
)


@pytest.mark.parametrize(
    ("hosts", "known"),
    [
        (Hosts(), ()),
        (Hosts("10.0.0.7"), ("10.0.0.7",)),
        (Hosts("0.0.0.0"), ("[::2]", "10.0.0.7")),
        (Hosts("::"), ("[::2]", "10.0.0.7")),
        (Hosts("10.0.0.7", ("GPU-box", "evil.example")), ("10.0.0.7", "evil.example:8000")),
    ],
)
def test_without_a_key_a_server_answers_to_its_own_names(hosts: Hosts, known: tuple[str, ...]) -> None:
    guard = Guard(ServerLimits(), hosts=hosts)
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST", "localhost.", *known):
        guard.check_caller({"host": host})
        assert guard.trusts({"host": host})
    for host in FOREIGN:
        if host not in known:
            with pytest.raises(Refusal, match="is no name of this server"):
                guard.check_caller({"host": host})
            assert not guard.trusts({"host": host})
    assert ("GPU-box" in hosts.given) == Guard(ServerLimits(), hosts=hosts).trusts({"host": "gpu-BOX:80"})
    assert is_loopback("::1") and is_loopback("127.9.9.9") and not is_loopback("0.0.0.0")


def read(*messages: dict[str, Any], headers: dict[str, str] = JSON, seconds: float = 1.0, guard: Guard = SMALL) -> bytes:
    left = list(messages)

    async def receive() -> Any:
        if not left:
            await asyncio.sleep(60)
        return left.pop(0)

    return asyncio.run(guard.body(headers, receive, seconds))


def part(body: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_comes_in_parts_up_to_the_limit() -> None:
    assert read(part(b"12345"), part(b"67890", False)) == b"1234567890"
    with pytest.raises(Refusal, match="--max-body") as refused:
        read(part(b"12345"), part(b"678901", False))
    assert refused.value.status == 413


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 415),
        ({"content-type": "text/plain"}, 415),
        (JSON | {"content-length": "11"}, 413),  # before a byte of it is kept
        (JSON | {"content-length": "9" * 5000}, 413),
    ],
)
def test_what_the_headers_tell_is_refused_whatever_the_body_is(
    headers: dict[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwright.serving.guard.LEFT_SECONDS", 0.01)  # here nothing more comes
    with pytest.raises(Refusal) as refused:
        read(headers=headers)
    assert refused.value.status == status


@pytest.mark.parametrize("headers", [JSON, JSON | {"content-length": "12"}, {"content-type": "text/plain"}])
def test_what_is_left_of_a_refused_body_is_read_to_its_end(headers: dict[str, str]) -> None:
    left = [part(b"123456"), part(b"789012"), part(b"more", False), part(b"of the next request")]

    async def receive() -> Any:
        return left.pop(0)

    with pytest.raises(Refusal):
        asyncio.run(SMALL.body(headers, receive))
    assert left == [part(b"of the next request")]


def test_a_body_that_does_not_come_is_given_up() -> None:
    with pytest.raises(Refusal, match=r"not sent within 0.01 s") as refused:
        read(part(b"1"), seconds=0.01)
    assert refused.value.status == 408
    with pytest.raises(Refusal, match="client disconnected"):
        read(part(b"1"), {"type": "http.disconnect"})
