"""What an operator reads: the access log, and the metrics that Prometheus reads at /metrics.

The log is one JSON line per request, written by a thread of its own, so that a slow disk delays nobody.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from loopwright.serving.answer import ServedRequest
from loopwright.serving.models import ServedModel
from loopwright.serving.sse import Receive, Send

HELD = 10_000  # lines that wait to be written; what comes beyond is counted and left out
RECORD = "loopwright.record"  # where a scope holds what its handler says of the request
LONGEST = 300  # characters of what a client wrote
SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
RAN = {
    "ticks": "Ticks of the engine",
    "row_steps": "Core steps, counted by row",
    "token_steps": "Core steps, counted by token, those of earlier tokens that came along included",
    "prefill_tokens": "Prompt tokens that were run",
    "drafted": "Tokens drafted at a lower depth",
    "accepted": "Drafted tokens that held",
}


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
        self.hand_over = write

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record, its traceback included."""
        self.hand_over({"time": _now(), "level": record.levelname.lower(), "message": self.format(record)})

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


class Metrics:
    """The numbers of one server, in a registry of its own."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Engines(models))

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"loopwright_{name}", words, labels, registry=self.registry)

        def seconds(name: str, words: str) -> Histogram:
            return Histogram(f"loopwright_{name}_seconds", words, ("model",), buckets=SECONDS, registry=self.registry)

        self.requests = counter("requests", "HTTP requests", "route", "status")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts", "model")
        self.tokens = counter("completion_tokens", "Tokens of answers", "model")
        self.steps = counter("completion_steps", "Steps that the tokens of answers took", "model")
        self.gone = counter("disconnects", "Clients that went before their answer ended", "model")
        self.first_token = seconds("first_token", "From the request to its first token")
        self.whole = seconds("request", "From the request to the end of its answer")

    def count(self, job: ServedRequest, seconds: float) -> None:
        """Counts a job that has ended, or whose client has disconnected."""
        name, usage = job.model.name, job.usage
        self.prompt_tokens.labels(name).inc(usage["prompt_tokens"])
        self.tokens.labels(name).inc(usage["completion_tokens"])
        self.steps.labels(name).inc(usage["completion_steps"])
        self.whole.labels(name).observe(seconds)
        if job.first_token is not None:
            self.first_token.labels(name).observe(job.first_token)
        if job.gone:
            self.gone.labels(name).inc()

    def page(self) -> tuple[bytes, str]:
        """Returns the page and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _Engines:
    """Reads the engines when the page is asked for."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self.models = models

    def collect(self) -> Iterator[Metric]:
        rows = GaugeMetricFamily("loopwright_rows", "Sequences that can run at a time", labels=["model"])
        held = GaugeMetricFamily("loopwright_open_sequences", "Sequences that run or wait", labels=["model"])
        room = GaugeMetricFamily("loopwright_queue_room", "Sequences that may still be taken", labels=["model"])
        for name, model in self.models.items():
            rows.add_metric([name], model.rows)
            held.add_metric([name], model.engine.open_requests)
            room.add_metric([name], max(model.rows + model.limits.queue - model.engine.open_requests, 0))
        yield from (rows, held, room)
        for field, words in RAN.items():
            family = CounterMetricFamily(f"loopwright_engine_{field}", words, labels=["model"])
            for name, model in self.models.items():
                family.add_metric([name], getattr(model.engine.ran, field))
            yield family
