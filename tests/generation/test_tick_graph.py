"""A tick of constant shape is the tick row by row: mixed steps, idle rows, short prompts, changed weights; captured on a GPU."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import loopwright as lw
from loopwright.generation import graphs as pass_graphs
from loopwright.generation import graphs as tick_graph
from loopwright.generation.exit_rules import build_exit
from loopwright.generation.graphs import PassGraphs, TickGraphs
from loopwright.generation.passes import Passes
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.scheduler import Scheduler
from tests.cases import gap, noisy, some
from tests.generation.mix import answer, check, deepest, make, random_options, serve, with_mixed_depth
from tests.generation.tiny import DENSE

PRESETS = ["ouro-1.4b", "huginn", "ouroboros-qwen2.5-3b", "asura", "retrofit-llama-1b", "stars-addition"]
SMALL = {"hidden_size": 16, "intermediate_size": 16, "prelude_layers": 1, "core_layers": 1, "coda_layers": 1}


def fixed(model: lw.LoopedForCausalLM, rows: int, tokens: int) -> Scheduler:
    """Returns a scheduler whose ticks have constant shapes; on a CPU nothing is captured, but the same is run."""
    scheduler = Scheduler(model, rows=rows, tokens=tokens, readings=6)
    scheduler.graphs = TickGraphs(model, scheduler.pool, scheduler.state, scheduler.input, scheduler.token)
    scheduler.passes = PassGraphs(model, scheduler.pool, rows)
    return scheduler


@pytest.mark.long
@pytest.mark.parametrize("name", some(PRESETS, {"huginn", "ouroboros-qwen2.5-3b"}))
def test_each_request_is_answered_as_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick_graph, "SHORTEST", 4)  # so that rows pass from one tick to the next longer one
    model, draw = make(f"{name}-tiny"), random.Random(name)
    requested = [random_options(model, draw, longest=20) for _ in range(5)]
    requested[0] = with_mixed_depth(model, requested[0], draw)
    scheduler = fixed(model, 3, 90)
    requests, cancelled = serve(scheduler, requested, draw, cancels=0.02)
    assert check(model, requests, cancelled, [answer(model, options) for options in requested]) == 0
    assert {part for parts, *_ in scheduler.graphs.ticks for part in parts} == {"prelude", "core", "coda"}
    assert sum(scheduler.pool.cells["core"].free[0]) == scheduler.pool.cells["core"].count  # every cell came back


@pytest.mark.long
@pytest.mark.parametrize("name", some(PRESETS, {"huginn"}))
def test_exits_and_drafts_are_answered_as_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (tick_graph, pass_graphs):
        monkeypatch.setattr(module, "SHORTEST", 4)
    model, draw = make(f"{name}-tiny", **(SMALL if name == "huginn" else {})), random.Random(2)
    requested = [replace(random_options(model, draw), depth=min(3, deepest(model))) for _ in range(7)]
    requested = [with_mixed_depth(model, options, draw) for options in requested]
    scheduler = fixed(model, 3, 90)
    scheduler.lag = 1
    requests, cancelled = serve(scheduler, requested, draw, cancels=0.02)
    assert check(model, requests, cancelled, [answer(model, options) for options in requested]) == 0
    parts = {part for parts, _, keeps in scheduler.graphs.ticks for part in parts if keeps}
    assert parts == {"prelude", "core", "coda"} and scheduler.ran.accepted > 0  # their tokens step and are read there


def test_what_a_tick_keeps_is_what_is_kept_row_by_row() -> None:
    model, histories = make("huginn-tiny"), []
    for make_scheduler in (fixed, lambda model, rows, tokens: Scheduler(model, rows=rows, tokens=tokens, readings=6)):
        scheduler = make_scheduler(model, 2, 60)
        requested = [RequestOptions((5, 6, 7), 4, 8), RequestOptions((5, 6, 7), 4, 8, draft_depth=2, draft_tokens=4)]
        for options in requested:
            scheduler.add(Request(options))
        with torch.no_grad():
            for _ in range(6):
                scheduler.tick()
        (run,) = [run for run in scheduler.running if run.history is not None]
        assert len(run.drafts) == 3
        assert len({int(token) for token in run.drafts}) > 1
        drafts = torch.stack(run.drafts).double()
        histories.append((run.history.inputs[2:5], run.history.after[[0, 1, 3], 2:5], drafts))  # the last are before the first step
    for kept, wanted in zip(*histories, strict=True):
        assert gap(kept, wanted) < 1e-12


def test_the_mean_of_states_is_read_out_where_a_rule_asks_for_it() -> None:
    model = make("ouro-1.4b-tiny", halting={"kind": "act"}, hidden_size=16, intermediate_size=16, core_layers=1)
    rule = build_exit("act", model)
    assert rule.averages_states
    requested = [RequestOptions((3 + i, 4, 5), 4, 5, exit=rule) for i in range(2)]
    requests, _ = serve(fixed(model, 2, 60), requested, random.Random(0))
    assert check(model, requests, set(), [answer(model, options) for options in requested]) == 0


@torch.no_grad()
def test_a_round_of_drafts_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = make("ouro-1.4b-tiny"), []
    scheduler, request = fixed(model, 1, 40), Request(RequestOptions((5, 6, 7), 4, 12, draft_depth=1, draft_tokens=4))
    scheduler.add(request)
    tolist, step = torch.Tensor.tolist, scheduler.passes.step_histories
    passes = []
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: (read.append(len(self)), tolist(self))[1])
    monkeypatch.setattr(torch.Tensor, "__int__", None)
    monkeypatch.setattr(scheduler.passes, "step_histories", lambda *given: (passes.append(given[3]), step(*given)))
    while not scheduler.ran.verified:
        scheduler.tick()
    assert read == [4 + 4 + 3]  # tokens, whether their logits are finite, drafts
    assert passes == [[1], [2], [3]]  # steps of the tick's graph are not among them


def test_rows_that_take_no_part_stay_as_they_are() -> None:
    model = make("huginn-tiny")
    scheduler = fixed(model, 4, 60)
    for depth in (1, 3):
        scheduler.add(Request(RequestOptions((3, 4, 5), depth, 4)))
    scheduler._admit()
    kept = [torch.randn_like(x) for x in (scheduler.state, scheduler.input)]
    for tensor, value in zip((scheduler.state, scheduler.input), kept, strict=True):
        tensor.copy_(value)
    keys = scheduler.pool.keys["core"].clone()
    first = scheduler.running[0]
    with torch.no_grad():
        first.phase = "embed"
        scheduler.graphs.launch([first], [first], [])
    idle = [slot for slot in range(4) if slot != first.slot]
    for tensor, value in zip((scheduler.state, scheduler.input), kept, strict=True):
        assert torch.equal(tensor[idle], value[idle]) and not torch.equal(tensor[first.slot], value[first.slot])
    written = (scheduler.pool.keys["core"] != keys).any(-1).any(-1).any(0).nonzero().flatten().tolist()
    assert written == [first.row.cell("core", 0)]


def test_a_model_without_a_loop_is_answered() -> None:
    model = make("ouroboros-qwen2.5-3b-tiny", **DENSE)
    requested = [RequestOptions((3, 4, 5), 1, 4), RequestOptions(tuple(range(2, 22)), 1, 4)]  # the second prompt is no short one
    requests, _ = serve(fixed(model, 2, 60), requested, random.Random(0))
    assert check(model, requests, set(), [answer(model, options) for options in requested]) == 0


@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (1, 2), (4, 3), (4, 4), (20, 16), (20, 17)])
def test_a_prompt_goes_through_the_ticks_where_it_has_fewer_tokens_than_there_are_rows(rows: int, tokens: int) -> None:
    model = make("ouro-1.4b-tiny")
    scheduler, options = fixed(model, rows, 40), RequestOptions(tuple(range(2, 2 + tokens)), 2, 2)
    requests, _ = serve(scheduler, [options], random.Random(0))
    assert check(model, requests, set(), [answer(model, options)]) == 0
    assert bool(scheduler.passes.passes) == ((rows, tokens) in {(1, 2), (4, 4), (20, 17)})


@torch.no_grad()
def test_logits_of_half_precision_are_finite_up_to_its_largest() -> None:
    model = noisy("ouro-1.4b-tiny").half()
    for _ in range(2):  # the second time they are as far apart as no number of half precision is
        scheduler = fixed(model, 1, 8)
        request = Request(RequestOptions((3,), 2, 1))
        scheduler.add(request)
        while scheduler.busy:
            scheduler.tick()
        logits = scheduler.graphs.logits[0].float()
        assert logits.isfinite().all() and scheduler.graphs.usable[0] and request.result(0).tokens == [int(logits.argmax())]
        model.lm_head.weight.mul_(5e4 / float(logits.abs().max()))
    assert logits.max() - logits.min() > torch.finfo(torch.float16).max


@torch.no_grad()
def test_a_part_of_another_precision_is_answered() -> None:
    model = noisy("ouro-1.4b-tiny").to(torch.bfloat16)
    model.end_norm.float()
    scheduler = fixed(model, 1, 8)
    request = Request(RequestOptions((3, 4), 2, 2))
    scheduler.add(request)
    while scheduler.busy:
        scheduler.tick()
    assert len(request.result(0).tokens) == 2 and scheduler.state.dtype == torch.bfloat16


def test_a_cpu_runs_row_by_row() -> None:
    assert Scheduler(noisy("ouro-1.4b-tiny"), rows=2, tokens=16).graphs is None


@torch.no_grad()
def states_of(model: lw.LoopedForCausalLM, *, graphs: bool, length: int, change: str) -> tuple[list[list[int]], torch.Tensor]:
    """Returns the tokens of five requests of mixed depths in three rows, and the states of the rows at the end."""
    scheduler = Scheduler(model, rows=3, tokens=5 * (length + 8))
    assert scheduler.graphs is not None
    if not graphs:
        scheduler.graphs, scheduler.passes = None, Passes(model, scheduler.pool)
    most = min(4, model.config.max_steps or 4)
    requests = [Request(RequestOptions(tuple(range(2, 2 + length - i)), 1 + (3 * i) % most, 6)) for i in range(5)]
    for request in requests:
        scheduler.add(request)
    for tick in range(400):
        if tick == 6 and change == "values":
            for parameter in model.parameters():
                parameter.mul_(1.05)
        if scheduler.busy:
            scheduler.tick()
    if graphs:
        assert all(tick.graph is not None for tick in scheduler.graphs.ticks.values())
    return [request.result(0).tokens for request in requests], scheduler.state.clone()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "length", "change"),
    [*((name, length, "") for length in (7, 300) for name in PRESETS), ("ouro-1.4b", 30, "values")],  # 300: two reaches
)
def test_captured_is_row_by_row(name: str, length: int, change: str) -> None:
    def model() -> lw.LoopedForCausalLM:
        return noisy(f"{name}-tiny", std=0.1, vocab_size=400, max_position_embeddings=512).cuda()

    tokens, states = states_of(model(), graphs=True, length=length, change=change)
    wanted, exact = states_of(model(), graphs=False, length=length, change=change)
    assert tokens == wanted
    assert gap(states, exact) < 1e-4


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("name", ["ouro-1.4b", "huginn"])
def test_captured_ticks_hold_ends_back_as_row_by_row(name: str) -> None:
    model = noisy(f"{name}-tiny", std=0.1, vocab_size=400).cuda()
    found = []
    for graphs in (True, False):
        scheduler = Scheduler(model, rows=3, tokens=96)
        if not graphs:
            scheduler.graphs, scheduler.passes = None, Passes(model, scheduler.pool)
        ends = frozenset(range(0, 400, 2))
        requests = [Request(RequestOptions((2 + i, 7), 1 + i % 3, 8, ends=ends, min_new_tokens=i)) for i in range(6)]
        for request in requests:
            scheduler.add(request)
        while scheduler.busy:
            scheduler.tick()
        found.append([request.result(0).tokens for request in requests])
    assert found[0] == found[1] and all(len(tokens) >= i for i, tokens in enumerate(found[0]))
    assert not ends & {token for i, tokens in enumerate(found[0]) for token in tokens[:i]}


@pytest.mark.gpu
@torch.no_grad()
def test_scores_that_are_no_numbers_end_captured_requests() -> None:
    model = noisy("ouro-1.4b-tiny", std=0.1).cuda()
    with lw.Engine(model, max_rows=2, max_tokens=64) as engine:
        assert len(engine.submit([3, 1, 4], max_new_tokens=4).result(60).tokens) == 4
        model.lm_head.weight[:, 0] = float("nan")
        with pytest.raises(ValueError, match="finite"):
            engine.submit([3, 1, 4], max_new_tokens=4).result(60)


@pytest.mark.gpu
@torch.no_grad()
def test_tensors_that_take_the_place_of_weights_are_read_by_the_next_request() -> None:
    model = noisy("ouro-1.4b-tiny", std=0.1).cuda()
    scheduler = Scheduler(model, rows=2, tokens=64)

    def ask() -> list[int]:
        request = Request(RequestOptions((3, 4, 5), 3, 6))
        scheduler.add(request)
        while scheduler.busy:
            scheduler.tick()
        return request.result(0).tokens

    ask()
    other = noisy("ouro-1.4b-tiny", std=0.1, seed=5).cuda()
    for module, new in zip(model.modules(), other.modules(), strict=True):
        for key, parameter in new._parameters.items():
            module._parameters[key] = parameter
    made = model.generate(torch.tensor([[3, 4, 5]], device="cuda"), depth=3, max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert ask() == made[0, 3:].tolist()
