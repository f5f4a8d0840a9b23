"""When passes are captured without being asked for, and what happens to the memory of graphs; a stand-in for CUDA on a CPU."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.model.parts.injection import INJECTIONS
from loopwright.train import job as job_module
from loopwright.train.depth import Fixed, Uniform
from loopwright.train.gradients import graphs as under_test
from loopwright.train.gradients.graphs import GraphedWork, suits
from loopwright.train.objectives.distil import Shortcut
from loopwright.train.objectives.losses import Final
from loopwright.train.recipe import first_difference
from loopwright.train.reporting.progress import Silent
from loopwright.train.rollout import Called
from tests.train.runs import small
from tests.train.test_job import make_job

CPU, GIB = torch.device("cpu"), 2**30


class Card:
    """A GPU that has `total` GiB and holds at most `peak`; what is captured on it is not run, and replays are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, peak: float = 10, total: float = 100) -> None:
        self.peak, self.total, self.full = peak, total, False
        self.captured = self.replayed = self.emptied = 0
        stream = SimpleNamespace(wait_stream=lambda other: None)
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
        monkeypatch.setattr(torch.cuda, "stream", lambda side: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=self._replay))
        monkeypatch.setattr(torch.cuda, "graph", self._capture)
        monkeypatch.setattr(torch.cuda, "empty_cache", self._empty)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(self.total * GIB / 4), int(2 * self.total * GIB)))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: int(self.total * GIB * 3 / 4))
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: int(self.peak * GIB))

    def _replay(self) -> None:
        self.replayed += 1

    def _empty(self) -> None:
        self.emptied += 1

    @contextlib.contextmanager
    def _capture(self, graph: object, *, pool: object, stream: object) -> Any:
        yield
        if self.full:
            raise torch.OutOfMemoryError("no room")
        self.captured += 1


def graphed(**options: Any) -> tuple[GraphedWork, list[int]]:
    ran: list[int] = []

    def work(given: dict, depth: int) -> tuple[torch.Tensor, dict]:
        ran.append(depth)
        return given["x"].sum(), {}

    return GraphedWork(work, CPU, **options), ran


def call(run: GraphedWork, depth: int = 4, length: int = 3) -> None:
    run({"x": torch.ones(length)}, depth)


def test_the_second_pass_is_captured_and_later_ones_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in (True, False):
        card = Card(monkeypatch, peak=50)
        run, ran = graphed(asked=asked)
        for _ in range(5):
            call(run)
        assert (card.captured, card.replayed, len(ran)) == (1, 4, 2)  # once as written, once to be captured


def test_what_leaves_too_little_room_is_captured_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, captured in ((True, 1), (False, 0)):
        card = Card(monkeypatch, peak=51)
        run, ran = graphed(asked=asked)
        for _ in range(4):
            call(run)
        assert card.captured == captured and len(ran) == (2 if asked else 4)


def test_other_work_ends_it_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As written the other pass needs its memory beside that of the graphs: a run that fits without them must not fail."""
    for asked in (True, False):
        for other in ({"depth": 5}, {"length": 4}):
            card = Card(monkeypatch)
            run, ran = graphed(asked=asked)
            for _ in range(3):
                call(run)
            for _ in range(2):
                call(run, **other)
            call(run)
            assert bool(run.graphs) is asked and card.captured == (2 if asked else 1)
            assert card.emptied == (0 if asked else 1) and len(ran) == (4 if asked else 5)


def test_a_capture_without_memory_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in (True, False):
        card = Card(monkeypatch)
        card.full = True
        run, ran = graphed(asked=asked)
        call(run)
        with pytest.raises(torch.OutOfMemoryError) if asked else contextlib.nullcontext():
            call(run)
        if not asked:
            call(run)
            assert not run.graphs and not run.capturing and len(ran) == 4  # the second was tried, then run


class Theirs(Final):
    """Somebody's own objective."""


Theirs.__module__ = "mine"


def test_what_suits() -> None:
    model, fixed = lw.build("huginn-tiny"), Fixed(4)
    assert all(suits(model, Final(), [], fixed, remat) for remat in ("none", "step", "tree"))
    assert not suits(model, Final(), [], fixed, "implicit")
    assert not suits(model, Final(), [], Uniform(4), "none")
    assert not suits(model, Shortcut(fraction=None), [], fixed, "none")
    assert not suits(model, Theirs(), [], fixed, "none") and not suits(model, Called(Final()), [], fixed, "none")
    assert not suits(model, Final(), [Theirs()], fixed, "none")
    drops = lw.build("huginn-tiny", dropout=0.1).train()
    assert suits(drops, Final(), [], fixed, "none") and not suits(drops, Final(), [], fixed, "step")


def test_a_part_of_somebody_elses_is_not_replayed_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lw.build("huginn-tiny")
    monkeypatch.setattr(type(model.injection), "__module__", "mine")
    assert type(model.injection) in INJECTIONS.values() and not suits(model, Final(), [], Fixed(4), "none")


@pytest.mark.parametrize(
    ("changes", "replayed"),
    [
        ({}, True),
        ({"graph": False}, False),
        ({"depth": {"kind": "uniform", "least": 2, "most": 4}}, False),
        ({"remat": "implicit"}, False),
    ],
)
def test_a_run_on_a_gpu_replays_unasked(changes: dict, replayed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Card(monkeypatch)
    job = make_job(tmp_path, {"depth": {"kind": "fixed", "depth": 3}, "model": {"changes": {"dropout": 0.0}}, **changes})
    assert job.replayed is None  # a CPU
    for place, value in (("device", torch.device("cuda")), ("compiled", True), ("splits", SimpleNamespace(alike=True))):
        monkeypatch.setattr(job, place, value)
    reporter = Silent()
    found = job._graphs(reporter)
    assert (found is not None) is replayed and reporter.notes == ([under_test.SAID] if replayed else [])
    assert found is None or not found.asked
    for place, value in (("compiled", False), ("splits", SimpleNamespace(alike=False)), ("processes", SimpleNamespace(world=2))):
        with monkeypatch.context() as other:
            other.setattr(job, place, value)
            assert job._graphs(Silent()) is None


def test_rows_with_a_mask_run_as_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(tmp_path)
    ran: list[str] = []
    monkeypatch.setattr(job, "replayed", SimpleNamespace(asked=False))
    monkeypatch.setattr(job, "_backward", lambda *given: ran.append("as written"))
    ids = torch.ones(2, 3, dtype=torch.long)
    job.backward(Batch(ids, ids, attention_mask=ids), job_module.Plan(2, 2), job_module.Share(), None)
    assert ran == ["as written"]


def test_a_run_may_go_on_with_and_without_graphs() -> None:
    assert first_difference(small({"graph": False}), small()) is None
