"""Supervised training up to half of the answers, then the same number of updates by GRPO, by RLTT and by more supervised training.

python -m experiments.rl.run --seeds 0,1,2        (needs the `rl` extra; a run that was stopped goes on where it was)
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import loopwright as lw
from experiments.rl.figures import draw
from experiments.rl.tables import table
from experiments.side_by_side import as_line
from loopwright.recipes import recipe
from loopwright.storage.run import RunFolder
from loopwright.training.report import read_log

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "rl"
DEPTHS = (1, 2, 4, 8)
HALF, AT = 0.45, 4  # supervised training ends at the first validation with this exact match at this depth
UPDATES, ROWS = 60, 512  # 64 prompts with 8 completions each
GRPO = {"kind": "grpo", "reward": "exact", "group": 8}
# what the updates after the start do: an objective, a learning rate, and how many rows an update has
ARMS: dict[str, tuple[dict[str, Any], float, int]] = {
    "grpo": (GRPO, 1e-3, ROWS),
    "rltt": ({**GRPO, "credit": "uniform"}, 1e-3, ROWS),
    "sft": ({"kind": "final"}, 1e-3, ROWS // 8),  # the same prompts, each with its answer
}


def main() -> None:
    """Runs what is missing, then writes the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--runs", type=Path, default=Path("runs/rl"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    rows = asked.out / "rows.jsonl"
    done = {json.loads(line)["name"] for line in rows.read_text().splitlines()} if rows.exists() else set()
    for seed in map(int, asked.seeds.split(",")):
        names = [arm for arm in ["start", *asked.arms.split(",")] if f"{arm}-{seed}" not in done]
        for arm in names:
            row = carry_out(arm, seed, asked.runs)
            with rows.open("a") as file:
                file.write(as_line(row) + "\n")
            print(as_line({key: row[key] for key in ("name", "exact", "seconds", "tokens")}), flush=True)
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    (asked.out / "table.md").write_text(table(found))
    draw(found).save(asked.out / "curves.svg")


def carry_out(arm: str, seed: int, runs: Path) -> dict[str, Any]:
    """Trains one arm of one seed, measures it on the test rows at each depth, and returns all numbers."""
    start, folder = runs / f"start-{seed}", runs / f"{arm}-{seed}"
    chosen = recipe(str(HERE / "sft.yaml"), [f"seed={seed}"]).data_of()
    began, resumed = time.process_time(), (folder / "recipe.yaml").exists()
    if arm == "start":
        half = Half(folder)
        lw.train(chosen, out=folder, resume=resumed, on_update=half, progress=False)
        if not half.reached:
            raise SystemExit(f"{folder}: stopped before {HALF:.0%} at depth {AT} was reached; run it again to go on")
    else:
        objective, rate, batch = ARMS[arm]
        changes = {
            "model": {"kind": "load", "source": str(start)}, "objective": objective, "updates": UPDATES, "batch": batch,
            "optim": {**chosen["optim"], "lr": rate}, "schedule": {"kind": "cosine", "warmup": 5},
            "validate": {**chosen["validate"], "every": 10}, "save": {"every": 40, "best": False},
        }  # fmt: skip
        run = lw.train({**chosen, **changes}, out=folder, resume=resumed, progress=False)
        if not run.finished:
            raise SystemExit(f"{folder}: stopped after {run.progress.update} updates; run it again to go on")
    seconds = time.process_time() - began
    log = read_log(RunFolder(folder).log)
    updates = [row for row in log if "loss" in row]
    report = lw.evaluate(folder, depths=DEPTHS)["test"]
    return {
        "name": f"{arm}-{seed}", "arm": arm, "seed": seed, "updates": len(updates), "depth": list(report.depth),
        "exact": list(report.exact), "rows": report.rows, "cpu_seconds": None if resumed else seconds,
        "seconds": sum(row["seconds"] for row in updates), "tokens": sum(row["tokens"] for row in updates),
        "targets": sum(row["targets"] for row in updates),
        "valid": [[row["update"] + 1, *(row["valid"][str(depth)]["exact"] for depth in DEPTHS)] for row in log if "valid" in row],
        "reward": [[row["update"], row["reward"]] for row in updates if "reward" in row],
    }  # fmt: skip


class Half:
    """Ends a run after the update whose validation first reaches HALF at depth AT; validation is read from the log."""

    def __init__(self, folder: Path) -> None:
        self.log, self.reached = RunFolder(folder).log, False

    def __call__(self, row: dict[str, Any]) -> bool:
        seen = [found["valid"] for found in read_log(self.log) if "valid" in found] if row["update"] % 20 == 0 else []
        self.reached = bool(seen) and seen[-1][str(AT)]["exact"] >= HALF
        return self.reached


if __name__ == "__main__":
    main()
