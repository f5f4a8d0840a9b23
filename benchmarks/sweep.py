"""P14: one pass over depths 1 to T against T separate passes, with the same scoring at each depth, beside its FLOP ratio."""

from __future__ import annotations

import torch

import loopwright as lw
from benchmarks.pairs import compare, no_options, report
from loopwright.data.batch import Batch
from loopwright.generation.readings import readings
from loopwright.model.config import LoopedConfig
from loopwright.model.cost import pass_flops

DEPTHS = 16
LENGTH = 64
ROWS = {"no coda": 16, "coda of 2 layers": 4}
ALLOWED = 1.1
# the addition transformer of the STARS study at half its width: no coda, and a head of 15 tokens
PLAIN = {"hidden_size": 256, "intermediate_size": 512, "dropout": 0.0}
# prelude, core and coda of two layers each, and a head that counts
FULL = {
    "hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4, "prelude_layers": 2, "core_layers": 2,
    "coda_layers": 2, "vocab_size": 1024, "embedding_scale": 1.0, "state": {"scale": 1.0},
}  # fmt: skip


def flop_ratio(config: LoopedConfig, depths: int, *, batch: int, length: int) -> float:
    """Returns the FLOPs of one pass that reads out after each of `depths` steps over those of a pass for each depth."""
    first, second = (pass_flops(config, depth=depth, batch=batch, length=length) for depth in (1, 2))
    step = second["total"] - first["total"]
    runs = config.prelude_layers + config.core_layers + config.coda_layers
    read = first["head"] + first["coda"] + first["attention"] * config.coda_layers // runs
    once = first["total"] - step - read
    separate = sum(once + depth * step + read for depth in range(1, depths + 1))
    return (once + depths * (step + read)) / separate


def models() -> dict[str, lw.LoopedForCausalLM]:
    """Returns the random models that are timed, by name."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = {"no coda": lw.build("stars-addition", **PLAIN), "coda of 2 layers": lw.build("huginn", **FULL)}
    return {name: model.to(device) for name, model in found.items()}


def main() -> None:
    """Prints one row per model."""
    for name, model in models().items():
        ids = torch.randint(0, model.config.vocab_size, (ROWS[name], LENGTH), device=model.device)
        batch = Batch(ids, ids)

        def one_pass(model: lw.LoopedForCausalLM = model, batch: Batch = batch) -> None:
            for _ in readings(model, batch, range(1, DEPTHS + 1)):
                pass

        def separate(model: lw.LoopedForCausalLM = model, batch: Batch = batch) -> None:
            for depth in range(1, DEPTHS + 1):
                for _ in readings(model, batch, [depth]):
                    pass

        bound = flop_ratio(model.config, DEPTHS, batch=ROWS[name], length=LENGTH)
        row = compare(one_pass, separate, pairs=15, warm_up=1)
        target = f"<= {ALLOWED * bound:.4f}, {ALLOWED} times the FLOP ratio"
        times = {
            "times_the_flop_ratio": row["ratio"] / bound,
            "times_q1": row["ratio_q1"] / bound,
            "times_q3": row["ratio_q3"] / bound,
        }
        report(
            "P14 one-pass sweep / separate passes",
            {"model": name, "depths": DEPTHS, "target": target, "flop_ratio": bound, **row, **times},
        )


if __name__ == "__main__":
    no_options(__doc__)
    main()
