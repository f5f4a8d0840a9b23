"""P15: training on text as the recipes ship it, beside transformers' Llama: model FLOPs over what the GPU can do.

A 12-layer core of width 1,024 run 4 times, rows of 1,024 tokens, bf16. Whole updates through `train` are timed: data, passes,
clipping, optimiser, log. The FLOPs are those of the log: matrix products, attention in full (`causal` counts the half
that a causal model needs), three times the forward pass; what is computed twice counts once.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.pairs import report
from loopwright.data.batch import Batch, Splits
from loopwright.model.config import LoopedConfig
from loopwright.model.cost.cost import TRAINING_FACTOR, pass_flops
from loopwright.model.presets import preset
from loopwright.settings import build_kind
from loopwright.train.devices.speed import Speedometer
from loopwright.train.loop import train
from loopwright.train.objectives.losses import OBJECTIVES, Final
from loopwright.train.recipe import make_recipe
from loopwright.train.reporting.log import read_log
from loopwright.train.rollout import Objective, Plan
from loopwright.train.state import Objects

SHAPE = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 49152}
ROWS, LENGTH, DEPTH = 32, 1024, 4
COUNTED = 12

OURO = {"name": "ouro-1.4b", "changes": {**SHAPE, "core_layers": 12, "max_position_embeddings": LENGTH}}
HUGINN = {"name": "huginn", "changes": {**SHAPE, "prelude_layers": 2, "core_layers": 4, "coda_layers": 2}}
CASES: dict[str, dict] = {
    "as recipes ship it": {},
    "compile: false": {"compile": False},
    "documents apart": {"apart": True},
    "remat: step": {"remat": "step"},
    "every step's loss": {"objective": {"kind": "every-step"}},
    "Huginn-like": {"model": HUGINN},
}


class RandomText:
    """Rows of random tokens; where documents are kept apart, of some 250 tokens each."""

    def __init__(self, vocab: int, *, apart: bool) -> None:
        self.vocab, self.apart = vocab, apart

    def __len__(self) -> int:
        return 64 * ROWS

    def batch(self, indices: torch.Tensor) -> Batch:
        """Returns rows of random tokens."""
        draws = torch.Generator().manual_seed(int(indices[0]))
        ids = torch.randint(0, self.vocab, (len(indices), LENGTH), generator=draws)
        segments = (torch.rand(ids.shape, generator=draws) < 1 / 250).long().cumsum(1) if self.apart else None
        return Batch(ids, ids.clone(), segment_ids=segments)


def measure(name: str, apart: bool = False, model: dict | None = None, **changes: object) -> None:
    """Prints the row of one case."""
    spec = {"kind": "preset", **(model or OURO)}
    config = preset(spec["name"], **spec["changes"])
    source = RandomText(config.vocab_size, apart=apart)
    data = {
        "about": name, "model": spec, "data": {"kind": "text", "files": "x", "tokenizer": "gpt2"}, "updates": COUNTED + 8,
        "batch": ROWS, "depth": {"kind": "fixed", "depth": DEPTH}, "precision": "bf16", "save": {"best": False}, **changes,
    }  # fmt: skip
    recipe = make_recipe(data)
    splits = Splits(source, source, vocab_size=config.vocab_size, alike=True)
    torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(recipe, Path(folder) / "run", given=Objects(data=splits))
        rows = [row for row in read_log(outcome.folder.log) if "loss" in row]
    del outcome
    objective = build_kind(recipe.objective, OBJECTIVES)
    tell(name, config, objective, DEPTH, [row["seconds"] for row in rows[-COUNTED:]])


def tell(name: str, config: LoopedConfig, objective: Objective, depth: int, seconds: list[float]) -> None:
    """Prints what updates of these times come to, counted as the log counts them; `causal` leaves half of the attention out."""
    speed, middle = Speedometer(config, objective, "bf16", torch.device("cuda")), statistics.median(seconds)
    ids = torch.empty(ROWS, LENGTH, dtype=torch.long, device="meta")
    flops = speed.flops([(Batch(ids, ids), Plan(depth, depth))])
    half = TRAINING_FACTOR * pass_flops(config, depth=depth, batch=ROWS, length=LENGTH)["attention"] / 2
    peak = speed.peak or float("nan")  # a card that is not in the table
    row = {
        "ms": 1e3 * middle,
        "tokens_per_s": ROWS * LENGTH / middle,
        "mfu": flops / middle / peak,
        "mfu_causal": (flops - half) / middle / peak,
    }
    memory = torch.cuda.max_memory_allocated() / 2**30
    report(f"P15 training on text: {name}", {**row, "peak_gib": memory, "updates": len(seconds), "target": ">= 0.50"})


def peer() -> None:
    """Prints the row of transformers' Llama of 12 layers, compiled, its own loss, AdamW fused."""
    config = LlamaConfig(**SHAPE, num_hidden_layers=12, max_position_embeddings=LENGTH, tie_word_embeddings=True)
    model = LlamaForCausalLM(config).cuda()
    compiled = torch.compile(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids, seconds = torch.randint(0, config.vocab_size, (ROWS, LENGTH), device="cuda"), []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(COUNTED + 8):
        torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    same = preset("ouro-1.4b", **{**OURO["changes"], "norm_placement": ["input"]})
    tell("transformers' Llama, 12 layers, compiled", same, Final(), 1, seconds[-COUNTED:])


def main(only: str = "") -> None:
    """Prints a row per case; needs a GPU."""
    if not torch.cuda.is_available():
        return
    torch.set_float32_matmul_precision("high")
    for name, changes in CASES.items():
        if only in name:
            measure(name, **changes)
            torch._dynamo.reset()
            torch.cuda.empty_cache()
    if only in "peer":
        peer()


if __name__ == "__main__":
    main(*sys.argv[1:])
