"""The running server: sockets, signals, and an end that finishes what was begun."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import uvicorn

from loopwright.serving.app import Service, make_app
from loopwright.serving.guard import OWN, Guard, Hosts
from loopwright.serving.models import ServedModel
from loopwright.serving.observe import AccessLog, LineWriter, LogLines
from loopwright.serving.schema import ServerLimits
from loopwright.serving.site import StaticSite
from loopwright.serving.sse import Connection

KEEP_ALIVE = 10  # seconds that a connection waits for the next request
DEAD_SECONDS = 60  # after which bytes that a peer does not acknowledge end its connection
BACKLOG = 1024
ROUTES = ("/health", "/metrics", "/v1/models", "/v1/tokenize", "/v1/chat/completions", "/v1/completions", "/explore")


def bind(host: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 is any that is free. A peer that vanishes is noticed by its connections."""
    if not 0 <= port < 2**16:  # the system would take 99999 for 34463
        raise ValueError(f"port must be a whole number from 0 to 65535 (got {port})")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family)
    except OSError as error:
        raise ValueError(f"host: {host!r} is no address of this machine ({error.strerror})") from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted connections inherit these
    if sys.platform == "linux":
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_SECONDS * 1000)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_SECONDS)
    try:
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ValueError(f"port: {host}:{port} cannot be used ({error.strerror}); take another with --port") from None
    return listening


class Server(uvicorn.Server):
    """uvicorn's server, which tells the service when it begins to drain."""

    def __init__(self, service: Service, app: Any, *, drain_seconds: int) -> None:
        config = uvicorn.Config(
            app, http=Connection, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
            proxy_headers=False,  # whoever asks is who connects
            timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=drain_seconds,
        )  # fmt: skip
        super().__init__(config)
        self.service = service

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Hears signals in the block. uvicorn's own raises them again at the end: a second one would end the process at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes nothing new, and waits for what was begun."""
        self.service.draining = True
        await super().shutdown(sockets)


def make_server(
    models: Mapping[str, ServedModel],
    write: Callable[[dict[str, Any]], object],
    *,
    limits: ServerLimits,
    key: str | None = None,
    hosts: Hosts = OWN,
    cors: Sequence[str] = (),
    drain_seconds: int = 30,
    access_log: bool = True,
    site: StaticSite | None = None,
) -> Server:
    """Returns a server of models that hands errors and, with `access_log`, one record per request to `write`."""
    service = Service(models, Guard(limits, key, hosts), limits)

    def record(entry: dict[str, Any]) -> None:
        route = next((route for route in ROUTES if entry["path"].startswith(route)), "other")
        service.metrics.requests.labels(route, entry["status"]).inc()
        if access_log:
            write(entry)

    LogLines(write).take("uvicorn.error", "asyncio")
    return Server(service, AccessLog(make_app(service, cors=cors, site=site), record), drain_seconds=drain_seconds)


def run(
    models: Mapping[str, ServedModel],
    listening: socket.socket,
    *,
    limits: ServerLimits,
    key: str | None = None,
    allowed_hosts: Sequence[str] = (),
    cors: Sequence[str] = (),
    drain_seconds: int = 30,
    access_log: bool = True,
    site: StaticSite | None = None,
    on_ready: Callable[[], object] = lambda: None,
) -> None:
    """Serves until a signal comes: then nothing new is taken, what was begun is finished, and the engines are closed.

    `on_ready` is called once signals are heard: who is told that the server is there may end it. The log goes to stdout; without
    access lines its errors go to stderr.
    """
    lines = LineWriter(sys.stdout if access_log else sys.stderr)
    hosts = Hosts(listening.getsockname()[0], tuple(allowed_hosts))
    server = make_server(
        models, lines.write, limits=limits, key=key, hosts=hosts, cors=cors,
        drain_seconds=drain_seconds, access_log=access_log, site=site,
    )  # fmt: skip
    try:
        with server.capture_signals():
            on_ready()
            server.run(sockets=[listening])
    finally:
        for model in models.values():
            model.engine.close()
        lines.close()
