"""The STARS paper's Table 4: what random depth and the penalty cost on a model of Ouro-1.4B's shape, beside plain fine-tuning.

Fine-tuning at depth 4; depth drawn from log-normal(1.7, 0.4) in 1 … 16; the penalty at depth 4; both. Forward, backward and AdamW,
bf16 products with fp32 masters, the loop rematerialised step by step, random weights: cost does not ask what they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

import loopwright as lw
from benchmarks.pairs import compare, report
from loopwright.data.batch import Batch
from loopwright.schema import build_kind
from loopwright.training.depth import RULES
from loopwright.training.objectives.jacobian import JacobianPenalty
from loopwright.training.objectives.losses import Final
from loopwright.training.objectives.penalties import Weighted
from loopwright.training.rollout import Plan
from loopwright.training.run import TrainingModule

PAPER = {"random depth": 1.4976, "penalty": 1.5317, "both": 2.0439}
# by what they are asked for: the row of the table, and the form of the penalty
ALL: dict[str, tuple[str, str | None]] = {
    "random-depth": ("random depth", None), "penalty": ("penalty", "fd"), "both": ("both", "fd"),
    "penalty-exact": ("penalty", "exact"), "both-exact": ("both", "exact"),
}  # fmt: skip
ROWS, LENGTH, DRAWS = 4, 1024, 6


def main() -> None:
    """Prints the three ratios for the default penalty and for the exact one, or those asked for; needs a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ALL)}; left out: all")
    asked = parser.parse_args().rows or list(ALL)
    if unknown := [row for row in asked if row not in ALL]:
        parser.error(f"unknown {unknown[0]!r}; allowed: {', '.join(ALL)}")
    if not torch.cuda.is_available():
        return
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = lw.LoopedForCausalLM(lw.preset("ouro-1.4b")).train()
    ids = torch.randint(0, model.config.vocab_size, (ROWS, LENGTH), device="cuda")
    batch = Batch(ids, ids, rows=torch.arange(ROWS, device="cuda"))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-9, fused=True)
    rule = build_kind({"kind": "log-normal", "mu": 1.7, "sigma": 0.4, "least": 1, "most": 16}, RULES)
    generator = torch.Generator().manual_seed(0)
    drawn = [rule(0, generator).depth for _ in range(DRAWS)]
    fixed = [4] * DRAWS

    def updates(depths: Sequence[int], mode: str | None) -> None:
        penalties = [] if mode is None else [Weighted(JacobianPenalty(mode), "jacobian")]
        module = TrainingModule(model, Final(), penalties, remat="step")
        for depth in depths:
            with torch.autocast("cuda", torch.bfloat16):
                loss, _ = module(batch, Plan(depth, depth), weights=[0.1])
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    for name, mode in (ALL[row] for row in asked):
        depths = fixed if name == "penalty" else drawn
        row = compare(lambda d=depths, m=mode: updates(d, m), lambda: updates(fixed, None), pairs=3, warm_up=1)
        about = {"mode": mode, "mean_depth": sum(depths) / len(depths), "rows": ROWS, "length": LENGTH, "paper": PAPER[name]}
        report(f"Table 4: {name} / fine-tuning at depth 4", {**about, **row})


if __name__ == "__main__":
    main()
