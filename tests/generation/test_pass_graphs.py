"""Passes of constant shape are the passes row by row: prompts, tokens that were left behind, drafts; captured on a GPU."""

from __future__ import annotations

import random

import pytest
import torch

import loopwright as lw
from loopwright.generation import graphs as tick_graph
from loopwright.generation.exit_rules import build_exit
from loopwright.generation.graphs import PassGraphs
from loopwright.generation.passes import Passes
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.scheduler import Scheduler
from loopwright.model.keys.pool import KeyPool
from tests.cases import gap, noisy, some
from tests.generation.mix import answer, check, make, random_options, serve, with_mixed_depth

CHANGES: dict[str, dict] = {
    "huginn": {},
    "ouroboros-qwen2.5-3b": {"adapters": [{"kind": "controller", "pooling": "chunk", "chunk": 2}]},
    "asura": {},
    "ouro-1.4b": {"sliding_window": 3},
    "retrofit-llama-1b": {},
}
PRESETS = ["ouro-1.4b", "huginn", "asura", "stars-addition"]


@torch.no_grad()
def passed(model: lw.LoopedForCausalLM, kind: type[Passes], lengths: tuple[int, ...]) -> list[torch.Tensor]:
    """Returns what two chunks of tokens in each of three rows leave, and what the pool then holds."""
    pool = KeyPool(model.config, 60, model.lm_head.weight, depth=2)
    passes = Passes(model, pool) if kind is Passes else PassGraphs(model, pool, 4)
    rows = [pool.admit(12, 2, (2,)) for _ in lengths]
    draw, first, left = random.Random(0), [0] * len(rows), []
    for count in (lengths, lengths[::-1]):
        ids = [[draw.randrange(96) for _ in range(n)] for n in count]
        e, s = passes.embed(rows, first, ids, [None, 7, None][: len(rows)])
        for steps in ([0] * len(rows), [1] * len(rows)):
            s = passes.step(rows, first, s, e, steps)
        left += [x.clone() for x in (*e, *s, *passes.features(rows, first, s, [2] * len(rows)))]
        first = [a + n for a, n in zip(first, count, strict=True)]
    return [*left, *pool.keys.values(), *pool.values.values(), *pool.sums.values()]


@pytest.mark.parametrize("name", some(CHANGES, {"huginn", "ouroboros-qwen2.5-3b", "ouro-1.4b"}))
@pytest.mark.parametrize("lengths", [(4, 1, 3), (2, 5), (5,)])
def test_constant_shapes_are_row_by_row(name: str, lengths: tuple[int, ...]) -> None:
    model = noisy(f"{name}-tiny", **CHANGES[name]).double().eval()
    for fixed, plain in zip(passed(model, PassGraphs, lengths), passed(model, Passes, lengths), strict=True):
        assert gap(fixed, plain) < 1e-12


def test_few_rows_do_not_run_as_all() -> None:
    model = noisy("huginn-tiny").double().eval()
    pool = KeyPool(model.config, 80, model.lm_head.weight, depth=2)
    passes = PassGraphs(model, pool, 6)
    rows = [pool.admit(12, 2, (2,)) for _ in range(5)]
    for count in range(1, 6):
        passes.embed(rows[:count], [0] * count, [[1, 2]] * count, [None] * count)
    assert [shape for _, _, shape, *_ in passes.passes] == [1, 2, 4, 6]


@torch.no_grad()
def answers(model: lw.LoopedForCausalLM, *, graphs: bool) -> list[list[int]]:
    """Returns the tokens of requests with prompts of many lengths, early exits and drafts in three rows."""
    scheduler = Scheduler(model, rows=3, tokens=3 * 120, readings=4)
    if not graphs:
        scheduler.graphs, scheduler.passes = None, Passes(model, scheduler.pool)
    exit_rule = build_exit({"kind": "change", "threshold": 0.5}, model)
    fields = [{}, {"exit": exit_rule}, {"draft_depth": 1, "draft_tokens": 3}, {}, {"exit": exit_rule}, {"draft_depth": 2}]
    depth = min(4, model.config.max_steps or 4)  # beyond it there are no parameters; an engine refuses such a request
    requested = [RequestOptions(tuple(range(2, 2 + n)), depth, 9, **o) for n, o in zip((40, 3, 9, 70, 33, 20), fields, strict=True)]
    requests = [Request(options) for options in requested]
    for request in requests:
        scheduler.add(request)
    while scheduler.busy:
        scheduler.tick()
    if graphs:
        assert all(made.graph is not None for made in scheduler.passes.passes.values())
    return [request.result(0).tokens for request in requests]


@pytest.mark.gpu
@pytest.mark.parametrize("name", PRESETS)
def test_captured_is_row_by_row(name: str) -> None:
    model = noisy(f"{name}-tiny", std=0.1, vocab_size=400, max_position_embeddings=512).cuda()
    assert answers(model, graphs=True) == answers(model, graphs=False)


def mixed(model: lw.LoopedForCausalLM, count: int) -> tuple[list[RequestOptions], random.Random]:
    draw = random.Random(5)
    return [with_mixed_depth(model, random_options(model, draw, longest=40), draw) for _ in range(count)], draw


@pytest.mark.gpu
@pytest.mark.parametrize("name", PRESETS)
def test_on_a_gpu_each_request_is_answered_as_alone(name: str) -> None:
    """Exits, drafts, cancellations, sampling, arrivals, depths: in float64, where no order of adding changes a token."""
    model = make(f"{name}-tiny")
    requested, draw = mixed(model, 24)
    answers = [answer(model, options) for options in requested]  # on the CPU
    model.cuda()
    scheduler = Scheduler(model, rows=4, tokens=4 * 60, readings=6)
    requests, cancelled = serve(scheduler, requested, draw, cancels=0.02)
    assert check(model, requests, cancelled, answers) == 0
    assert all(made.graph is not None for made in (*scheduler.graphs.ticks.values(), *scheduler.passes.passes.values()))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ouro-1.4b", "huginn", "retrofit-llama-1b"])
def test_fused_passes_of_a_few_tokens_answer_as_alone(name: str) -> None:
    """Drafts and tokens that are brought along, in float32, where fused kernels run them, against generate without an engine."""
    model, draw = noisy(f"{name}-tiny", std=0.1).eval(), random.Random(3)
    rules = [build_exit(rule, model) for rule in ({"kind": "stable", "count": 1}, {"kind": "change", "threshold": 0.4})]
    drafts = [{"draft_depth": 1 + i % 3, "draft_tokens": (2, 4, 8, 5)[i % 4]} for i in range(8)]
    requested = [
        RequestOptions(tuple(range(2, 5 + i)), 4, 12, **o) for i, o in enumerate([*drafts, *({"exit": r} for r in rules * 2)])
    ]
    answers = [answer(model, options) for options in requested]  # on the CPU
    model.cuda()
    scheduler = Scheduler(model, rows=3, tokens=3 * 40, readings=5)
    requests, cancelled = serve(scheduler, requested, draw)
    assert check(model, requests, cancelled, answers) == 0
    assert {2, 4, 8} <= {length for (_, length, _), fused in scheduler.passes.fused.items() if fused is not None}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["ouro-1.4b", "huginn"])
def test_half_precision_captured_is_the_same_kernels_launched(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = noisy(f"{name}-tiny", std=0.1).eval().to("cuda", dtype)

    def tokens() -> list[list[int]]:
        requested, draw = mixed(model, 12)
        requests, _ = serve(Scheduler(model, rows=4, tokens=4 * 60, readings=6), requested, draw)
        return [request.result(0).tokens for request in requests]

    replayed = tokens()
    monkeypatch.setattr(tick_graph.Captures, "graph", lambda *_: None)
    assert replayed == tokens()
