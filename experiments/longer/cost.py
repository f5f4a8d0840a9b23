"""What the penalty costs in `addition-longer`: whole updates with it against the same updates without, pair by pair.

    python -m experiments.longer.cost a.b=c …

On a CPU the processor time of one thread, on a GPU the time of one replayed graph (as in benchmarks/pairs.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

import loopwright as lw
from benchmarks.pairs import compare, replayed, report
from loopwright.data.build import build_data
from loopwright.recipes import recipe
from loopwright.schema import build_kind
from loopwright.training.depth import RULES
from loopwright.training.objectives.jacobian import JacobianPenalty
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.rollout import Plan, rollout

PAIRS = 11


def main() -> None:
    """Prints the ratio over one update at each depth that the recipe trains at."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("changes", nargs="*", metavar="a.b=c", help="changes to the recipe")
    chosen = recipe("addition-longer", parser.parse_args().changes)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = lw.build(chosen.model["name"], **chosen.model["changes"]).to(device).train()
    batch = build_data(chosen.data).train.batch(range(chosen.batch)).ready().to(device)
    objective = build_kind(chosen.objective, OBJECTIVES)
    weight = float(chosen.penalties[0]["weight"])
    span = build_kind(chosen.depth, RULES).span
    least, most = int(span[0]), int(span[-1])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True, capturable=device == "cuda")

    def updates(penalty: JacobianPenalty | None) -> Callable[[], None]:
        def run() -> None:
            for number, depth in enumerate(range(least, most + 1)):
                path = rollout(model, batch, Plan(depth, depth, number), keeps=objective.reads, hook=penalty)
                loss = objective(model, path)[0]
                (loss if penalty is None else loss + weight * penalty(model, path)).backward()
                optimiser.step()
                model.zero_grad(set_to_none=True)

        return run

    row = {"depths": f"{least}:{most}", "rows": chosen.batch, "width": model.config.hidden_size}
    with_term, without = replayed(updates(JacobianPenalty())), replayed(updates(None))
    report("addition-longer: update with the penalty / without", {**row, **compare(with_term, without, pairs=PAIRS, warm_up=1)})


if __name__ == "__main__":
    main()
