"""An HTTP connection that gives up on a peer: one that sends no whole head, that reads nothing, or that sends what is no HTTP."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """uvicorn's connection, looked at every `patience` seconds: what has not moved between two looks is closed."""

    patience: ClassVar[float] = 30.0  # longer than a connection is kept open between two requests

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to look."""
        super().connection_made(transport)
        self._seen: Any = None
        self._timer = self.loop.call_later(self.patience, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends looking."""
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Takes bytes; those that break the parser end the connection."""
        try:
            super().data_received(data)
        except (UnicodeError, ValueError, RuntimeError):
            self.transport.abort()

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
