"""One thread against all of them on a CPU: an update of small looped models, and eight decoded tokens; wall and processor time.

    python -m benchmarks.threads

The number of threads alternates within a process. On a machine that others use too, wall time says what they leave and processor
time what is spent, waiting threads that spin included (`OMP_WAIT_POLICY=passive` lets them sleep, as the command line does).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator

import torch

import loopwright as lw
from benchmarks.pairs import no_options, report

PAIRS, WARM_UP = 7, 2


def update(width: int, rows: int, length: int) -> tuple[Callable[[], None], int]:
    """Returns one pass forward and backward at depth 4, and the number of parameters."""
    model = lw.build(
        "stars-addition", hidden_size=width, intermediate_size=2 * width, num_attention_heads=4, max_position_embeddings=512
    ).train()
    ids = torch.randint(0, 13, (rows, length))

    def run() -> None:
        model(ids, labels=ids, depth=4).loss.backward()
        model.zero_grad()

    return run, sum(p.numel() for p in model.parameters())


def decode(width: int) -> tuple[Callable[[], None], int]:
    """Returns eight greedy tokens of a four-layer core at depth 2, and the number of parameters."""
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_attention_heads": 8, "core_layers": 4, "vocab_size": 8000}
    model = lw.build("stars-addition", **sizes, max_position_embeddings=512)
    ids = torch.randint(0, 13, (1, 16))

    def run() -> None:
        model.generate(ids, max_new_tokens=8, do_sample=False, depth=2, pad_token_id=0, eos_token_id=None)

    return run, sum(p.numel() for p in model.parameters())


def cases() -> Iterator[tuple[str, Callable[[], None], int]]:
    """Yields what is measured, from small to large."""
    for width, rows, length in ((64, 128, 12), (128, 64, 64), (256, 32, 128), (512, 16, 128)):
        yield f"update, width {width}, {rows} x {length}", *update(width, rows, length)
    for width in (64, 256, 768, 1536):
        yield f"decode, width {width}", *decode(width)


def timed(run: Callable[[], None], threads: int) -> tuple[float, float]:
    """Returns wall and processor seconds of a call on so many threads."""
    torch.set_num_threads(threads)
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    """Prints a row for each case: how much more wall and processor time all threads take than one, medians of pairs."""
    every = torch.get_num_threads()
    for name, run, size in cases():
        for _ in range(WARM_UP):
            timed(run, 1), timed(run, every)
        pairs = [(timed(run, every), timed(run, 1)) for _ in range(PAIRS)]
        ratios = {kind: statistics.median(many[i] / one[i] for many, one in pairs) for i, kind in enumerate(("wall", "processor"))}
        report("threads", {
            "case": name, "parameters": size, "threads": every, "pairs": PAIRS, **ratios,
            "load": os.getloadavg()[0], "waiting": os.environ.get("OMP_WAIT_POLICY", "as the runtime likes"),
        })  # fmt: skip


if __name__ == "__main__":
    no_options(__doc__)
    main()
