"""When passes are captured without being asked for, and what happens to the memory of graphs; a stand-in for CUDA on a CPU."""

from __future__ import annotations

import contextlib
import gc
import re
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.model.forward import launches
from loopwright.model.parts.injection import INJECTIONS
from loopwright.train import job as job_module
from loopwright.train.depth import Fixed, Uniform
from loopwright.train.devices.training_module import Share
from loopwright.train.gradients import graphs as under_test
from loopwright.train.gradients.graphs import LEAVES, GraphedWork, suits
from loopwright.train.job import made_with
from loopwright.train.loop import train
from loopwright.train.objectives.distil import Shortcut
from loopwright.train.objectives.losses import Final
from loopwright.train.recipe import first_difference
from loopwright.train.reporting.progress import Silent
from loopwright.train.rollout import Called, Plan
from tests.train.runs import small
from tests.train.test_job import make_job

CPU, GIB = torch.device("cpu"), 2**30


class Card:
    """A GPU that has `total` GiB and holds at most `peak`; what is captured on it is not run, and replays are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, peak: float = 10, total: float = 100) -> None:
        self.peak, self.total, self.aside = peak, total, False
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
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: int(self.peak * GIB))

    @contextlib.contextmanager
    def _stream(self, side: object) -> Any:
        self.aside = True
        yield
        self.aside = False

    def _replay(self) -> None:
        self.replayed += 1

    def _empty(self) -> None:
        self.emptied += 1

    @contextlib.contextmanager
    def _capture(self, graph: object, *, pool: object, stream: object) -> Any:
        yield
        if self.error is not None:
            raise self.error
        self.captured += 1


def graphed(*, asked: bool) -> tuple[GraphedWork, list[int], list[str]]:
    ran: list[int] = []
    said: list[str] = []

    def work(given: dict, depth: int) -> tuple[torch.Tensor, dict]:
        ran.append(depth)
        return given["x"].sum(), {}

    return GraphedWork(work, CPU, asked=asked, note=said.append), ran, said


def call(run: GraphedWork, depth: int = 4, length: int = 3) -> None:
    run({"x": torch.ones(length)}, depth)


def test_the_second_pass_is_captured_and_later_ones_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in (True, False):
        card = Card(monkeypatch, peak=50)
        run, ran, said = graphed(asked=asked)
        for _ in range(5):
            call(run)
        assert (card.captured, card.replayed, len(ran)) == (1, 4, 2)  # once as written, once to be captured
        assert said == ([] if asked else [under_test.REPLAYS])


def test_what_leaves_too_little_room_is_captured_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, captured in ((True, 1), (False, 0)):
        card = Card(monkeypatch, peak=51)
        run, ran, said = graphed(asked=asked)
        for _ in range(4):
            call(run)
        assert card.captured == captured and len(ran) == (2 if asked else 4)
        assert asked or said == [f"{LEAVES}: they hold 51.0 of 100.0 GiB, and a graph would keep that (at most 50%)"]


def test_other_work_ends_it_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As written the other pass needs its memory beside that of the graphs: a run that fits without them must not fail."""
    for asked in (True, False):
        for other in ({"depth": 5}, {"length": 4}):
            card = Card(monkeypatch)
            run, ran, said = graphed(asked=asked)
            for _ in range(3):
                call(run)
            for _ in range(2):
                call(run, **other)
            call(run)
            assert bool(run.graphs) is asked and card.captured == (2 if asked else 1)
            assert card.emptied == (0 if asked else 1) and len(ran) == (4 if asked else 5)
            last = f"{LEAVES}: they are not all of one shape, depth and set of penalties"
            assert said == ([] if asked else [under_test.REPLAYS, last])


def test_a_capture_that_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in (True, False):
        for error in (torch.OutOfMemoryError("no room"), RuntimeError("not permitted when stream is capturing\nand more")):
            card = Card(monkeypatch)
            card.error = error  # as the capture ends, so that torch's state must be mended
            run, ran, said = graphed(asked=asked)
            call(run)
            with pytest.raises(type(error)) if asked else contextlib.nullcontext():
                call(run)
            assert len(card.ended) == 1
            if not asked:
                call(run)
                assert not run.graphs and not run.capturing and len(ran) == 4  # the second was tried, then run
                assert said == [f"{LEAVES}: the capture failed ({str(error).splitlines()[0]})"]


def test_what_is_given_up_runs_where_all_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the stream of captures memory would be held that validation and the optimiser cannot use."""
    card = Card(monkeypatch, peak=51)
    aside: list[bool] = []

    def work(given: dict) -> tuple[torch.Tensor, dict]:
        assert launches.free is card.aside
        aside.append(card.aside)
        return given["x"].sum(), {}

    run = GraphedWork(work, CPU, asked=False)
    for _ in range(3):
        run({"x": torch.ones(2)})
    assert aside == [True, False, False]


def test_what_fails_inside_a_capture_that_ends_well_needs_no_mending(monkeypatch: pytest.MonkeyPatch) -> None:
    """And its error holds none of its tensors, which give memory back only then."""
    card, tries, held = Card(monkeypatch), [], []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: held.append([tensor() for tensor in tries]))

    def work(given: dict) -> tuple[torch.Tensor, dict]:
        inside = given["x"] + 1
        tries.append(weakref.ref(inside))
        if len(tries) == 2:
            raise KeyError("mine")
        return inside.sum(), {}

    run = GraphedWork(work, CPU, asked=False)
    for _ in range(3):
        run({"x": torch.ones(2)})
    assert not card.ended and not run.graphs and len(tries) == 4 and held == [[None, None]]


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


def test_what_hooks_do_is_not_left_out() -> None:
    def hook(*given: Any) -> None:
        """Somebody's own."""

    for register in ("register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook"):
        model = lw.build("huginn-tiny")
        handle = getattr(model.core[0], register)(hook)
        assert not suits(model, Final(), [], Fixed(4), "none")
        handle.remove()
        assert suits(model, Final(), [], Fixed(4), "none")
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        model = lw.build("huginn-tiny")
        getattr(model.embed_tokens.weight, register)(hook)
        assert not suits(model, Final(), [], Fixed(4), "none")


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
    graphs = job._graphs(Silent())
    assert (graphs is not None) is replayed and (graphs is None or not graphs.asked)
    for place, value in (("compiled", False), ("splits", SimpleNamespace(alike=False)), ("processes", SimpleNamespace(world=2))):
        with monkeypatch.context() as other:
            other.setattr(job, place, value)
            assert job._graphs(Silent()) is None


LEARNED = {"model": {"changes": {"positions": "learned", "max_position_embeddings": 16}}}
IDS = torch.ones(2, 20, dtype=torch.long)
LONG = Batch(IDS, IDS, segment_ids=torch.arange(20).expand(2, 20) // 8)


@pytest.mark.parametrize(
    ("changes", "batch", "message"),
    [
        ({}, Batch(IDS, IDS, attention_mask=IDS), "batches come with a mask, whose values decide what is run; allowed: rows with"),
        (LEARNED, LONG, "rows have 20 tokens and learned positions end at 16, .*; allowed: data.length=16 or less"),
    ],
    ids=["mask", "positions"],
)
def test_rows_that_cannot_be_captured(
    changes: dict, batch: Batch, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for, a graph is refused before the first pass, in our own words; unasked, all runs as written."""
    Card(monkeypatch)
    job, said = make_job(tmp_path, changes), []
    given = (batch.ready(), Plan(2, 2), Share(), None)
    job.replayed = GraphedWork(job._backward_given, CPU)
    with pytest.raises(ValueError, match=f"^graph: {message}.*, or graph: false$"):
        job.backward(*given)
    assert not job.replayed.seen
    job.replayed = GraphedWork(job._backward_given, CPU, asked=False, note=said.append)
    losses = [job.backward(*given)[0].item() for _ in range(3)]
    assert len(said) == 1 and re.match(f"{LEAVES}: {message}", said[0]) and not job.replayed.graphs
    job.replayed = None
    assert losses == [job.backward(*given)[0].item()] * 3


def test_documents_that_fit_whatever_their_lengths_are_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card, job = Card(monkeypatch), make_job(tmp_path, LEARNED)
    job.replayed = GraphedWork(job._backward_given, CPU)
    short = Batch(*(x[:, :16].contiguous() for x in (IDS, IDS)), segment_ids=LONG.segment_ids[:, :16]).ready(coarse=True)
    for _ in range(2):
        job.backward(short, Plan(2, 2), Share(), None)
    assert card.replayed == 1


def test_the_memory_of_graphs_is_free_when_a_run_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[weakref.ref] = []

    class Held(GraphedWork):
        def __init__(self, work: Any, device: Any, **options: Any) -> None:
            kept.append(weakref.ref(self))
            self.work, self.asked, self.capturing = work, True, True

        def __call__(self, tensors: Any, *fixed: Any) -> Any:
            return self.work(tensors, *fixed)

    monkeypatch.setattr(job_module.Job, "_graphs", lambda job, reporter: Held(job._backward_given, CPU))
    gc.disable()  # which would come for it sooner or later
    try:
        train(small({"updates": 1, "data": {"padding": "plain"}}), tmp_path / "run")
        assert len(kept) == 1 and kept[0]() is None
    finally:
        gc.enable()


def test_a_run_that_goes_on_without_its_graphs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, reporter = small({"updates": 2, "save": {"best": False}}), Silent()
    with monkeypatch.context() as earlier:
        earlier.setattr(job_module, "made_with", lambda job: {**made_with(job), "replayed": True})
        train(recipe, tmp_path)
    train(recipe, tmp_path, resume=True, reporter=reporter)
    assert any("not made as before (replayed: True then, False now)" in note for note in reporter.notes)


def test_a_run_may_go_on_with_and_without_graphs() -> None:
    assert first_difference(small({"graph": False}), small()) is None
