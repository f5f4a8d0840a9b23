"""Rows of a pool, each at its own step, length and depth = each sequence alone, uncached; the same told by tensors."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.model.keys.pool import KeyPool, Row
from loopwright.model.keys.rows import FixedRows, PooledRows
from loopwright.model.parts.part import RowSteps
from loopwright.model.passes import open_pass
from tests.cases import gap, noisy

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("huginn-tiny", {}),
    ("ouro-1.4b-tiny", {}),
    ("ouroboros-qwen2.5-3b-tiny", {}),
    ("ouroboros-qwen2.5-3b-tiny", {"adapters": [{"kind": "controller", "rank": 4, "style": 8, "pooling": "chunk", "chunk": 3}]}),
    ("relaxed-tiny", {"sliding_window": 3}),
    ("asura-tiny", {}),
]


def make(name: str, changes: dict[str, Any]) -> lw.LoopedForCausalLM:
    return noisy(name, std=0.3, **changes).double().eval()


def run(model: Any, pool: KeyPool, rows: list[Row], ids: Tensor, offsets: list[int], depths: list[int], views: bool) -> Tensor:
    """Returns the logits of new tokens [R, T] of some rows; which rows take their next step together is drawn anew each time."""

    def passing(here: list[int]) -> Any:
        cache = PooledRows(pool, [rows[i] for i in here], [offsets[i] for i in here], ids.shape[1])
        cache.views = views
        return model.embed_at(model.token_vectors(ids[here]), cache.span, cache=cache)

    everyone, draw = list(range(len(rows))), random.Random(0)
    e, p = passing(everyone)
    s, at = model.start_state(e, p).clone(), [0] * len(rows)
    while left := [i for i in everyone if at[i] < depths[i]]:
        here = draw.sample(left, draw.randint(1, len(left)))
        s[here] = model.step(s[here], e[here], RowSteps([at[i] for i in here], e.device), passing(here)[1])
        for i in here:
            at[i] += 1
    return model.read_out(s, p, reading=RowSteps(depths, e.device))


@pytest.mark.parametrize(
    ("name", "changes", "views"),
    [
        pytest.param(name, changes, views, id=f"{name}-{i}-{views}", marks=pytest.mark.long if i or not views else ())
        for i, (name, changes) in enumerate(MODELS)
        for views in (True, False)
    ],
)
@torch.no_grad()
def test_rows_are_each_sequence_alone(name: str, changes: dict[str, Any], views: bool) -> None:
    model, draw = make(name, changes), random.Random(1)
    limit = model.config.max_steps if model.config.beyond_max_steps == "refuse" and model.config.max_steps else 4
    pool = KeyPool(model.config, 60, model.lm_head.weight)
    texts = torch.randint(96, (5, 9), generator=torch.Generator().manual_seed(0)) % model.config.vocab_size
    live: dict[int, tuple[Row, int, int]] = {}  # sequence → row, depth, tokens run
    waiting, worst = list(range(5)), 0.0
    while waiting or live:
        while waiting and len(live) < 3:
            depth = draw.randint(1, limit)
            row = pool.admit(9, depth, (depth,))
            if row is None:
                break
            live[waiting.pop()] = (row, depth, 0)
        chosen = draw.sample(sorted(live), draw.randint(1, len(live)))  # any subset of the rows
        length = draw.randint(1, 4)
        chosen = [i for i in chosen if live[i][2] + length <= 9]
        if chosen:
            at = [live[i][2] for i in chosen]
            ids = torch.stack([texts[i, n : n + length] for i, n in zip(chosen, at, strict=True)])
            mine = run(model, pool, [live[i][0] for i in chosen], ids, at, [live[i][1] for i in chosen], views)
            for row, (i, n) in enumerate(zip(chosen, at, strict=True)):
                alone = model(texts[i : i + 1, : n + length], depth=live[i][1]).logits[0, n:]
                worst = max(worst, gap(mine[row], alone))
                live[i] = (*live[i][:2], n + length)
        for i in [i for i, (_, _, n) in live.items() if n >= 8]:  # it leaves, and another takes its cells
            pool.free(live.pop(i)[0])
    assert worst < 1e-9
    assert all(len(cells.free) <= 1 for cells in pool.cells.values())


@torch.no_grad()
def test_what_a_former_row_left_is_not_read() -> None:
    model = make("ouroboros-qwen2.5-3b-tiny", {})
    pool = KeyPool(model.config, 6, model.lm_head.weight, depth=2)
    for table in (*pool.keys.values(), *pool.values.values()):
        table.fill_(torch.nan)
    ids = torch.randint(96, (1, 6))
    row = pool.admit(6, 2, (2,))
    assert row is not None
    logits = [run(model, pool, [row], ids[:, :4], [0], [2], True), run(model, pool, [row], ids[:, 4:], [4], [2], True)]
    assert gap(torch.cat(logits, dim=1), model(ids, depth=2).logits) < 1e-9


@torch.no_grad()
def test_depth_that_the_past_does_not_have_is_refused() -> None:
    model = make("huginn-tiny", {})
    pool = KeyPool(model.config, 8, model.lm_head.weight)
    row = pool.admit(8, 4, (4,))
    assert row is not None
    ids = torch.randint(96, (1, 3))
    run(model, pool, [row], ids, [0], [4], True)
    row.filled["core", 3] = 1  # as if the earlier tokens had left the loop
    with pytest.raises(ValueError, match="cache: step 3 holds 1 of 3 earlier tokens"):
        run(model, pool, [row], ids[:, :1], [3], [4], True)


@torch.no_grad()
def test_a_copied_prefix_goes_on_like_its_source() -> None:
    model = make("ouroboros-qwen2.5-3b-tiny", {})
    pool = KeyPool(model.config, 20, model.lm_head.weight, depth=3)
    ids = torch.randint(96, (1, 7), generator=torch.Generator().manual_seed(3))
    source, target = pool.admit(7, 3, (3,)), pool.admit(9, 3, (3,))
    assert source is not None and target is not None
    run(model, pool, [source], ids, [0], [3], True)
    pool.copy_prefix(source, target, 5)
    pool.free(source)
    assert target.held("core", 2) == 5
    assert gap(run(model, pool, [target], ids[:, 5:], [5], [3], True), model(ids, depth=3).logits[:, 5:]) < 1e-9


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ouro-1.4b-tiny", {"sliding_window": 3}),
        ("ouroboros-qwen2.5-3b-tiny", {"adapters": [{"kind": "controller", "pooling": "chunk", "chunk": 2}]}),
    ],
)
@torch.no_grad()
def test_a_step(name: str, changes: dict) -> None:
    model = noisy(name, **changes).double().eval()
    offsets, steps = (5, 0, 2), (1, 0, 1)
    results = []
    for fixed in (False, True):
        torch.manual_seed(0)
        pool = KeyPool(model.config, 30, model.lm_head.weight, depth=2)
        rows = [pool.admit(count + 1, 2, (2,)) for count in offsets]
        for table in (*pool.keys.values(), *pool.values.values()):
            table.normal_()
        for row, offset in zip(rows, offsets, strict=True):
            row.filled = {("core", t): offset for t in range(2)}
        s, e = torch.randn(2, 3, 1, model.config.hidden_size, dtype=torch.float64)
        t = RowSteps(steps, s.device)
        if fixed:
            starts = torch.tensor([row.cell("core", step) for row, step in zip(rows, steps, strict=True)])
            cache = FixedRows(pool, torch.tensor(offsets)[:, None], {"core": starts}, 8)
        else:
            cache = PooledRows(pool, rows, offsets, 1)
        p = open_pass(cache.span, model.rotary, model.config.sliding_window, s.dtype, cache=cache)
        results.append((model.step(s, e, t, p), pool.keys["core"], pool.values["core"], *pool.sums.values()))
    for fixed_one, plain in zip(*results, strict=True):
        assert gap(fixed_one, plain) < 1e-12
