"""Passes over rows that bring tokens of their own number, and prompts in chunks, give what the model gives for each row alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.generation.graphs import PassGraphs
from loopwright.generation.mixed_depth import StateHistory
from loopwright.generation.passes import Passes, prefill
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.rows import Running
from loopwright.model.keys.pool import KeyPool
from tests.cases import gap
from tests.generation.mix import make

Chunks = st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=2), min_size=1, max_size=3)


@pytest.mark.long
@torch.no_grad()
@settings(max_examples=8)
@given(chunks=Chunks, depth=st.integers(1, 3))
def test_ragged_rows_are_rows_alone(chunks: list[list[int]], depth: int) -> None:
    """`chunks` holds, of each row, how many tokens it brings at first and then."""
    model = make("huginn-tiny")
    pool = KeyPool(model.config, 120, model.lm_head.weight)
    passes, rows = Passes(model, pool), [pool.admit(8, 3, (depth,)) for _ in chunks]
    ids = [torch.arange(i + 2, i + 2 + sum(each)) % 96 for i, each in enumerate(chunks)]
    first, said = [0] * len(rows), [[] for _ in rows]
    for turn in range(2):
        brought = [row_ids[a : a + each[turn]].tolist() for row_ids, a, each in zip(ids, first, chunks, strict=True)]
        e, s = passes.embed(rows, first, brought, [None] * len(rows))
        for t in range(depth):
            s = passes.step(rows, first, s, e, [t] * len(rows))
        for held, y in zip(said, passes.features(rows, first, s, [depth] * len(rows)), strict=True):
            held.append(model.lm_head(y))
        first = [a + each[turn] for a, each in zip(first, chunks, strict=True)]
    for row_ids, held in zip(ids, said, strict=True):
        assert gap(torch.cat(held), model(row_ids[None], depth=depth).logits[0]) < 1e-9


@pytest.mark.parametrize("constant", [False, True], ids=["row by row", "constant shapes"])
@torch.no_grad()
def test_unroll_is_step_after_step(constant: bool) -> None:
    model = make("ouro-1.4b-tiny")
    pool = KeyPool(model.config, 60, model.lm_head.weight)
    passes = PassGraphs(model, pool, 2) if constant else Passes(model, pool)
    rows = [pool.admit(6, 3, (3,)) for _ in range(2)]
    ids = [[3, 4, 5], [6, 7, 8]]
    e, s = passes.embed(rows, [0, 0], ids, [None, None])
    states = [torch.stack(list(each)) for each in passes.unroll(rows, [0, 0], s, e, 3)]
    plain = model(torch.tensor(ids), depth=3, output_steps=True).states
    assert len(states) == 3
    assert gap(torch.stack(states), torch.stack(list(plain))[-3:]) < 1e-9
    assert not constant or passes._last is None  # no pass is opened that nobody runs


def test_a_pass_asked_for_again_is_the_same_one() -> None:
    model = make("ouro-1.4b-tiny")
    pool = KeyPool(model.config, 60, model.lm_head.weight)
    passes, rows = Passes(model, pool), [pool.admit(6, 2, (2,)) for _ in range(2)]
    first = passes.open(rows, [0, 0], 2)
    assert passes.open(rows, [0, 0], 2) is first
    assert passes.open(rows, [0, 1], 2) is not first
    assert passes.open(rows[:1], [0], 2) is not passes.open(rows[1:], [0], 2)


SMALL = {"hidden_size": 16, "intermediate_size": 16, "prelude_layers": 1, "core_layers": 1, "coda_layers": 1}


@pytest.mark.parametrize("kind", [Passes, PassGraphs])
@torch.no_grad()
def test_chunks_are_one_pass(kind: type[Passes]) -> None:
    model = make("huginn-tiny", **SMALL)
    pool = KeyPool(model.config, 60, model.lm_head.weight, depth=3, readings=2)
    passes = Passes(model, pool) if kind is Passes else PassGraphs(model, pool, 2)
    prompts, running = [(5, 6, 7, 8, 9), (4, 3, 2)], []
    for slot, (prompt, drafts) in enumerate(zip(prompts, ({"draft_depth": 1, "draft_tokens": 2}, {}), strict=True)):
        options = RequestOptions(prompt, 3, 2, **drafts)
        row = pool.admit(options.capacity, 3, options.readings)
        assert row is not None
        running.append(Running(Request(options), row, slot, 3, None))
    running[0].history = StateHistory(pool, running[0].row)  # its last token is not prefilled
    counts, last = [], None
    while any(run.prefilled < run.to_prefill for run in running):
        for runs, count, logits in prefill(passes, running, 3):
            counts.append(count)
            for run in runs:
                run.prefilled += count
                run.phase = "prefill" if run.prefilled < run.to_prefill else "embed"
            last = last if logits is None else logits
    assert counts == [3, 1, 2, 1]
    assert gap(last[0], model(torch.tensor([prompts[1]]), depth=3).logits[0, -1]) < 1e-12
    states = model(torch.tensor([prompts[0]]), depth=3, output_steps=True).states
    for t, s in enumerate(states):
        assert gap(running[0].history.after[t, :4], s[0, :4]) < 1e-12
