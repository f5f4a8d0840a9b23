"""One token in each row of a pool, told by tensors, is the same pass told by host numbers."""

from __future__ import annotations

import pytest
import torch

from loopwright.model.keys.pool import KeyPool
from loopwright.model.keys.rows import FixedRows, PooledRows
from loopwright.model.parts.part import RowSteps
from loopwright.model.passes import open_pass
from tests.cases import gap, noisy


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
