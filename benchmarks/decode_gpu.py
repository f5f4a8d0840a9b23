"""Decode tokens per second of an Ouro-1.4B-shaped random model in bf16 at depth 4, beside the bandwidth bound (P10).

The bound: every step reads the core's weights once, each token reads the head and its row of keys and values, at the copy
bandwidth measured in the same process. `graph` is a greedy loop over `forward` with a fixed cache, whose decode passes are
replayed as a CUDA graph of fused kernels; `plain` is the same loop with a growing cache, kernel by kernel.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

import loopwright as lw
from benchmarks.pairs import no_options, report

PROMPT, NEW, REPEATS = 512, 64, 7
TARGETS = {1: ">= 0.60", 32: ">= 0.70"}  # by rows


def copy_bandwidth() -> float:
    """Returns bytes per second of a device-to-device copy, read and write counted."""
    source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(12):
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * source.numel() / statistics.median(times[2:])


def bytes_per_pass(model: lw.LoopedForCausalLM, depth: int, rows: int, context: int) -> int:
    """Returns the bytes one decode pass must read: core weights once per step, head, keys and values of every slot."""
    size = model.lm_head.weight.element_size()
    core = sum(p.numel() for p in model.core.parameters()) * size
    once = sum(p.numel() for m in (model.prelude, model.coda, model.lm_head) for p in m.parameters()) * size
    config = model.config
    slots = config.prelude_layers + config.coda_layers + depth * config.core_layers
    cache = slots * rows * context * 2 * config.num_key_value_heads * config.head_dim * size
    return depth * core + once + cache


@torch.no_grad()
def greedy(model: lw.LoopedForCausalLM, ids: torch.Tensor, depth: int, *, fixed: bool) -> float:
    """Returns the seconds that NEW tokens take after the prompt, in the plain loop."""
    cache = lw.LoopCache(model.config, capacity=PROMPT + NEW + 16, fixed=fixed)
    token = model(ids, depth=depth, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
    token = model(token, depth=depth, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)  # captures, where it can
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(NEW):
        token = model(token, depth=depth, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    """Prints one row per batch size."""
    if not torch.cuda.is_available():
        print("decode_gpu: no CUDA device here; nothing measured", file=sys.stderr)
        return
    torch.manual_seed(0)
    depth = 4
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = lw.LoopedForCausalLM(lw.preset("ouro-1.4b")).eval()
        torch.set_default_dtype(torch.float32)
    bandwidth = copy_bandwidth()
    for rows in TARGETS:
        ids = torch.randint(0, model.config.vocab_size, (rows, PROMPT), device="cuda")
        bound = rows * bandwidth / bytes_per_pass(model, depth, rows, PROMPT + NEW // 2)
        for name, fixed in (("graph", True), ("plain", False)):
            torch.cuda.reset_peak_memory_stats()
            times = [greedy(model, ids, depth, fixed=fixed) for _ in range(REPEATS + 1)][1:]
            low, middle, high = statistics.quantiles([rows * NEW / t for t in times], n=4)
            report(
                "P10 decode tokens/s, ouro-1.4b shape, bf16, depth 4",
                {
                    "loop": name, "rows": rows, "prompt": PROMPT, "new": NEW, "tokens_per_s": middle, "q1": low, "q3": high,
                    "bound_tokens_per_s": bound, "share_of_bound": middle / bound, "target": TARGETS[rows],
                    "copy_TB_per_s": bandwidth / 1e12, "peak_GiB": torch.cuda.max_memory_allocated() / 2**30,
                },
            )  # fmt: skip


if __name__ == "__main__":
    no_options(__doc__)
    main()
