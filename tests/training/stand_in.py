"""A stand-in for a CUDA card on a CPU: what captures and judges room asks it."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loopwright.training.graphs import GraphedWork

CPU, GIB = torch.device("cpu"), 2**30


class Card:
    """A GPU that has `total` GiB and holds at most `peak`, `before` another run was made; what is captured on it is not run, and
    replays are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, peak: float = 10, total: float = 100, before: float = 0) -> None:
        self.peak, self.total, self.before, self.aside = peak, total, before, False
        self.error: Exception | None = None
        self.ended: list[torch.Generator] = []
        self.captured = self.replayed = self.emptied = 0
        stream = SimpleNamespace(wait_stream=lambda other: None)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
        monkeypatch.setattr(torch.cuda, "stream", self._stream)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=self._replay))
        monkeypatch.setattr(torch.cuda, "graph", self._capture)
        monkeypatch.setattr(torch.cuda, "default_generators", [torch.Generator()])
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "empty_cache", self._empty)
        monkeypatch.setattr(GraphedWork, "_end", lambda run, draws: self.ended.append(draws))
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(self.total * GIB / 4), int(2 * self.total * GIB)))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: int(self.total * GIB * 3 / 4))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: int(max(self.peak, self.before) * GIB))
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)

    @contextlib.contextmanager
    def _stream(self, side: object) -> Any:
        self.aside = True
        yield
        self.aside = False

    def _replay(self) -> None:
        self.replayed += 1

    def _reset(self, device: object) -> None:
        self.before = 0

    def _empty(self) -> None:
        self.emptied += 1

    @contextlib.contextmanager
    def _capture(self, graph: object, *, pool: object, stream: object) -> Any:
        yield
        if self.error is not None:
            raise self.error
        self.captured += 1
