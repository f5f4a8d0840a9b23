"""P11 and P13 at scale: many prompts of real lengths through a model of Ouro's shape, plain and traced; and P12.

    python -m benchmarks.trace_scale --tokens prompts.jsonl --examples 256 --depth 128 --batch 128

FILE has a prompt per line, as {"tokens": [ids]}. Each batch is run plainly and traced with all attention metrics, one after the
other, the longest prompts first; the last --full batches also with residual numbers and the second pass of fixed-point distances,
and written to the disk. Small batches of short prompts say how fast kernels are launched, not how long they run. No batch begins
that would, by the longest so far, not end within --seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import loopwright as lw
from benchmarks.pairs import report
from benchmarks.trace import ALLOWED, gram_sides
from loopwright.analysis.study import read_prompts
from loopwright.analysis.trace.record import pad, save_trace
from loopwright.analysis.trace.trace import Trace, trace

ATTENTION, ONE_PASS, TWO_PASSES = ("attention",), ("attention", "residual"), ("attention", "residual", "fixed")


class Tally:
    """Seconds and peak bytes of one kind of work, by the place of its batch."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self.peaks: dict[int, int] = {}

    def run(self, place: int, work: Callable[[], Any]) -> Any:
        """Does the work of a batch, and counts what it took."""
        on_gpu = torch.cuda.is_available()
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        found = work()
        if on_gpu:
            torch.cuda.synchronize()
        self.peaks[place] = torch.cuda.max_memory_allocated() if on_gpu else 0
        self.seconds[place] = time.perf_counter() - began
        return found

    @property
    def total(self) -> float:
        """All seconds."""
        return sum(self.seconds.values())

    def beside(self, other: Tally) -> float:
        """Returns the seconds that another kind of work took on the same batches."""
        return sum(other.seconds[place] for place in self.seconds)


def batches(rows: Sequence[Sequence[int]], size: int) -> list[Sequence[Sequence[int]]]:
    """Returns rows in batches, those of about one length together."""
    ordered = sorted(rows, key=len, reverse=True)
    return [ordered[i : i + size] for i in range(0, len(ordered), size)]


def read_rows(path: str, examples: int, vocabulary: int) -> list[list[int]]:
    """Returns the token rows of a file; an id that the model has not becomes one that it has, since its weights are random."""
    found = read_prompts(path, examples=examples)
    wrong = next((row for row in found if isinstance(row, str)), None)
    if wrong is not None:
        raise ValueError(f"tokens: {path} holds the text {wrong[:20]!r}; allowed: lines of token ids, as {{'tokens': [1, 2]}}")
    return [[token % vocabulary for token in row] for row in found]


def scale(
    model: lw.LoopedForCausalLM, rows: Sequence[Sequence[int]], *, depth: int, batch: int, full: int, seconds: float
) -> dict[str, Tally]:
    """Returns the times of the plain pass, of the trace, and on the last `full` batches of both kinds of longer trace."""
    deadline = time.perf_counter() + seconds
    tallies = {name: Tally() for name in ("plain", "attention", "attention and residual", "two passes", "writing")}
    plain, traced, once, twice, writing = tallies.values()
    groups = batches(rows, batch)

    @torch.no_grad()
    def forward(ids: torch.Tensor, mask: torch.Tensor, steps: int) -> None:
        model(ids, attention_mask=mask, depth=steps, logits_to_keep=1, use_cache=False)

    def look(ids: torch.Tensor, mask: torch.Tensor, steps: int, collect: Sequence[str]) -> Trace:
        return trace(model, ids, steps, attention_mask=mask, collect=collect)

    ids, mask = pad(groups[0], model.device)
    forward(ids, mask, 2), look(ids, mask, 2, TWO_PASSES)  # warm-up
    for place, group in enumerate(groups):
        longest = 1.2 * max((plain.seconds[i] + traced.seconds[i] for i in plain.seconds), default=0.0)
        if time.perf_counter() + longest > deadline:
            print(f"stopped before batch {place + 1} of {len(groups)}: no time", flush=True)
            break
        ids, mask = pad(group, model.device)
        plain.run(place, lambda ids=ids, mask=mask: forward(ids, mask, depth))
        traced.run(place, lambda ids=ids, mask=mask: look(ids, mask, depth, ATTENTION))
    for place in sorted(plain.seconds)[-full:] if full else []:
        if time.perf_counter() + 4 * traced.seconds[place] > deadline:
            print(f"no longer traces of batch {place + 1}: no time", flush=True)
            continue
        ids, mask = pad(groups[place], model.device)
        once.run(place, lambda ids=ids, mask=mask: look(ids, mask, depth, ONE_PASS))
        found = twice.run(place, lambda ids=ids, mask=mask: look(ids, mask, depth, TWO_PASSES))
        with tempfile.TemporaryDirectory() as folder:
            writing.run(place, lambda found=found, folder=folder: write(found, Path(folder)))
            sizes = [path.stat().st_size for path in Path(folder).iterdir()]
        report("P13 bytes kept per example", {
            "target": "<= 5e6", "examples": len(sizes), "tokens": ids.shape[1], "steps": depth,
            "mean": sum(sizes) / len(sizes), "largest": max(sizes),
        })  # fmt: skip
    return tallies


def write(found: Trace, folder: Path) -> None:
    """Writes each example into a file of its own."""
    for place, example in enumerate(found.examples()):
        save_trace(example, folder / f"{place:06d}.safetensors")


def say(tallies: dict[str, Tally], rows: Sequence[Sequence[int]], shape: dict[str, Any], batch: int) -> None:
    """Prints a row per kind of work, each beside the plain pass of the same batches."""
    plain = tallies["plain"]
    for name, tally in tallies.items():
        if not tally.seconds:
            continue
        groups = [batches(rows, batch)[place] for place in tally.seconds]
        target = {"target": f"<= {ALLOWED}"} if name == "attention" else {}
        report(f"P11 at scale: {name}", {
            **shape, "batch": batch, "examples": sum(map(len, groups)), "longest": max(len(group[0]) for group in groups),
            "tokens": sum(len(row) for group in groups for row in group),
            "seconds": tally.total, "of_plain": tally.total / tally.beside(plain), **target,
            "peak_bytes": max(tally.peaks.values()), "extra_bytes": max(peak - plain.peaks[i] for i, peak in tally.peaks.items()),
        })  # fmt: skip
    once, twice = tallies["attention and residual"], tallies["two passes"]
    if twice.seconds:
        second = twice.total - once.total
        row = {**shape, "seconds": second, "of_plain": second / twice.beside(plain)}
        report("P11 at scale: second pass alone, fixed-point distances", row)


def main() -> None:
    """Reads the command line, and prints every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", required=True, help="a .jsonl file of token rows")
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--full", type=int, default=1, help="batches on which the longer traces run too")
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--model", default="ouro-1.4b", help="a preset, with random weights")
    options = parser.parse_args()
    torch.manual_seed(0)
    device, kind = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    with torch.device(device):
        model = lw.build(options.model).to(kind)
    rows = read_rows(options.tokens, options.examples, model.config.vocab_size)
    shape = {"model": f"{options.model}, random, {str(kind).removeprefix('torch.')}", "depth": options.depth}
    tallies = scale(model, rows, depth=options.depth, batch=options.batch, full=options.full, seconds=options.seconds)
    say(tallies, rows, shape, options.batch)
    gram_sides()


if __name__ == "__main__":
    main()
