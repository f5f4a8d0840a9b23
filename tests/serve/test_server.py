"""The server's life: ports, and an end that finishes what was begun."""

from __future__ import annotations

import socket
import threading

import pytest

from loopwright.serve.server import bind
from tests.serve.live import live, until


def test_a_port_that_is_taken_or_no_address_is_one_line() -> None:
    with bind("127.0.0.1", 0) as taken:
        with pytest.raises(ValueError, match=r"port: 127.0.0.1:\d+ cannot be used \(Address already in use\); take another"):
            bind("127.0.0.1", taken.getsockname()[1])
        assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    with pytest.raises(ValueError, match=r"host: 'no.such.host.invalid' is no address"):
        bind("no.such.host.invalid", 0)


def test_a_drain_finishes_what_was_begun_and_takes_nothing_new() -> None:
    with live() as server:
        answers: list[int] = []
        body = {"max_tokens": 30, "ignore_eos": True, "stream": True}
        asking = threading.Thread(target=lambda: answers.append(server.post(**body).text.count("data: ")))
        asking.start()
        assert until(lambda: 'status="200"' in server.client.get("/metrics").text)
        assert [(one.get("path"), one.get("message")) for one in server.records] == [(None, "a disk is full")]
