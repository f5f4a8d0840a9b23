"""A page beside the API: files as they are, and routes that compute on a model, one at a time and beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.serving.models import ServedModel
from loopwright.serving.schema import Check, Refusal

KINDS = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}  # fmt: skip
INDEX = "index.html"
MOST_WAITING = 16  # views that wait for their turn
# the page loads its own files and asks its own server, and nothing else; no other page may frame it
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
SAFE = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin", "cache-control": "no-cache",
}  # fmt: skip


@dataclass(frozen=True)
class SiteView:
    """A route that computes: the fields of its JSON body, and the function of a model and the fields that were given."""

    path: str
    fields: Mapping[str, Check]
    work: Callable[[ServedModel, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class StaticSite:
    """The folder of a page's files (`index.html` stands at /), and the views that it asks for."""

    folder: Path
    views: tuple[SiteView, ...]


@dataclass(frozen=True)
class StaticFile:
    """A file of the page as it is sent. `tag` changes with its content, so that a browser keeps what it has."""

    content: bytes
    kind: str
    tag: str


def read_files(folder: Path) -> dict[str, StaticFile]:
    """Returns the files of a page by name, read once: what is asked for later touches no path."""
    files = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in KINDS:
            content = path.read_bytes()
            files[path.name] = StaticFile(content, KINDS[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return files


class Turns:
    """One view computes at a time, and a bounded number wait: the engine's own requests keep the rest of the processor."""

    def __init__(self, waiting: int = MOST_WAITING) -> None:
        self.most, self.held = waiting, 0
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for the turn; refuses where too many wait already."""
        if self.held > self.most:
            raise Refusal(
                f"queue: {self.most} views wait already; try again in 1 s",
                status=429,
                code="queue_full",
                headers={"retry-after": "1"},
            )
        self.held += 1
        try:
            async with self._turn:
                yield
        finally:
            self.held -= 1
