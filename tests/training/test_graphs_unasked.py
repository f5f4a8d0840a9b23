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
from loopwright.kernels import gate
from loopwright.model.parts.injection import INJECTIONS
from loopwright.training import graphs as under_test
from loopwright.training import run as job_module
from loopwright.training.depth import Fixed, Uniform
from loopwright.training.graphs import LEAVES, GraphedWork, unsuited
from loopwright.training.loop import train
from loopwright.training.objectives.distil import Shortcut
from loopwright.training.objectives.losses import Final
from loopwright.training.recipe import first_difference
from loopwright.training.report import Silent
from loopwright.training.rollout import Called, Plan
from loopwright.training.run import Share
from tests.training.runs import small
from tests.training.stand_in import CPU, Card
from tests.training.test_job import make_job


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


@pytest.mark.long
def test_what_leaves_too_little_room_is_captured_only_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, captured in ((True, 1), (False, 0)):
        card = Card(monkeypatch, peak=51)
        run, ran, said = graphed(asked=asked)
        for _ in range(4):
            call(run)
        assert card.captured == captured and len(ran) == (2 if asked else 4)
        assert asked or said == [f"{LEAVES}: they hold 51.0 of 100.0 GiB, and a graph would keep that (at most 50%)"]


def test_room_is_judged_by_what_this_run_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch, peak=10, before=90)  # a large run in the same process
    run, _, said = graphed(asked=False)
    for _ in range(2):
        call(run)
    assert card.captured == 1 and said == [under_test.REPLAYS]


@pytest.mark.long
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


@pytest.mark.long
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


@pytest.mark.long
def test_what_is_given_up_runs_where_all_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the stream of captures memory would be held that validation and the optimiser cannot use."""
    card = Card(monkeypatch, peak=51)
    aside: list[bool] = []

    def work(given: dict) -> tuple[torch.Tensor, dict]:
        assert gate.launches_are_free is card.aside
        aside.append(card.aside)
        return given["x"].sum(), {}

    run = GraphedWork(work, CPU, asked=False)
    for _ in range(3):
        run({"x": torch.ones(2)})
    assert aside == [True, False, False]


@pytest.mark.long
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


def why(model: Any = None, objective: Any = None, penalties: Any = (), rule: Any = None, remat: str = "none", **also: Any) -> str:
    """Why a run of these parts is not replayed unasked; empty where it is."""
    model = lw.build("huginn-tiny") if model is None else model
    return unsuited(model, objective or Final(), penalties, rule or Fixed(4), remat, **{"alike": True, **also}) or ""


def test_what_suits() -> None:
    assert not any(why(remat=remat) for remat in ("none", "step", "tree"))
    assert why(remat="implicit").startswith("remat: implicit") and why(rule=Uniform(4)) == "they are not all of one depth"
    assert why(alike=False) == "batches are not all of one shape"
    assert why(objective=Shortcut(fraction=None)) == "the work of the objective changes from update to update"
    assert why(objective=Called(Final())).startswith("the objective is not the package's own, ")
    assert why(objective=Theirs()) == why(penalties=[Theirs()]) and why(objective=Theirs()).startswith("Theirs is not the ")
    drops = lw.build("huginn-tiny", dropout=0.1).train()
    assert not why(drops) and why(drops, remat="step").startswith("remat: step asks for the random state")


def test_a_part_of_somebody_elses_is_not_replayed_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lw.build("huginn-tiny")
    monkeypatch.setattr(type(model.injection), "__module__", "mine")
    name = type(model.injection).__name__
    assert type(model.injection) in INJECTIONS.values() and why(model).startswith(f"{name} is not the package's own, ")


def test_what_hooks_do_is_not_left_out() -> None:
    def hook(*given: Any) -> None:
        """Somebody's own."""

    for register in ("register_forward_pre_hook", "register_forward_hook", "register_full_backward_hook"):
        model = lw.build("huginn-tiny")
        handle = getattr(model.core[0], register)(hook)
        assert why(model).startswith("the model has a hook, ")
        handle.remove()
        assert not why(model)
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        model = lw.build("huginn-tiny")
        getattr(model.embed_tokens.weight, register)(hook)
        assert why(model).startswith("the model has a hook, ")
    for register in ("register_module_forward_pre_hook", "register_module_forward_hook", "register_module_full_backward_hook"):
        handle = getattr(torch.nn.modules.module, register)(hook)
        try:
            assert why().startswith("the model has a hook, or all modules have one, ")
        finally:
            handle.remove()
    assert not why()


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
    graphs = job._graphs(reporter)
    assert (graphs is not None) is replayed and (graphs is None or not graphs.asked)
    told = not replayed and job.recipe.graph == "auto"  # where a pass could have been replayed, it is said why it is not
    assert len(reporter.notes) == told and all(note.startswith(f"{LEAVES}: ") for note in reporter.notes)
    for place, value, notes in (
        ("compiled", False, 0),
        ("processes", SimpleNamespace(world=2), 0),
        ("splits", SimpleNamespace(alike=False), int(job.recipe.graph == "auto")),
    ):
        reporter = Silent()
        with monkeypatch.context() as other:
            other.setattr(job, place, value)
            assert job._graphs(reporter) is None and len(reporter.notes) == notes


LEARNED = {"model": {"changes": {"positions": "learned", "max_position_embeddings": 16}}}
IDS = torch.ones(2, 20, dtype=torch.long)
LONG = Batch(IDS, IDS, segment_ids=torch.arange(20).expand(2, 20) // 8)


@pytest.mark.long
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
            super().__init__(work, device, **options)

        def __call__(self, tensors: Any, *fixed: Any) -> Any:
            return self.work(tensors, *fixed)

    Card(monkeypatch)
    monkeypatch.setattr(job_module.Job, "_graphs", lambda job, reporter: Held(job._backward_given, CPU))
    gc.disable()  # which would come for it sooner or later
    try:
        outcome = train(small({"updates": 1, "data": {"padding": "plain"}}), tmp_path / "run")
        assert len(kept) == 1 and kept[0]() is None
        assert all(parameter.grad is None for parameter in outcome.model.parameters())
    finally:
        gc.enable()


def test_a_run_may_go_on_with_and_without_graphs() -> None:
    assert first_difference(small({"graph": False}), small()) is None
