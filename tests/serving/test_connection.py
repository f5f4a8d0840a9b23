"""Peers that send half a head, nothing, or no HTTP; peers that do not read; peers that go."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from loopwright.serving.sse import Connection
from tests.serving.live import Live, hold_engines, live, until


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(send_buffer=4096) as running:
        yield running


def dial(server: Live) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def answer(connection: socket.socket) -> bytes:
    """Returns all that comes until the server closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def asked(**body: object) -> bytes:
    content = json.dumps({"prompt": [2], "ignore_eos": True, "max_tokens": 5} | body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
    return f"{head}\r\n\r\n".encode() + content


@pytest.mark.parametrize("sent", [b"", b"POST /v1/comp", asked()[:60], asked()[:-5]], ids=["nothing", "line", "head", "body"])
def test_half_a_request_is_closed(server: Live, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(Connection, "patience", 0.05)
    monkeypatch.setattr("loopwright.serving.guard.Guard.body.__defaults__", (0.05,))
    with dial(server) as connection:
        connection.sendall(sent)
        said = answer(connection)
    assert said == b"" or b" 408 " in said.splitlines()[0]


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n", b"x" * 100_000]
)
def test_what_is_no_http_is_refused_or_closed(server: Live, sent: bytes) -> None:
    with dial(server) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        said = answer(connection)
    assert said == b"" or b" 40" in said.splitlines()[0], said
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize(("kind", "status"), [("application/json", 413), ("text/plain", 415)], ids=["too large", "of another kind"])
def test_a_client_that_sends_all_before_it_reads_sees_why_it_was_refused(
    server: Live, monkeypatch: pytest.MonkeyPatch, kind: str, status: int
) -> None:
    monkeypatch.setattr("loopwright.serving.guard.LEFT_SECONDS", 60.0)  # for the rest, which this client may be slow to send
    sent = asked(prompt="the " * 2**20).replace(b"application/json", kind.encode() + b"\r\nconnection: close")
    head, _, body = sent.partition(b"\r\n\r\n")
    with dial(server) as connection:
        connection.sendall(head + b"\r\n\r\n" + body[: 2**16])
        time.sleep(0.1)  # an answer and a close now would be followed by a reset, which throws the answer away
        connection.sendall(body[2**16 :])
        said = answer(connection)
    assert f" {status} ".encode() in said.splitlines()[0]
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_client_that_sends_no_more_gets_its_answer(
    server: Live, monkeypatch: pytest.MonkeyPatch, stream: bool, version: str
) -> None:
    monkeypatch.setattr(Connection, "pulse", 0.01)
    ended, end = threading.Event(), Connection.eof_received
    monkeypatch.setattr(Connection, "eof_received", lambda self: (end(self), ended.set())[0])
    sent = asked(stream=stream).replace(b"HTTP/1.1", f"HTTP/{version}".encode())
    with dial(server) as connection:
        with hold_engines() as held:  # the answer is not there when the end of what is sent is seen
            connection.sendall(sent)
            assert held.wait(60)
            connection.shutdown(socket.SHUT_WR)
            assert ended.wait(60)
            time.sleep(0.05)  # some pulses
        said = answer(connection)  # to the end: the server closes
    if not stream and version == "1.1":
        while said.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
            said = said.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    head, _, body = said.partition(b"\r\n\r\n")
    assert b" 200 " in head.splitlines()[0]
    if stream:
        assert b"data: [DONE]" in body and b'"finish_reason": "length"' in body
    else:
        assert json.loads(body)["choices"][0]["finish_reason"] == "length"
    assert server.last_record().get("gone") is None


def test_a_client_that_goes_frees_its_row(server: Live) -> None:
    for stream in (True, False):
        with hold_engines() as held:  # its answer may not end before it has gone
            with dial(server) as connection:
                connection.sendall(asked(max_tokens=120, stream=stream))
                assert held.wait(60) and server.model.engine.open_requests == 1
            assert server.last_record()["gone"]
        assert until(lambda: server.model.engine.open_requests == 0)
    assert server.idle()


def test_a_reader_that_stops_is_closed_and_others_are_served(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[Connection] = []
    served, connections = threading.Event(), server.server.server_state.connections
    pause, look = Connection.pause_writing, Connection._look

    def noted_pause(self: Connection) -> None:
        paused.append(self)
        pause(self)

    def late_look(self: Connection) -> None:  # none is closed before the other client was served, however slow that is
        if served.is_set():
            look(self)
        else:
            self._timer = self.loop.call_later(self.patience, self._look)

    monkeypatch.setattr(Connection, "patience", 0.1)
    monkeypatch.setattr(Connection, "pause_writing", noted_pause)
    monkeypatch.setattr(Connection, "_look", late_look)
    with dial(server) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 400)  # more than the buffers of both sides hold
        assert until(lambda: paused)
        # by a connection of its own: one that the client keeps would be closed too, maybe while the next test uses it
        assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
        assert paused[0] in connections
        served.set()
        assert until(lambda: paused[0] not in connections)
