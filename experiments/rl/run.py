"""Supervised training up to half of the answers, then the same number of updates by GRPO, by RLTT and by more supervised training.

python -m experiments.rl.run --seeds 0,1,2        (needs the `rl` extra; a run that was stopped goes on where it was)
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import loopwright as lw
from experiments.rl.figures import draw
from experiments.rl.tables import table
from experiments.study import Named, Rows, Study
from experiments.trained import Stopped
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


@dataclass(frozen=True)
class Run(Named):
    """One arm with one seed."""

    named_by, alike_by, joined_by = ("arm", "seed"), ("arm",), "-"

    arm: str
    seed: int


def carry_out(run: Run, *, runs: Path, extra: tuple[str, ...]) -> dict[str, Any]:
    """Trains one arm of one seed, measures it on the test rows at each depth, and returns all numbers."""
    arm, seed, start, folder = run.arm, run.seed, runs / f"start-{run.seed}", runs / run.name
    chosen = recipe(str(HERE / "sft.yaml"), [f"seed={seed}", *extra]).data_of()
    began, resumed = time.process_time(), (folder / "recipe.yaml").exists()
    if arm == "start":
        half = Half(folder)
        lw.train(chosen, out=folder, resume=resumed, on_update=half, progress=False)
        if not half.reached:
            raise Stopped(f"stopped before {HALF:.0%} at depth {AT} was reached; run it again to go on")
    else:
        objective, rate, batch = ARMS[arm]
        changes = {
            "model": {"kind": "load", "source": str(start)}, "objective": objective, "updates": UPDATES, "batch": batch,
            "optim": {**chosen["optim"], "lr": rate}, "schedule": {"kind": "cosine", "warmup": 5},
            "validate": {**chosen["validate"], "every": 10}, "save": {"every": 40, "best": False},
        }  # fmt: skip
        ended = lw.train({**chosen, **changes}, out=folder, resume=resumed, progress=False)
        if not ended.finished:
            raise Stopped(f"stopped after {ended.progress.update} updates; run it again to go on")
    seconds = time.process_time() - began
    log = read_log(RunFolder(folder).log)
    updates = [row for row in log if "loss" in row]
    report = lw.evaluate(folder, depths=DEPTHS)["test"]
    return {
        "name": run.name, "arm": arm, "seed": seed, "updates": len(updates), "depth": list(report.depth),
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


def stages(rows: Rows) -> Iterator[Iterable[Run]]:
    """Yields what all arms begin from, then the arms."""
    for arms in (["start"], [*ARMS]):
        yield [Run(arm, seed) for seed in range(3) for arm in arms]


def write(folder: Path) -> None:
    """Writes the table and the figure."""
    found = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    (folder / "table.md").write_text(table(found))
    draw(found).save(folder / "curves.svg")


STUDY = Study(
    __doc__, carry_out, stages=stages, options={"--runs": {"type": Path, "default": Path("runs/rl")}},
    file="rows.jsonl", home=RESULTS, end=write,
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
