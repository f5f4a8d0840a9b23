"""The server's life: ports, and an end that finishes what was begun."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading

import pytest

from loopwright.serving.schema import ServerLimits
from loopwright.serving.server import bind, run
from tests.serving.live import hold_engines, live, until


def test_a_port_that_is_taken_or_no_address_is_one_line() -> None:
    with bind("127.0.0.1", 0) as taken:
        with pytest.raises(ValueError, match=r"port: 127.0.0.1:\d+ cannot be used \(Address already in use\); take another"):
            bind("127.0.0.1", taken.getsockname()[1])
        assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    with pytest.raises(ValueError, match=r"host: 'no.such.host.invalid' is no address"):
        bind("no.such.host.invalid", 0)
    for port in (99999, -1):
        with pytest.raises(ValueError, match=rf"^port must be a whole number from 0 to 65535 \(got {port}\)$"):
            bind("127.0.0.1", port)


def refuses(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return False
    except OSError as error:  # one that waits to be accepted when the server stops listening is reset
        return isinstance(error, ConnectionRefusedError)


def test_a_drain_finishes_what_was_begun_and_takes_nothing_new() -> None:
    with live(drain_seconds=60) as server:
        answers: list[int] = []
        body = {"max_tokens": 30, "ignore_eos": True, "stream": True}
        asking = threading.Thread(target=lambda: answers.append(server.post(**body).text.count("data: ")))
        with hold_engines() as held:
            asking.start()
            assert held.wait(60)
            server.server.should_exit = True
            assert until(lambda: refuses(server.port)) and server.server.service.draining
            assert server.model.engine.open_requests, "the answer ended before the server was seen to refuse"
        asking.join()
        assert answers[0] >= 2 and server.last_record()["completion_tokens"] == 30


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_with_the_first_line_ends_it_as_any_other(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads that the server is there may end it at once; nothing is raised again, which would count as a second one."""
    missed: list[int] = []
    monkeypatch.setattr(signal, "raise_signal", missed.append)
    before = signal.signal(number, lambda *_: missed.append(number))
    try:
        listening, said = bind("127.0.0.1", 0), []
        run({}, listening, limits=ServerLimits(), on_ready=lambda: (said.append("ready"), os.kill(os.getpid(), number)))
        assert said == ["ready"] and not missed and listening.fileno() == -1
        assert signal.getsignal(number) is not signal.SIG_DFL
        os.kill(os.getpid(), number)
        assert missed == [number]
    finally:
        signal.signal(number, before)


def test_without_access_lines_requests_are_counted_and_errors_are_logged() -> None:
    with live(access_log=False) as server:
        assert server.client.get("/health").status_code == 200
        logging.getLogger("uvicorn.error").error("a disk is full")
        assert until(lambda: 'status="200"' in server.client.get("/metrics").text)
        assert [(one.get("path"), one.get("message")) for one in server.records] == [(None, "a disk is full")]
