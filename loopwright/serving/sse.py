"""Server-sent events: a job as a stream of JSON lines, cancelled when its client disconnects.

They are written to a connection that gives up on a peer that sends no whole head, reads nothing, or sends what is no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, ClassVar

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from loopwright.serving.answer import Answer, Delta, ServedRequest
from loopwright.serving.openai_json import Shape, event
from loopwright.serving.schema import Refusal

OWN = "loopwright.connection"  # where the state of a scope holds the connection
PATIENCE = 15.0  # seconds without a token before a comment is sent, so that proxies keep the connection

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Connection(H11Protocol):
    """uvicorn's connection, looked at every `patience` seconds: what has not moved between two looks is closed."""

    patience: ClassVar[float] = 30.0  # longer than a connection is kept open between two requests
    pulse: ClassVar[float] = 1.0  # seconds between two writes to a client that sends no more
    streams = False  # events are being sent, between which a comment may stand

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, {**app_state, OWN: self}, _loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to look."""
        super().connection_made(transport)
        self._seen: Any = None
        self._beat: asyncio.TimerHandle | None = None
        self._timer = self.loop.call_later(self.patience, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends looking."""
        self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes bytes; those that break the parser end the connection."""
        try:
            super().data_received(data)
        except (UnicodeError, ValueError, RuntimeError):
            self.transport.abort()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open: a client may say that it sends no more, and wait for its answer."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        if not self.conn.trailing_data[0]:  # no other request follows
            cycle.keep_alive = False
        if self._beat is None:
            self._write_pulse()
        return True

    def _write_pulse(self) -> None:
        """Writes what says nothing while an answer is made: nothing but a write tells who waits from who has gone."""
        if self.cycle.response_complete or self.transport.is_closing():
            return
        if self.streams and self.takes_chunks:
            self.write_chunk(b":\n\n")
        elif not self.cycle.response_started and self.cycle.scope["http_version"] == "1.1":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._beat = self.loop.call_later(self.pulse, self._write_pulse)

    @property
    def takes_chunks(self) -> bool:
        """Whether a part of a body would be sent on, instead of waiting for a slow reader or going nowhere."""
        return not self.flow.write_paused and not self.transport.is_closing()

    def write_chunk(self, body: bytes) -> None:
        """Writes a part of a response that was begun. It may not be empty: that would be the end."""
        self.transport.write(b"%x\r\n%b\r\n" % (len(body), body))

    def _look(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        unread = self.transport.get_write_buffer_size()
        # while an answer is being made nothing needs to move, unless the peer does not read what is there
        now = None if answering and not unread else (self.cycle, unread)
        if now is not None and now == self._seen:
            self.transport.abort()  # closing would wait for a peer that reads nothing
            return
        self._seen = now
        self._timer = self.loop.call_later(self.patience, self._look)


def connection_of(scope: Any) -> Connection | None:
    """Returns the connection of a request whose response will come in chunks; None of one by HTTP/1.0, or of another server."""
    return scope.get("state", {}).get(OWN) if scope.get("http_version") == "1.1" else None


async def events(job: ServedRequest, shape: Shape, patience: float = PATIENCE) -> AsyncIterator[bytes]:
    """Yields the events of a job to its end. What fails on the way is told as an event: the status is long sent."""
    try:
        async for fresh in job.news(patience):
            body = shape.events(fresh) or b": waiting\n\n"
            yield body if not job.over else body + _ending(job, shape)  # in one piece: every send costs a call of the system
    except Refusal as refusal:
        yield event(refusal.body())


def _ending(job: ServedRequest, shape: Shape) -> bytes:
    return (event(shape.last()) if job.parsed.include_usage else b"") + b"data: [DONE]\n\n"


@contextlib.asynccontextmanager
async def watched(job: ServedRequest, receive: Receive) -> AsyncIterator[None]:
    """While the block runs, a client that disconnects cancels its job; so does leaving the block before the end."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        job.leave()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        job.cancel()


class EventStream:
    """The response of a request with `stream`: an ASGI app. `on_end` is called once, whatever ends it."""

    def __init__(self, job: ServedRequest, shape: Shape, on_end: Callable[[], object]) -> None:
        self.job, self.shape, self.on_end = job, shape, on_end
        self._direct: Connection | None = None  # while its task waits for news

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Sends the events as they come, as fast as the client reads."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"),
                   (b"x-request-id", self.shape.id.encode()), (b"x-accel-buffering", b"no")]  # fmt: skip
        connection = connection_of(scope)
        try:
            async with watched(self.job, receive):
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                self._direct, self.job.on_news = connection, self.push
                self._stream(connection, True)
                async for body in events(self.job, self.shape):
                    self._direct = None  # nothing may pass what waits for a slow reader
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    self._direct = connection
                self._direct = None
                self._stream(connection, False)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._direct = None
            self._stream(connection, False)
            self.on_end()

    @staticmethod
    def _stream(connection: Connection | None, streams: bool) -> None:
        if connection is not None:
            connection.streams = streams

    def push(self) -> None:
        """Writes what is new at once, where the connection takes it. To wake the task, and to send by ASGI, costs more than that.

        The end, what failed, and what a slow reader has not taken are left to the task.
        """
        if self._direct is None or not self._direct.takes_chunks or self.job.gone:
            self.job.changed.set()
            return
        fresh: list[tuple[Answer, Delta]] = []
        try:
            self.job.take(fresh, ending=False)
            if fresh:
                self._direct.write_chunk(self.shape.events(fresh))
        except Exception as error:  # the other streams of this tick go on
            self._direct, self.job.failure = None, error
            self.job.changed.set()
