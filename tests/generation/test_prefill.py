"""Prompts in chunks: what follows the last token is what one pass says, and kept states are those of that pass."""

from __future__ import annotations

import pytest
import torch

from loopwright.generation.graphs import PassGraphs
from loopwright.generation.passes import Passes, prefill
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.rows import Running
from loopwright.generation.trail import Trail
from loopwright.model.keys.pool import KeyPool
from tests.cases import gap
from tests.generation.mix import make

SMALL = {"hidden_size": 16, "intermediate_size": 16, "prelude_layers": 1, "core_layers": 1, "coda_layers": 1}


@pytest.mark.parametrize("kind", [Passes, PassGraphs])
@torch.no_grad()
def test_chunks_are_one_pass(kind: type[Passes]) -> None:
    model = make("huginn-tiny", **SMALL)
    pool = KeyPool(model.config, 60, model.lm_head.weight, depth=3, readings=2)
    passes = Passes(model, pool) if kind is Passes else PassGraphs(model, pool, 2)
    prompts, running = [(5, 6, 7, 8, 9), (4, 3, 2)], []
    for slot, (prompt, drafts) in enumerate(zip(prompts, ({"draft_depth": 1, "draft_tokens": 2}, {}), strict=True)):
        wish = RequestOptions(prompt, 3, 2, **drafts)
        row = pool.admit(wish.capacity, 3, wish.readings)
        assert row is not None
        running.append(Running(Request(wish), row, slot, 3, None))
    running[0].trail = Trail(pool, running[0].row)  # its last token is not prefilled
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
        assert gap(running[0].trail.after[t, :4], s[0, :4]) < 1e-12
