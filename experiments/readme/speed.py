"""What docs/speed.md says: each number that of one row of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.pages import number
from experiments.readme.rows import only

SETTINGS = (
    "one cached decode step / uncached forward of 512 tokens, depth 4 | one CPU thread, half of Ouro-1.4B's width, 6 layers |",
    "decode, Ouro-1.4B shape (random weights), bf16, depth 4, batch 1 | H200, fused kernels in a CUDA graph |",
    "the same, batch 32 | H200, fused kernels in a CUDA graph |",
    "training on text, a 12-layer core × 4 steps of width 1,024, as recipes ship it: share of the peak (MFU) | "
    "H200, bf16, 32 × 1,024 tokens |",
    "the same, documents kept apart / not | H200, bf16 |",
    "a small model on text (4 layers × 4 steps, width 256, 16 × 256 tokens), replayed as a graph, as recipes ship it / kernel by "
    "kernel | H200, bf16 |",
    "ASURA on text (4 layers × 4 steps, width 256, 64 × 256 tokens), one compiled program for all steps / one for each: an update; "
    "16 updates with compiling | H200, bf16 |",
    "a training update at random depth with the Jacobian penalty / without | H200, TF32, finite difference on a quarter of the "
    "rows |",
    "the same with the exact product | H200, TF32 |",
    "an update at depth 4, at depth 8, with the exact product / without: as written; compiled | H200, TF32 |",
    "the penalty on Ouro-1.4B's shape at depth 4 (random weights), finite difference on a quarter of the rows | H200, bf16 |",
    "an update of the addition study / the public code, fixed depth 4; depth 10 with its penalty | H200, TF32 both |",
    "a rematerialised loop / plain, depth 16, Huginn's kind; one-layer addition model | H200, fp32 |",
    "a layer modulated at rank 32 / frozen, d = 768; with the controller that makes the diagonals | one CPU thread; H200, bf16 |",
    "256 GSM8K prompts × 128 steps, Ouro-1.4B's shape (random): traced with all attention metrics / plain | H200, bf16 |",
    "peak memory of a rematerialised loop / plain, depth 64, 2-layer core | CPU; H200 |",
)


def text_training() -> Iterator[str]:
    """Yields what the rows of P15 say: five runs as recipes ship it, the peer, documents apart, and a small model."""

    def row(case: str, **more: object) -> dict:
        return only("training/train-text-h200.jsonl", benchmark=f"P15 training on text: {case}", **more)

    ours = [row("as recipes ship it", run=run) for run in (1, 2, 3, 4, 5)]
    shares = sorted(found["mfu"] for found in ours)
    peer = row("transformers' Llama, 12 layers, compiled")["mfu"]
    yield cell(f"{shares[0]:.3f} to {shares[-1]:.3f} in five runs (transformers' Llama of 12 layers, compiled: {peer:.3f})")
    yield cell(f"{row('documents apart')['ms'] / ours[-1]['ms']:.2f}")
    replayed, plain = (row(case)["ms"] for case in ("small model", "small model, graph: false"))
    yield cell(f"{replayed / plain:.2f} ({replayed:.1f} and {plain:.1f} ms)")
    one, each = (row(case) for case in ("ASURA", "ASURA, rows taken in the compiled step"))
    yield cell(
        f"{one['ms'] / each['ms']:.2f}; {one['took_s'] / each['took_s']:.2f} ({one['took_s']:.0f} and {each['took_s']:.0f} s)"
    )


def claims() -> Iterator[str]:
    """Yields what the rows say: the last cell of each line."""
    yield cell(f"{only('decode/cpu.jsonl', benchmark='P8 cached decode / uncached forward', model='ouro-half')['ratio']:.3f}")
    share = only("decode/cpu.jsonl", benchmark="P9 cache share of a decode step", model="ouro-half")
    yield cell(f"{share['share']:.3f} (quartiles {number(share['share_q1'])} to {number(share['share_q3'])})")
    for rows, bound in ((1, "bandwidth bound"), (32, "bound")):
        speed = only("decode/fused-decode-h200.jsonl", loop="graph", rows=rows)["tokens_per_s"]
        yield cell(f"{speed:,.0f} tokens/s, {share_of_bound(rows):.2f} of the {bound}")
    yield from text_training()
    yield from jacobian()
    ouro = only("training/ouro-cost-h200.jsonl", benchmark="Table 4: penalty / fine-tuning at depth 4", mode="fd")
    yield cell(f"{ouro['ratio']:.2f}")
    parts = []
    for precision in ("tf32", "bf16"):
        pairs = [only("training/stars-update-h200.jsonl", precision=precision, **at) for at in (FIXED, RELEASED)]
        parts.append("; ".join(f"{row['ms'] / row['public_ms']:.2f}" for row in pairs))
    yield cell(f"{parts[0]} (with bf16: {parts[1]})")
    models = ({"model": "huginn kind, 2 layers"}, {"model": "stars kind, 1 layer", "width": 512})
    ratios = [only(REMAT, benchmark="P6 time of step / none", **model)["ratio"] for model in models]
    yield cell(f"time {ratios[0]:.2f}; {ratios[1]:.2f}")
    yield modulation()
    trace = only("analysis/trace-h200.jsonl", benchmark="P11 at scale: attention")
    yield cell(f"{trace['of_plain']:.2f} ({trace['seconds']:.1f} s)")
    yield memory()


def jacobian() -> Iterator[str]:
    """Yields what the penalty costs: an update by finite difference and with the exact product, then single steps."""

    def ratio(benchmark: str, compiled: bool, **more: object) -> float:
        rows = "training/jacobian-again-h200.jsonl"
        return float(only(rows, benchmark=benchmark, compiled=compiled, dropout=0.0, **more)["ratio"])

    for mode in ("fd", "exact"):
        update = f"P4 STARS update / random-depth update, {mode}"
        yield cell(f"{ratio(update, False):.3f} as written, {ratio(update, True):.3f} compiled")
    shares = [[ratio(f"{p} JSRR step / plain step, exact", how, depth=d) for p, d in STEPS] for how in (False, True)]
    yield cell("; ".join(f"{first:.2f}, {second:.2f}" for first, second in shares))


def share_of_bound(rows: int) -> float:
    """Returns how much of the memory bandwidth decoding reaches on an H200, with so many rows."""
    return float(only("decode/fused-decode-h200.jsonl", loop="graph", rows=rows)["share_of_bound"])


STEPS = (("P1", 4), ("P2", 8))
FIXED, RELEASED = {"depth": 4, "penalty": None}, {"depth": 10, "penalty": "released"}
REMAT = "training/remat-h200.jsonl"
REMAT_CPU = "training/remat-own-cpu.jsonl"  # torch's checkpoint, which is `step` now, beside the `step` of before


def cell(text: str) -> str:
    """Returns a last cell."""
    return f"{text} |"


def mixed_depths(tokens: int) -> float:
    """Returns the engine's throughput at mixed depths over lockstep batches at the deepest, for answers of so many tokens."""
    name = "P16 throughput at depths 1 to 8 / lockstep at depth 8"
    return float(only("decode/engine-tick-h200.jsonl", benchmark=name, new_tokens=tokens)["ratio"])


def modulation() -> str:
    """Returns what a modulated layer costs, with and without its controller, on both devices."""
    ratios, bounds = [], []
    kernels = {"compiled": False, "replayed": True}
    for device, by, given in (("cpu", "", {}), ("h200", "by kernels ", kernels)):
        rows = [
            only(f"training/modulation-{device}.jsonl", benchmark=f"P5 modulated {what} / frozen, forward", width=768, **given)
            for what in (f"{by}layer", "controller")
        ]
        ratios.append(", ".join(f"{row['ratio']:.2f}" for row in rows))
        bounds.append(", ".join(f"{1 + row['flop_overhead']:.2f}" for row in rows))
    return cell(f"{'; '.join(ratios)} (by its FLOPs {'; '.join(bounds)})")


def memory() -> str:
    """Returns the peak memory of a rematerialised loop, on both devices."""
    parts = []
    for path, name in ((REMAT_CPU, "checkpoint"), (REMAT, "step")):
        step, tree = (
            only(path, benchmark=f"P7 peak bytes of {way} / none", model="2-layer core alone", depth=64)["ratio"]
            for way in (name, "tree")
        )
        parts.append(f"{step:.3f}, the tree {tree:.3f}")
    return cell("; ".join(parts))
