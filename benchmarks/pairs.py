"""Timing two variants against each other: alternating, after a warm-up, medians with the interquartile range."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from loopwright.kernels.gate import free_launches
from loopwright.storage.run import origin


def seconds(run: Callable[[], object]) -> float:
    """Returns what one call costs: wall time on a GPU, processor time of one thread on a CPU.

    Processor time does not count what other programs do on the same cores; with one thread it is what an idle machine would
    take.
    """
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        return time.perf_counter() - start
    torch.set_num_threads(1)
    start = time.process_time()
    run()
    return time.process_time() - start


def replayed(call: Callable[[], object]) -> Callable[[], object]:
    """Returns the call as it is timed: on a GPU one replayed graph, so that what is compared is the device's work.

    It is captured on the present stream, if that is not the default one: leaves of an autograd graph belong to the stream that
    first used them, and all captures that share them must run there.
    """
    if not torch.cuda.is_available():
        return call
    stream = torch.cuda.current_stream()
    if stream == torch.cuda.default_stream():
        stream = torch.cuda.Stream()
    with free_launches():
        with torch.cuda.stream(stream):
            for _ in range(3):  # compiles and warms up
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()

    def recompute(held: Callable[[], object] = call) -> None:  # what the graph reads must live as long as it is replayed
        graph.replay()

    return recompute


def compare(a: Callable[[], object], b: Callable[[], object], *, pairs: int = 15, warm_up: int = 3) -> dict[str, float]:
    """Returns the median of a/b over alternating pairs with its quartiles, and both medians in milliseconds."""
    for _ in range(warm_up):
        a(), b()
    times = [(seconds(a), seconds(b)) for _ in range(pairs)]
    low, middle, high = statistics.quantiles([x / y for x, y in times], n=4)
    return {
        "ratio": middle, "ratio_q1": low, "ratio_q3": high, "pairs": pairs,
        "a_ms": 1e3 * statistics.median(x for x, _ in times), "b_ms": 1e3 * statistics.median(y for _, y in times),
    }  # fmt: skip


@cache
def made_on(device: str | None = None) -> dict[str, Any]:
    """Returns where rows are made: the device (a GPU that is there, unless another is named), torch, and the commit (with a + where
    the package differs from it)."""
    gpu = torch.cuda.is_available() if device is None else device != "cpu"
    made = origin()
    commit = made["commit"] and made["commit"][:12] + ("+" if made["changed"] else "")
    name = torch.cuda.get_device_name() if gpu else f"CPU {platform.machine()}, one thread"
    return {"device": name, "torch": made["torch"], "commit": commit}


def as_line(row: dict[str, Any]) -> str:
    """Returns a row as a JSON line, numbers at four digits."""
    return json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()})


def report(name: str, row: dict[str, object]) -> None:
    """Prints one row as a JSON line."""
    print(as_line({"benchmark": name, **made_on(), **row}), flush=True)


def no_options(about: str | None) -> None:
    """Answers `--help` with what a benchmark measures, and refuses other words."""
    argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
