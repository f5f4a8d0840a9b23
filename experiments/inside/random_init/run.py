"""What random initialisation already decides: 128 steps of random models, with three kinds of norms, with injection and without.

    python -m experiments.inside.random_init OUT

Writes OUT/random-init.jsonl (a line per model) and OUT/*.svg, and judges the paper's four claims. Exit code 1
and a line for each claim that does not hold or is not shown; 2 where a model is missing. Models that are in the file
already are not run again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.inside.random_init.claims import WORD, Cell, Claim, cells, judge
from experiments.inside.random_init.figures import draw_all
from experiments.inside.random_init.plan import MAIN_START, STEPS, Row, build, prompts, rows
from experiments.pages import last_of_each, save_all
from experiments.side_by_side import as_line, made_by
from experiments.study import Study

if TYPE_CHECKING:
    from torch import Tensor

FILE = "random-init.jsonl"
CURVES = ("fixed_cosine", "far_cosine", "fixed_norm", "far_norm")
MISSING, FAILED = 2, 1


def measure(row: Row, steps: int = STEPS, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """Runs one model and returns its numbers: the first layer's curves over steps, mean over prompts, and where it ends."""
    import torch

    import loopwright as lw
    from loopwright.analysis.summary import as_list
    from loopwright.metrics.states import CONVERGENCE, convergence

    began = time.process_time()  # of the processor: other programs may run beside
    ids = prompts(row)
    # few short prompts: all residuals fit, and one pass does where `fixed` would run the steps twice
    seen = lw.trace(build(row), ids, steps, collect=(), capture={"residual": range(ids.shape[1])})
    residuals = seen.captured["residual"].unflatten(1, (steps, row.layers)).transpose(1, 2)  # [B, L, S, T, D]
    gaps = fixed_gaps(residuals)
    codes = convergence(gaps["fixed_cosine"][..., :-1], gaps["far_cosine"][..., :-1])
    last = residuals[:, 0, -1]
    return {
        "name": row.name, **asdict(row), "steps": steps, "prompts": ids.shape[0], "tokens": ids.shape[1],
        "curves": {name: as_list(gaps[name][:, 0].mean(0)) for name in CURVES},
        "settles": {label: (codes == code).double().mean().item() for code, label in enumerate(CONVERGENCE)},
        "last_norm": as_list(lw.metrics.residual_norm(last).mean()),
        "last_change": as_list(lw.metrics.relative_step(residuals[:, 0, -2], last).mean()),
        "seconds": round(time.process_time() - began, 2), "threads": torch.get_num_threads(),
        "origin": made_by(),
    }  # fmt: skip


def fixed_gaps(residuals: Tensor) -> dict[str, Tensor]:
    """Returns the numbers of `collect="fixed"`, each [B, L, S], of residuals [B, L, S, T, D]: to the last step, and to that of the
    layer which ends farthest."""
    import torch

    from loopwright.metrics.states import farthest_layers, pick_rows, residual_cosine, residual_distance

    ends = residuals[:, :, -1].transpose(0, 1)  # [L, B, T, D]
    far = farthest_layers(ends)
    found: dict[str, list[Tensor]] = {name: [] for name in CURVES}
    for layer, path in enumerate(residuals.unbind(1)):
        own, by_distance, by_cosine = (
            x[:, None] for x in (ends[layer], pick_rows(ends, far.distance[layer]), pick_rows(ends, far.cosine[layer]))
        )
        found["fixed_cosine"].append(residual_cosine(path, own))
        found["fixed_norm"].append(residual_distance(own, path))
        found["far_cosine"].append(residual_cosine(path, by_cosine))
        found["far_norm"].append(residual_distance(by_distance, path))
    return {name: torch.stack(values, 1) for name, values in found.items()}


def said(claim: Claim) -> str:
    """Returns a claim as a line of text, with what speaks against it."""
    reasons = [f"against: {described(cell)}" for cell in claim.against]
    if claim.holds is None:
        reasons.append("not every model that it is about was run")
    return "\n    ".join([f"{WORD[claim.holds]}: {claim.text}", *reasons])


def described(cell: Cell) -> str:
    """Returns a cell in words."""
    return (
        f"{cell.norm}, {cell.injection}, {cell.layers} layers: {cell.verdict} ({cell.seeds} of {cell.models} seeds alone); "
        f"cosine over the second half {cell.own:.3f} to its own, {cell.far:.3f} to the farthest"
    )


def read(path: Path, wanted: Sequence[Row]) -> list[dict[str, Any]]:
    """Returns the results of the rows that are in the file, in the order of the plan."""
    found = last_of_each(path) if path.is_file() else {}
    return [found[row.name] for row in wanted if row.name in found]


def conclude(out: Path, wanted: Sequence[Row]) -> int:
    """Reads the results, writes the figures, says of each claim whether it holds, and returns the exit code."""
    from loopwright.storage.files import write_whole

    path = out / FILE
    results = read(path, wanted)
    missing = sorted({row.name for row in wanted} - {result["name"] for result in results})
    if missing:
        print(f"missing: {len(missing)} of {len(wanted)} models, {missing[0]} first; run the command again for the rest")
        return MISSING
    write_whole(path, "".join(as_line(result) + "\n" for result in results))  # workers end in no fixed order
    claims = judge(cells(results, MAIN_START))
    print(*map(said, claims), *save_all(draw_all(results), out), sep="\n")
    return 0 if all(claim.holds for claim in claims) else FAILED


def judged(out: Path) -> int:
    """Concludes the whole sweep."""
    return conclude(out, list(rows()))


STUDY = Study(__doc__, measure, {"all": rows}, usual={"workers": 2, "seconds": 900}, file=FILE, end=judged)
