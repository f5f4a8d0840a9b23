"""A fused pass of a few tokens in each row of a pool is the plain pass: one row and several, of equal lengths and of others."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

import loopwright as lw
from loopwright.generation import graphs as pass_graphs
from loopwright.generation.graphs import PassGraphs
from loopwright.generation.passes import Passes
from loopwright.model.keys.pool import KeyPool
from tests.cases import gap, noisy
from tests.kernels.interpreted import DEVICE, need_triton

need_triton()

from loopwright.model.fused_stack import FusedStacks  # noqa: E402

BIASES = {"attention_bias": ["q", "k", "v", "o"], "mlp_bias": True, "norm_placement": ["input", "output", "residual"]}
CASES: dict[str, tuple[str, dict]] = {
    "two layers": ("ouro-1.4b-tiny", {"core_layers": 2}),
    "prelude and coda, interleaved": ("huginn-tiny", {}),
    "grouped heads": ("retrofit-llama-1b-tiny", {}),
    "one key head": ("ouro-1.4b-tiny", {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 12, "core_layers": 1}),
    "biases, all norms": ("ouro-1.4b-tiny", {**BIASES, "core_layers": 1}),
    "no positions": ("ouro-1.4b-tiny", {"positions": "none", "core_layers": 1}),
}
ROWS, CAPACITY = 3, 48
# tokens of each row, pass after pass: 1, 2, 4, 8 and 16 in a pass, some at the seam of two programs' keys (32 in float32)
SEVERAL = ((15, 1, 8), (14, 2, 3), (7, 4, 1))
ONE = ((5,), (2,), (4,))


class FusedPasses(PassGraphs):
    """Passes by fused kernels on every device."""

    def _fused(self, rows: int, length: int, reach: int) -> FusedStacks:
        stacks = [stack for stack in ("prelude", "core", "coda") if len(getattr(self.model, stack))]
        return FusedStacks(self.model, stacks, rows, reach, masked=False, length=length)


@torch.no_grad()
def passed(model: lw.LoopedForCausalLM, chunks: Sequence[Sequence[int]], *, fused: bool) -> list[torch.Tensor]:
    """Returns what chunks of tokens leave in each row, one after the other, and what the pool then holds."""
    pool = KeyPool(model.config, ROWS * CAPACITY, model.lm_head.weight, depth=2)
    passes = FusedPasses(model, pool, ROWS) if fused else Passes(model, pool)
    rows = [pool.admit(CAPACITY, 2, (2,)) for _ in range(ROWS)][::-1][: len(chunks[0])]  # not in the order of their cells
    draw, first, left = random.Random(0), [0] * len(rows), []
    for count in chunks:
        ids = [[draw.randrange(96) for _ in range(n)] for n in count]
        e, s = ([x.clone() for x in each] for each in passes.embed(rows, first, ids, [None] * len(rows)))
        left += [*e, *s]  # clones: the next pass writes over what a pass returns
        for t in range(2):
            s = [x.clone() for x in passes.step(rows, first, s, e, [t] * len(rows))]
            left += s
        left += [x.clone() for x in passes.features(rows, first, s, [2] * len(rows))]
        first = [a + n for a, n in zip(first, count, strict=True)]
    return [*left, *pool.keys.values(), *pool.values.values()]


@pytest.mark.parametrize("chunks", [SEVERAL, ONE], ids=["several rows", "one row"])
@pytest.mark.parametrize("case", CASES)
def test_fused_is_plain(case: str, chunks: Sequence[Sequence[int]]) -> None:
    name, changes = CASES[case]
    model = noisy(name, std=0.1, **changes).to(DEVICE).eval()
    for fused, plain in zip(passed(model, chunks, fused=True), passed(model, chunks, fused=False), strict=True):
        assert gap(fused, plain) < 2e-5


def test_keys_in_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_graphs, "SHORTEST", 1024)
    model = noisy("retrofit-llama-1b-tiny", std=0.1, max_position_embeddings=2048).to(DEVICE).eval()
    for fused, plain in zip(passed(model, SEVERAL, fused=True), passed(model, SEVERAL, fused=False), strict=True):
        assert gap(fused, plain) < 2e-5


@pytest.mark.parametrize("chunks", [SEVERAL, ONE], ids=["several rows", "one row"])
@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])  # not in the interpreter
def test_half_precision_is_as_near_to_float32_as_the_plain_path(dtype: torch.dtype, chunks: Sequence[Sequence[int]]) -> None:
    half, exact = (noisy("retrofit-llama-1b-tiny", std=0.1).to(DEVICE).eval() for _ in range(2))
    half.to(dtype)
    exact.load_state_dict(half.state_dict())
    wanted = passed(exact, chunks, fused=False)
    far = [
        sum((a.float() - b).norm().item() for a, b in zip(passed(half, chunks, fused=fused), wanted, strict=True))
        for fused in (True, False)
    ]
    assert 0 < far[0] <= 1.2 * far[1]
