"""A row whose earlier tokens are less deep gives, once they are brought along, the logits of a full pass."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from loopwright.generation.graphs import PassGraphs
from loopwright.generation.passes import Passes
from loopwright.generation.trail import Trail, read_trails, step_trails
from loopwright.model.keys.pool import KeyPool, Row
from loopwright.model.keys.rows import PooledRows
from tests.cases import gap
from tests.generation.mix import make


@dataclass(eq=False)
class Token:
    """What the functions read of a row in flight."""

    row: Row
    trail: Trail
    offset: int = 0
    t: int = 0
    work: int = 0


@pytest.mark.parametrize("kind", [Passes, PassGraphs])
@torch.no_grad()
def test_tokens_of_many_depths(kind: type[Passes]) -> None:
    model = make("huginn-tiny")
    ids = torch.randint(96, (1, 6), generator=torch.Generator().manual_seed(0))
    pool = KeyPool(model.config, 60, model.lm_head.weight)
    row = pool.admit(6, 4, (1, 2, 3, 4))
    assert row is not None
    run = Token(row, Trail(pool, row))
    passes = Passes(model, pool) if kind is Passes else PassGraphs(model, pool, 2)
    full = {depth: model(ids, depth=depth).logits[0] for depth in range(1, 5)}
    for offset, depth in enumerate((2, 1, 1, 4, 1, 3)):
        run.offset, run.t = offset, 0
        cache = PooledRows(pool, [row], [offset], 1)
        e, p = model.embed_at(model.token_vectors(ids[:, offset : offset + 1]), cache.span, cache=cache)
        run.trail.begin(offset, e[0], model.start_state(e, p)[0])
        for _ in range(depth):
            step_trails(passes, [run])  # type: ignore[list-item]
        ((_, logits),) = read_trails(passes, [run], lambda run: 1)  # type: ignore[list-item]
        assert gap(logits[0], full[depth][offset]) < 1e-9
    # the fourth token brought three along, the last one the fifth: each step of each token once, those nobody needs never
    assert run.work == 4 * 4 + 1 + 3 + 2


@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny"])  # with a prelude and without
def test_trails_have_places_of_their_own(name: str) -> None:
    model = make(name)
    pool = KeyPool(model.config, 60, model.lm_head.weight)
    keys = pool.storage_bytes
    rows = [row for row in (pool.admit(count, steps, (steps,)) for count, steps in ((7, 2), (5, 1), (9, 3))) if row is not None]
    trails = [Trail(pool, row) for row in rows]
    assert pool.storage_bytes > keys
    for number, trail in enumerate(trails):
        trail.inputs[:], trail.after[:] = number, 10 + number
    inputs, states = pool.states
    inputs[-1], states[-1] = -1, -1  # where rows without a trail write
    for number, (trail, row) in enumerate(zip(trails, rows, strict=True)):
        assert trail.inputs.shape == (row.capacity, model.config.hidden_size) and (trail.inputs == number).all()
        assert trail.after.shape == (row.steps, *trail.inputs.shape) and (trail.after == 10 + number).all()
        assert all(states[trail.cell(depth)].data_ptr() == trail.states(depth, 0, 1).data_ptr() for depth in range(row.steps + 1))
