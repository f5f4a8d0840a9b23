"""Trains and measures the runs of the study, many side by side on one GPU, each result one line of a JSON-lines file.

python -m experiments.stars.run OUT.jsonl --groups main,ablation --workers 4 --seconds 540
"""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.side_by_side import made_by
from experiments.stars.plan import GROUPS, Run
from experiments.study import Study
from experiments.thin import rounded
from experiments.trained import train_once

if TYPE_CHECKING:
    from loopwright.data.batch import BatchSource
    from loopwright.model.causal_lm import LoopedForCausalLM

NEAR, FAR = list(range(1, 101)), [100, 128, 200, 300, 500, 700, 1000]
FAR_ROWS = 1000  # rows that are followed to depth 1,000; all of them in the groups of FULL
FULL = ("target",)
RADIUS_DEPTHS = (8, 32, 100)
# of the short runs, and of those made for their paths, fewer depths and sums are looked at
BRIEF, BRIEF_NEAR, BRIEF_ROWS = ("brief_", "paths"), [*range(1, 33), *range(36, 101, 4)], (1000, 250)
PATH_STEPS = 100
DIGITS = 4  # of curves: the pages show fewer, and a share of 5,000 sums has no more
ATTENTION = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}


def carry_out(run: Run, *, extra: tuple[str, ...] = (), kept: Path | None = None) -> dict[str, Any]:
    """Trains one run, measures it on its test split, and returns all numbers."""
    import torch

    from loopwright.data.batch import FirstRows
    from loopwright.evaluation.by_depth import sweep
    from loopwright.recipes import recipe
    from loopwright.training.validation import measure

    chosen = recipe(run.recipe, [*run.changes, f"seed={run.seed}", *extra])
    trained = train_once(chosen, kept=kept)
    torch.set_float32_matmul_precision("highest")
    outcome, rows = trained.outcome, trained.log
    model, source = outcome.model, outcome.splits.tests["test"]
    full, short = run.group in FULL, run.group.startswith(BRIEF)
    splits = outcome.splits
    near_rows, far_rows = BRIEF_ROWS if short else (len(source), len(source) if full else FAR_ROWS)
    near = sweep(
        model, FirstRows(source, near_rows), depths=BRIEF_NEAR if short else NEAR, batch_size=5000, exact=True,
        eos_id=splits.eos_id, pad_id=splits.pad_id, decode_depths=[8],
    )  # fmt: skip
    far = sweep(model, FirstRows(source, far_rows), depths=FAR, batch_size=5000, exact=True)
    batch = source.batch(torch.arange(8) * (len(source) // 8)).to(model.device)
    radius = {d: measure(model, batch, d, rows=8) for d in (*RADIUS_DEPTHS, *((1000,) if full else ()))}
    seconds = [row["seconds"] for row in rows[len(rows) // 2 :]]
    return {
        "name": run.name, "group": run.group, "label": run.label, "seed": run.seed, "recipe": chosen.data_of(),
        "train_seconds": trained.seconds, "mean_update_ms": 1e3 * sum(seconds) / len(seconds),
        "solved_at": outcome.progress.solved_at, "skipped": outcome.progress.skipped, "looks": trained.exact(),
        **rounded({"loss": _thinned(rows, "loss"), "jacobian": _thinned(rows, "jacobian")}, DIGITS),
        **rounded({"near": asdict(near), "far": asdict(far)}, DIGITS), "radius": radius, "path": state_path(model, source),
        "origin": made_by(kept),
    }  # fmt: skip


def state_path(model: LoopedForCausalLM, source: BatchSource) -> dict[str, Any]:
    """Returns the states of the first sum, all its tokens together, from the start to PATH_STEPS steps: their size, and where
    they lie in their own first two principal directions."""
    import torch

    from loopwright.metrics.states import prompt_path
    from loopwright.training.rollout import evaluating

    batch = source.batch(torch.arange(1)).to(model.device)
    with evaluating(model), torch.no_grad():
        e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask, segment_ids=batch.segment_ids)
        start = model.start_state(e, p)
        states = torch.stack([start[0], *(s[0] for s in model.unroll(e, PATH_STEPS, p, state=start))]).float()
    sizes = states.flatten(1).norm(dim=1)
    if not states.isfinite().all():
        return {"size": None, "explained": None, "points": None}
    found = prompt_path(states)
    return {
        "size": rounded(sizes.tolist(), 4), "explained": rounded(found.explained.tolist(), 4),
        "points": rounded(found.coordinates.tolist(), 4),
    }  # fmt: skip


def fastest_attention() -> str | None:
    """Returns the fastest of torch's attention kernels for rows of 17 tokens, forward and backward; None without a GPU."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not torch.cuda.is_available():
        return None
    q, k, v = (torch.randn(512, 17, 8, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(3))
    times = {}
    for name, backend in ATTENTION.items():
        try:
            with sdpa_kernel(getattr(SDPBackend, backend)):
                for count in (3, 30):
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                    for _ in range(count):
                        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1).sum().backward()
                    torch.cuda.synchronize()
                    times[name] = (time.perf_counter() - began) / count
        except RuntimeError as error:
            print(f"attention: {name} is not offered ({str(error).splitlines()[0]})", flush=True)
    print("attention, ms:", {name: round(1e3 * t, 3) for name, t in times.items()}, flush=True)
    return min(times, key=times.__getitem__)


def use_attention(name: str | None) -> None:
    """Leaves torch this attention kernel alone (and the plain one, for derivatives of derivatives)."""
    import torch

    if name is not None:
        torch.backends.cuda.enable_cudnn_sdp(name == "cudnn")
        torch.backends.cuda.enable_flash_sdp(name == "flash")
        torch.backends.cuda.enable_mem_efficient_sdp(name == "efficient")


def _thinned(rows: list[dict[str, Any]], key: str) -> list[list[float]]:
    """Every 50th update: the mean of that many."""
    found = [(row["update"], row[key]) for row in rows if row.get(key) is not None]
    return [[found[i][0], sum(v for _, v in found[i : i + 50]) / len(found[i : i + 50])] for i in range(0, len(found), 50)]


STUDY = Study(
    __doc__, carry_out, GROUPS, begin=lambda: partial(use_attention, fastest_attention()), goes_on=True
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
