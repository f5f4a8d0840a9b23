"""P15: training on text as the recipes ship it, beside transformers' Llama: model FLOPs over what the GPU can do.

A 12-layer core of width 1,024 run 4 times, rows of 1,024 tokens, bf16. Whole updates through `train` are timed: data, passes,
clipping, optimiser, log. The FLOPs are those of the log: matrix products, attention in full (`causal` counts the half
that a causal model needs), three times the forward pass; what is computed twice counts once. Rows are printed as they are made.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.pairs import report
from loopwright.data.batch import Batch, Splits
from loopwright.metrics.score import IGNORED
from loopwright.model.config import LoopedConfig
from loopwright.model.cost import TRAINING_FACTOR, pass_flops
from loopwright.model.presets import preset
from loopwright.schema import build_kind
from loopwright.training.loop import train
from loopwright.training.objectives.losses import OBJECTIVES, Final
from loopwright.training.recipe import make_recipe
from loopwright.training.report import Objects, Silent, Speedometer, read_log
from loopwright.training.rollout import Objective, Plan

SHAPE = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 49152}
ROWS, LENGTH, DEPTH = 32, 1024, 4
FIRST = 4  # updates that are not counted: they compile and warm up

OURO = {"name": "ouro-1.4b", "changes": {**SHAPE, "core_layers": 12, "max_position_embeddings": LENGTH}}
# documents apart as recipes keep them, where launches take longer than kernels
SMALL = {
    "name": "ouro-1.4b",
    "changes": {
        "hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 8192,
        "core_layers": 4, "max_position_embeddings": 256,
    },
}  # fmt: skip
HUGINN = {"name": "huginn", "changes": {**SHAPE, "prelude_layers": 2, "core_layers": 4, "coda_layers": 2}}
# a norm, a projection and adapters for each step: what a compiled step is handed the rows of
ASURA = {"name": "asura", "changes": {key: SMALL["changes"][key] for key in SMALL["changes"] if key != "num_key_value_heads"}}
ASURA["changes"] |= {"depth": DEPTH, "max_steps": DEPTH}
PEER = "transformers' Llama, 12 layers, compiled"
# what the target is about comes first; a case that shares its compiled step with one before it costs few seconds
CASES: dict[str, dict] = {
    "as recipes ship it": {},
    "every step's loss": {"objective": {"kind": "every-step"}},
    "documents apart": {"apart": True},
    PEER: {},
    "remat: step": {"remat": "step"},
    "Huginn-like": {"model": HUGINN},
    "compile: false": {"compile": False},
    "small model": {"apart": True, "model": SMALL, "rows": 16, "length": 256},
    "small model, graph: false": {"apart": True, "model": SMALL, "rows": 16, "length": 256, "graph": False},
    "ASURA": {"model": ASURA, "rows": 64, "length": 256},
}
TARGETS = {"as recipes ship it": ">= 0.50", "documents apart": ">= 0.95 of not apart", "every step's loss": ">= 0.45"}


class RandomText:
    """Rows of random tokens; where documents are kept apart, of some 250 tokens each, whose first one nobody is asked for."""

    def __init__(self, vocab: int, length: int, *, apart: bool) -> None:
        self.vocab, self.length, self.apart = vocab, length, apart

    def __len__(self) -> int:
        return 64 * ROWS

    def batch(self, indices: torch.Tensor) -> Batch:
        """Returns rows of random tokens."""
        draws = torch.Generator().manual_seed(int(indices[0]))
        ids = torch.randint(0, self.vocab, (len(indices), self.length), generator=draws)
        if not self.apart:
            return Batch(ids, ids.clone())
        begins = torch.rand(ids.shape, generator=draws) < 1 / 250
        return Batch(ids, torch.where(begins, IGNORED, ids), segment_ids=begins.long().cumsum(1))


class EnoughError(Exception):
    """Ends a run after its last update, before three gigabytes that nothing reads are saved."""


def measure(
    name: str, updates: int, rows: int = ROWS, length: int = LENGTH, apart: bool = False, model: dict | None = None,
    **changes: object,
) -> None:  # fmt: skip
    """Prints the row of one case."""
    spec = {"kind": "preset", **(model or OURO)}
    config = preset(spec["name"], **spec["changes"])
    source = RandomText(config.vocab_size, length, apart=apart)
    data = {
        "about": name, "model": spec, "data": {"kind": "text", "files": "x", "tokenizer": "gpt2"}, "updates": FIRST + updates,
        "batch": rows, "depth": {"kind": "fixed", "depth": DEPTH}, "precision": "bf16", "save": {"best": False}, **changes,
    }  # fmt: skip
    recipe = make_recipe(data)
    splits = Splits(source, source, vocab_size=config.vocab_size, alike=True)

    def last(row: dict[str, Any]) -> None:
        if row["update"] == recipe.updates - 1:
            raise EnoughError

    _fresh()
    began, reporter = time.perf_counter(), Silent()
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(recipe, Path(folder) / "run", given=Objects(data=splits), reporter=reporter, on_update=last)
        except EnoughError:
            seconds = [row["seconds"] for row in read_log(Path(folder) / "run" / "log.jsonl")][FIRST:]
        else:  # Ctrl-C and SIGTERM end one run; here they are to end all of them
            raise SystemExit(f"{name}: stopped before its last update")
    objective = build_kind(recipe.objective, OBJECTIVES)
    took, said = time.perf_counter() - began, [note for note in reporter.notes if note.startswith("graph")]
    tell(name, config, objective, Plan(DEPTH, DEPTH), (rows, length), seconds, took, said)


def tell(
    name: str, config: LoopedConfig, objective: Objective, plan: Plan, size: tuple[int, int], seconds: list[float], took: float,
    said: Sequence[str] = (),
) -> None:  # fmt: skip
    """Prints what updates of these times come to, counted as the log counts them; `causal` leaves half of the attention out, and
    `said` is what the run told of graphs."""
    speed, middle = Speedometer(config, objective, "bf16", torch.device("cuda")), statistics.median(seconds)
    ids = torch.empty(size, dtype=torch.long, device="meta")
    flops = speed.flops([(Batch(ids, ids), plan)])
    half = TRAINING_FACTOR * pass_flops(config, depth=plan.depth, batch=size[0], length=size[1])["attention"] / 2
    peak = speed.peak or float("nan")  # a card that is not in the table
    row = {
        "ms": 1e3 * middle,
        "ms_of_each": [round(1e3 * x, 1) for x in seconds],
        "tokens_per_s": size[0] * size[1] / middle,
        "mfu": flops / middle / peak,
        "mfu_causal": (flops - half) / middle / peak,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "updates": len(seconds),
        "took_s": took,
    }
    told = {"said": list(said)} if said else {}
    report(f"P15 training on text: {name}", {**row, **told, **({"target": TARGETS[name]} if name in TARGETS else {})})


def peer(updates: int) -> None:
    """Prints the row of transformers' Llama of 12 layers, compiled, its own loss, AdamW fused."""
    _fresh()
    start = time.perf_counter()
    config = LlamaConfig(**SHAPE, num_hidden_layers=12, max_position_embeddings=LENGTH, tie_word_embeddings=True)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    step = torch.compile(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids, seconds = torch.randint(0, config.vocab_size, (ROWS, LENGTH), device="cuda"), []
    for _ in range(FIRST + updates):
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = step(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    same = preset("ouro-1.4b", **{**OURO["changes"], "norm_placement": ["input"]})
    tell(PEER, same, Final(), Plan(1, 1), (ROWS, LENGTH), seconds[FIRST:], time.perf_counter() - start)


def _fresh() -> None:
    """Forgets what was compiled and held before."""
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def main(arguments: list[str] | None = None) -> None:
    """Times whole updates of training on text and prints a row per case, the most important ones first; needs a GPU.

    The first update of a case compiles for up to half a minute: all of them take some three minutes on an H200.
    """
    parser = argparse.ArgumentParser(description=main.__doc__, epilog=f"cases: {'; '.join(CASES)}")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="cases whose name holds one of these (all)")
    parser.add_argument("--updates", type=int, default=12, metavar="N", help=f"timed, after {FIRST} that are not (12)")
    options = parser.parse_args(arguments)
    chosen = [name for name in CASES if any(text in name for text in options.only)]
    if not chosen:
        parser.error(f"--only {' '.join(options.only)}: no such case; there are: {'; '.join(CASES)}")
    if not torch.cuda.is_available():
        parser.exit(message="P15: needs a CUDA device\n")
    torch.set_float32_matmul_precision("high")
    for name in chosen:
        peer(options.updates) if name == PEER else measure(name, options.updates, **CASES[name])


if __name__ == "__main__":
    main()
