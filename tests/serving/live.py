"""A server in a thread, on a free port of loopback, and what the tests ask of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import torch

import loopwright as lw
from loopwright.generation.scheduler import Scheduler
from loopwright.serving.models import ServedModel
from loopwright.serving.schema import ServerLimits
from loopwright.serving.server import Server, bind, make_server
from loopwright.serving.site import StaticSite
from tests.generation.mix import make
from tests.generation.tiny import word_tokenizer

WORDS = word_tokenizer(chat=True)
SMALL = {"prelude_layers": 1, "core_layers": 1, "coda_layers": 1}  # of a tiny preset: these tests are about what is around it


@dataclass
class Live:
    """A running server, a client of it, and the records of its access log."""

    url: str
    server: Server
    models: dict[str, ServedModel]
    client: httpx.Client
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def model(self) -> ServedModel:
        return next(iter(self.models.values()))

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def post(self, path: str = "/v1/completions", **body: Any) -> httpx.Response:
        return self.client.post(path, json={"prompt": "the cat sat", "temperature": 0, "max_tokens": 5} | body)

    def ask(self, **body: Any) -> dict[str, Any]:
        response = self.post(**body)
        assert response.status_code == 200, response.text
        return response.json()

    def last_record(self, path: str = "/v1/completions") -> dict[str, Any]:
        """Returns the newest line of the log about a path."""
        # a request is one of uvicorn's tasks until its line is written, which is just after the client has the response
        assert until(lambda: not self.server.server_state.tasks)
        return [record for record in self.records if record.get("path") == path][-1]

    def idle(self) -> bool:
        """Whether no row is taken and no cell is lost, once nothing runs."""
        scheduler = self.model.engine._scheduler
        assert until(lambda: not scheduler.busy and not self.model.engine.open_requests)

        def given_back() -> bool:  # which the engine does just after it counts a request as done
            scheduler.prefixes.forget()
            whole = all(sum(size for _, size in cells.free) == cells.count for cells in scheduler.pool.cells.values())
            return len(scheduler.free_slots) == self.model.rows and not scheduler.running and whole

        return until(given_back)


def until(reached: Callable[[], object], seconds: float = 60.0) -> bool:
    """Waits until something is so, and returns whether it came to that."""
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


@contextmanager
def hold_engines() -> Iterator[threading.Event]:
    """Holds every engine at the second token of an answer while the block runs. The event is set once one is held.

    What a test asks while an answer is being made would otherwise race with the engine that makes it.
    """
    tick, held, go_on = Scheduler.tick, threading.Event(), threading.Event()

    def held_tick(self: Scheduler) -> None:
        if any(len(run.request.tokens) >= 2 for run in self.running):
            held.set()
            go_on.wait()
        tick(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "tick", held_tick)
        try:
            yield held
        finally:
            go_on.set()


@contextmanager
def live(
    models: dict[str, lw.LoopedForCausalLM] | None = None,
    *,
    limits: ServerLimits | None = None,
    key: str | None = None,
    cors: tuple[str, ...] = (),
    tokenizer: Any = WORDS,
    drain_seconds: int = 10,
    send_buffer: int | None = None,
    access_log: bool = True,
    site: StaticSite | None = None,
    **options: Any,
) -> Iterator[Live]:
    """Serves models in a thread while the block runs."""
    limits = limits or ServerLimits()
    options = {"max_rows": 4, "max_tokens": 400} | options
    named = models or {"tiny": make("huginn-tiny", **SMALL).float()}
    served = {name: ServedModel(name, model, tokenizer, limits=limits, **options) for name, model in named.items()}
    records: list[dict[str, Any]] = []
    server = make_server(
        served, records.append,
        limits=limits, key=key, cors=cors, drain_seconds=drain_seconds, access_log=access_log, site=site,
    )  # fmt: skip
    listening = bind("127.0.0.1", 0)
    if send_buffer is not None:  # of the connections: a small one is full sooner
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        with httpx.Client(base_url=url, timeout=60, headers=headers) as client:
            yield Live(url, server, served, client, records)
    finally:
        server.should_exit = True
        thread.join()
        for model in served.values():
            model.engine.close()


@torch.no_grad()
def offline(model: lw.LoopedForCausalLM, prompt: list[int], depth: int, new: int) -> list[int]:
    """Returns the greedy tokens of transformers' `generate`."""
    ids = torch.tensor([prompt])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), depth=depth, max_new_tokens=new, do_sample=False, eos_token_id=None
    )
    return made[0, len(prompt) :].tolist()
