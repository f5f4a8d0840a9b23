"""One captured core step of a few tokens in each row, by fused kernels against the plain path: the device's time alone.

Such passes verify drafts and bring along the tokens that left the loop early. Ouro-1.4B's shape in bf16, and that of the small text
model of `experiments.exits` in float32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

import loopwright as lw
from benchmarks.pairs import compare, no_options, report
from loopwright.generation.graphs import SHORTEST, PassGraphs
from loopwright.generation.mixed_depth import StateHistory
from loopwright.model.keys.pool import KeyPool

KEYS = 200  # before the new tokens
CALLS = 8  # replays that are timed together
SHAPES = [(1, n) for n in (1, 2, 4, 8, 16, 32)] + [(8, n) for n in (2, 4, 8, 16)] + [(16, 4)]  # rows, tokens in each
TEXT = {
    "vocab_size": 512, "hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 4, "prelude_layers": 1, "core_layers": 2,
    "positions": "rotary", "attention_bias": [], "norm": {"kind": "rms"}, "norm_placement": ["input"], "mlp": "swiglu",
    "mlp_bias": False, "dropout": 0.0, "injection": {"kind": "add"}, "max_position_embeddings": 256,
}  # fmt: skip


class PlainPasses(PassGraphs):
    """Captured passes without fused kernels."""

    def _fused(self, rows: int, length: int, reach: int) -> None:
        return None


def captured(model: lw.LoopedForCausalLM, kind: type[PassGraphs], rows: int, length: int) -> Callable[[], None]:
    """Returns a core step of the last `length` tokens of some rows, from states that were kept, as a graph, `CALLS` times."""
    capacity = KEYS + length
    pool = KeyPool(model.config, rows * capacity, model.lm_head.weight, depth=1)
    held = [pool.admit(capacity, 1, (1,)) for _ in range(rows)]
    histories = [StateHistory(pool, row) for row in held if row is not None]
    passes = kind(model, pool, rows)
    for history in histories:
        history.row.place("core", 0, 0, KEYS)
    passes.step_histories(histories, [KEYS] * rows, [capacity] * rows, [0] * rows)
    graph = passes.passes["core", True, rows, length, SHORTEST].graph
    assert graph is not None and (kind is PlainPasses or passes.fused[rows, length, SHORTEST] is not None)

    def run(held: object = passes) -> None:  # what the graph reads must live as long as it is replayed
        for _ in range(CALLS):
            graph.replay()

    return run


@torch.no_grad()
def main() -> None:
    """Prints a row for each shape."""
    if not torch.cuda.is_available():
        print("few_tokens: no CUDA device here; nothing measured", file=sys.stderr)
        return
    with torch.device("cuda"):
        models = {"ouro-1.4b": lw.build("ouro-1.4b").to(torch.bfloat16), "text": lw.build("stars-addition", **TEXT)}
    for name, model in models.items():
        model.eval()
        for rows, length in SHAPES:
            row = compare(*(captured(model, kind, rows, length) for kind in (PassGraphs, PlainPasses)), pairs=9)
            row |= {"fused_ms": row.pop("a_ms") / CALLS, "plain_ms": row.pop("b_ms") / CALLS}
            report(
                "fused / plain, one core step of a few tokens", {"model": name, "rows": rows, "tokens": length, "keys": KEYS, **row}
            )


if __name__ == "__main__":
    no_options(__doc__)
    main()
