"""`loopwright explore`: the explorer's page on loopback, opened in the browser."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Sequence

from loopwright.checkpoints.source import Source
from loopwright.commands.serve import name_sources, serve
from loopwright.process import say

ROWS = 4  # sequences at a time: one person asks for two answers at once


def explore(
    sources: Sequence[str],
    *,
    port: int = 8000,
    browser: bool = True,
    depth: int | None = None,
    max_depth: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    tokenizer: str | None = None,
) -> None:
    """Serves models on loopback and opens the explorer, until Ctrl-C."""
    for source in name_sources(sources).values():
        Source(source).need_weights("explore")
    serve(
        sources,
        port=port, depth=depth, max_depth=max_depth, max_rows=ROWS, device=device, dtype=dtype, tokenizer=tokenizer,
        access_log=False, on_listening=_open if browser else None,
    )  # fmt: skip


def _open(url: str) -> None:
    """Opens the page in a thread: some browsers hold the call up until they are closed."""

    def ask() -> None:
        if not webbrowser.open(f"{url}/"):
            say(f"loopwright: no browser was found; open {url}/")

    threading.Thread(target=ask, name="loopwright-browser", daemon=True).start()
