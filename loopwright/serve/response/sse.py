"""Server-sent events: a job as a stream of JSON lines, cancelled when its reader goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from loopwright.serve.connection import Connection, connection_of
from loopwright.serve.limits import Refusal
from loopwright.serve.response.answer import Answer, Delta, Job
from loopwright.serve.response.shape import Shape, event

PATIENCE = 15.0  # seconds without a token before a comment is sent, so that proxies keep the connection

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


async def events(job: Job, shape: Shape, patience: float = PATIENCE) -> AsyncIterator[bytes]:
    """Yields the events of a job to its end. What fails on the way is told as an event: the status is long sent."""
    try:
        async for fresh in job.news(patience):
            body = shape.events(fresh) or b": waiting\n\n"
            yield body if not job.over else body + _ending(job, shape)  # in one piece: every send costs a call of the system
    except Refusal as refusal:
        yield event(refusal.body())


def _ending(job: Job, shape: Shape) -> bytes:
    return (event(shape.last()) if job.wanted.include_usage else b"") + b"data: [DONE]\n\n"


@contextlib.asynccontextmanager
async def watched(job: Job, receive: Receive) -> AsyncIterator[None]:
    """While the block runs, a client that goes cancels its job; so does leaving the block before the end."""

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

    def __init__(self, job: Job, shape: Shape, on_end: Callable[[], object]) -> None:
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
