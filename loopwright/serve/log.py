"""The access log: one JSON line per request, written by a thread of its own, so that a slow disk delays nobody."""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from loopwright.serve.response.sse import Receive, Send

HELD = 10_000  # lines that wait to be written; what comes beyond is counted and left out
RECORD = "loopwright.record"  # where a scope holds what its handler says of the request
LONGEST = 300  # characters of what a client wrote


class LineWriter:
    """Writes lines to a stream from a thread. `close` writes what is left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(HELD)
        self.lost = 0
        self._thread = threading.Thread(target=self._work, name="loopwright-log", daemon=True)
        self._thread.start()

    def write(self, record: dict[str, Any]) -> None:
        """Queues a line; never waits."""
        try:
            self._lines.put_nowait(json.dumps(record | ({"lost_lines": self.lost} if self.lost else {})))
            self.lost = 0
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        """Writes what is queued, for at most a second where nobody reads."""
        try:
            self._lines.put(None, timeout=1)
        except queue.Full:
            return
        self._thread.join(1)

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads any more
                self.lost += 1


class LogLines(logging.Handler):
    """Hands what libraries log to `write`, as a record. A handler that writes by itself would wait where nobody reads."""

    def __init__(self, write: Callable[[dict[str, Any]], object]) -> None:
        super().__init__(logging.ERROR)
        self.own = write

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record, its traceback included."""
        self.own({"time": _now(), "level": record.levelname.lower(), "message": self.format(record)})

    def take(self, *names: str) -> None:
        """Becomes the one handler of these loggers. What is below an error, such as bytes that are no HTTP, is not worth a line."""
        for name in names:
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [self], False
            logger.setLevel(logging.ERROR)


class AccessLog:
    """Wraps an ASGI app: hands a record of every request, with its status and seconds, to `write`."""

    def __init__(self, app: Any, write: Callable[[dict[str, Any]], object]) -> None:
        self.app, self.write = app, write

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Runs the app and writes one record."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        record: dict[str, Any] = {}
        scope[RECORD] = record
        status = 0

        async def seen(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, seen)
        except BaseException as error:
            status = status or 500
            record["error"] = f"{type(error).__name__}: {error}"[:LONGEST]
            raise
        finally:
            client = scope.get("client")
            self.write(
                {
                    "time": _now(), "client": client[0] if client else None,
                    "method": scope["method"][:LONGEST], "path": scope["path"][:LONGEST],
                    "status": status or 499, "seconds": round(time.perf_counter() - begun, 4), **record,
                }
            )  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
