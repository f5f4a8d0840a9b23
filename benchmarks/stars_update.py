"""One whole update of the STARS study's addition model on a GPU, beside the public code at the same depth, batch and width.

The public figures (H200, 60 updates after 10 of warm-up, batch 512): 17.6 ms in fp32 and 12.1 in TF32 at fixed depth 4; with the
penalty 49.1 and 38.1 at a mean depth of 9.8, where one update costs about the same as at depth 10. Ours are means over 150
updates after the captures, wall time of the whole update: data, passes, clipping, optimiser, log.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from benchmarks.pairs import no_options, report
from loopwright.recipes import recipe
from loopwright.training.loop import train
from loopwright.training.report import read_log

PUBLIC = {(4, "fp32"): 17.6, (4, "tf32"): 12.1, (10, "fp32"): 49.1, (10, "tf32"): 38.1}  # ms an update, by depth and precision
FAST = (
    "data.padding=plain",
    "compile=true",
    "graph=true",
    "validate.every=0",
    "validate.radius=0",
    "save.best=false",
    "schedule.warmup=50",
)
UPDATES, COUNTED = 190, 150
CASES = [
    *[(4, precision, None) for precision in ("bf16", "tf32", "fp32")],
    *[(10, precision, "released") for precision in ("bf16", "tf32", "fp32")],
    (10, "bf16", "exact"),
    (10, "bf16", None),
]


def milliseconds(depth: int, precision: str, mode: str | None) -> float:
    """Returns the mean wall time of an update, in milliseconds."""
    penalties = "penalties=[]" if mode is None else f"penalties=[{{kind: jacobian, mode: {mode}, weight: 0.1}}]"
    changes = (*FAST, f"precision={precision}", f"depth={{kind: fixed, depth: {depth}}}", penalties, f"updates={UPDATES}")
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(recipe("stars-addition", changes), Path(folder) / "run")
        seconds = [row["seconds"] for row in read_log(outcome.folder.log) if "loss" in row]
    torch._dynamo.reset()
    return 1e3 * sum(seconds[-COUNTED:]) / COUNTED


def main() -> None:
    """Prints a row for each depth, precision and mode; needs a GPU."""
    if not torch.cuda.is_available():
        return
    for depth, precision, mode in CASES:
        ours = milliseconds(depth, precision, mode)
        # bf16 products have no public figure: what they are to be compared with is the faster of the two
        public = PUBLIC[depth, "tf32" if precision == "bf16" else precision]
        row = {
            "depth": depth,
            "precision": precision,
            "penalty": mode,
            "ms": ours,
            "public_ms": public,
            "times_faster": public / ours,
        }
        report("an update of the addition model", row)


if __name__ == "__main__":
    no_options(__doc__)
    main()
