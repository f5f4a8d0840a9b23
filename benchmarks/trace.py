"""P11 to P13: a trace beside the plain pass of the same work, its extra memory by length, entropy through the smaller side of
a residual, and the bytes kept per example."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

import loopwright as lw
from benchmarks.pairs import compare, no_options, report
from loopwright.analysis.trace.trace import trace
from loopwright.metrics.states import residual_entropy
from loopwright.model.config import LoopedConfig

ALLOWED = 1.3
# what is timed; entropy decomposes a matrix per layer and row, and fixed-point distances are a second pass
GATHERED = {
    "attention": ("attention",),
    "attention and residual": ("attention", "residual"),
    "attention, residual, lens": ("attention", "residual", "lens"),
    "all but fixed-point distances": ("attention", "residual", "entropy", "lens"),
}
# a width at which attention has about the share of a layer that it has in a small language model
SMALL = {
    "hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64,
    "core_layers": 2, "vocab_size": 4096,
}  # fmt: skip


def model_here() -> tuple[str, lw.LoopedForCausalLM, int, int, int]:
    """Returns a random model of the size this machine can time, its name, and rows, tokens and steps of a pass."""
    torch.manual_seed(0)
    if torch.cuda.is_available():
        with torch.device("cuda"):
            model = lw.build("ouro-1.4b").to(torch.bfloat16)
        return "ouro-1.4b, random, bf16", model, 32, 128, 4
    return "ouro's layout, width 768", lw.build("ouro-1.4b", **SMALL), 2, 128, 4


def times(name: str, model: lw.LoopedForCausalLM, rows: int, length: int, steps: int) -> None:
    """Prints one row per set of statistics: the trace over the plain pass, alternating."""
    ids = torch.randint(0, model.config.vocab_size, (rows, length), device=model.device)

    @torch.no_grad()
    def plain() -> None:
        model(ids, depth=steps, logits_to_keep=1, use_cache=False)

    for gathered, collect in GATHERED.items():

        def traced(collect: Sequence[str] = collect) -> None:
            trace(model, ids, steps, collect=collect)

        row = compare(traced, plain, pairs=9, warm_up=2)
        shape = {"model": name, "rows": rows, "tokens": length, "steps": steps}
        report("P11 trace / plain pass", {"gathered": gathered, "target": f"<= {ALLOWED}", **shape, **row})

    def with_fixed() -> None:
        trace(model, ids, steps, collect=("attention", "residual", "fixed"))

    row = compare(with_fixed, plain, pairs=7, warm_up=1)
    report("fixed-point distances: two traced passes / one plain", {"model": name, "rows": rows, "tokens": length, **row})


def memory(model: lw.LoopedForCausalLM) -> None:
    """Prints the peak bytes that tracing adds to a plain pass, by length: on a GPU alone, where the allocator counts them."""
    if not torch.cuda.is_available():
        return
    for length in (256, 512, 1024, 2048, 4096):
        ids = torch.randint(0, model.config.vocab_size, (1, length), device=model.device)
        peaks = []
        for watched in (False, True):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            with torch.no_grad():
                if watched:
                    trace(model, ids, 2, collect=("attention",))
                else:
                    model(ids, depth=2, logits_to_keep=1, use_cache=False)
            peaks.append(torch.cuda.max_memory_allocated())
        report(
            "P11 extra peak bytes of a trace",
            {"tokens": length, "plain": peaks[0], "traced": peaks[1], "extra": peaks[1] - peaks[0]},
        )


def kept_bytes() -> None:
    """Prints the bytes of one example's file at Ouro's layers and heads, 128 steps and 128 tokens; the width does not enter.

    A file grows by the same bytes with each step, so that 2 and 4 steps say what 128 take.
    """
    layout: LoopedConfig = lw.preset("ouro-1.4b")
    shape = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 2, "vocab_size": 64}
    heads = {"num_attention_heads": layout.num_attention_heads, "num_key_value_heads": layout.num_key_value_heads}
    model = lw.build("ouro-1.4b", **shape, **heads, core_layers=layout.core_layers)
    sizes = []
    for depth in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            lw.trace_prompts(model, [[1] * 128], folder, depth=depth, batch=1)
            sizes.append((Path(folder) / "000000.safetensors").stat().st_size)
    size = sizes[1] + (sizes[1] - sizes[0]) // 2 * 124
    shape = {"layers": layout.core_layers, "steps": 128, "tokens": 128}
    report("P13 bytes kept per example", {"target": "<= 5e6", **shape, "bytes": size})


def gram_sides() -> None:
    """Prints how much longer the entropy of a residual takes through the larger of its two Gram matrices, in both shapes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for tokens, width in ((128, 1024), (1024, 128)):
        x = torch.randn(1, tokens, width, device=device)
        own, other = residual_entropy(x), larger_side(x)
        if not torch.allclose(own, other, rtol=1e-6):
            raise ValueError(f"entropy: {own.item()} and {other.item()} through the two sides; allowed: one number")
        row = compare(partial(larger_side, x), partial(residual_entropy, x), pairs=5, warm_up=1)
        report("P12 entropy, larger Gram side / smaller", {"target": "always the smaller", "tokens": tokens, "width": width, **row})


def larger_side(x: torch.Tensor) -> torch.Tensor:
    """Returns the matrix-based entropy of residuals [..., T, D] the long way: through the larger of the two Gram matrices."""
    x = x.double()
    gram = x.mT @ x if x.shape[-2] < x.shape[-1] else x @ x.mT
    values = torch.linalg.eigvalsh(gram).clamp(min=0)
    return torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1)


def main() -> None:
    """Prints every row."""
    torch.set_num_threads(1)  # small passes: waiting for other threads would cost more than they bring
    kept_bytes()
    gram_sides()
    name, model, rows, length, steps = model_here()
    times(name, model, rows, length, steps)
    memory(model)


if __name__ == "__main__":
    no_options(__doc__)
    main()
