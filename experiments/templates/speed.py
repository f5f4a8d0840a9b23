"""What docs/speed.md and the README ask of the rows of benchmarks: each number is that of one row."""

from __future__ import annotations

from functools import cache
from typing import Any

from experiments.templates.rows import only, rows_of

FILES = {"cpu": "training/modulation-cpu.jsonl", "h200": "training/modulation-h200.jsonl"}
REMAT = "training/remat-h200.jsonl"
REMAT_CPU = "training/remat-own-cpu.jsonl"  # torch's checkpoint, which is `step` now, beside the `step` of before
HUGINN, ADDITION = {"model": "huginn kind, 2 layers"}, {"model": "stars kind, 1 layer", "width": 512}
CASES = {
    "documents kept apart (beside the last)": "documents apart",
    "a loss at every step, its heads counted": "every step's loss",
    "`remat: step`, what runs twice counted once": "remat: step",
    "Huginn-like, 2 + 4 × 4 + 2 layers": "Huginn-like",
    "`compile: false`": "compile: false",
    "transformers' Llama of 12 layers, compiled": "transformers' Llama, 12 layers, compiled",
}
KERNELS = {
    "forward: frozen maps (cuBLAS)": "forward frozen",
    "modulated by products": "forward present",
    "by the two kernels": "forward two i3 A early",
    "backward: frozen maps": "backward frozen",
    "modulated by products, back": "backward present",
    "by the two kernels, back": "backward two i3 F early",
}
DIRECTIONS = {"forward": "forward", "forward and back": "training"}
MAPS = ("qkv", "o", "gate_up", "down")


def decoding(rows: int, loop: str = "graph") -> dict[str, Any]:
    """Returns the row of decoding on an H200 with so many rows a batch."""
    return only("decode/fused-decode-h200.jsonl", loop=loop, rows=rows)


def mixed_depths(tokens: int) -> float:
    """Returns the engine's throughput at mixed depths over lockstep batches at the deepest, for answers of so many tokens."""
    name = "P16 throughput at depths 1 to 8 / lockstep at depth 8"
    return float(only("decode/engine-tick-h200.jsonl", benchmark=name, new_tokens=tokens)["ratio"])


def text(case: str, **more: object) -> dict[str, Any]:
    """Returns a row of training on text (P15)."""
    return only("training/train-text-h200.jsonl", benchmark=f"P15 training on text: {case}", **more)


def shipped(what: str) -> list[float]:
    """Returns a value of the five runs as recipes ship it, where they have it."""
    return [row[what] for run in (1, 2, 3, 4, 5) if what in (row := text("as recipes ship it", run=run))]


def again() -> dict[str, Any]:
    """Returns that run once more, with graphs as they are now."""
    return text("as recipes ship it", commit="67f931773f28")


def probe(case: str) -> dict[str, Any]:
    """Returns a probe of such an update."""
    return only("training/train-text-probes-h200.jsonl", case=case)


def jacobian(benchmark: str, compiled: bool, **more: object) -> float:
    """Returns the cost of the penalty beside the same without it."""
    where = {"benchmark": benchmark, "compiled": compiled, "dropout": 0.0}
    return float(only("training/jacobian-again-h200.jsonl", **where, **more)["ratio"])


def penalised_update(mode: str) -> list[float]:
    """Returns that of an update at random depth, as written and compiled."""
    return [jacobian(f"P4 STARS update / random-depth update, {mode}", compiled) for compiled in (False, True)]


def penalised_step(compiled: bool) -> list[float]:
    """Returns that of a step with the exact product, at depths 4 and 8."""
    steps = (("P1", 4), ("P2", 8))
    return [jacobian(f"{name} JSRR step / plain step, exact", compiled, depth=depth) for name, depth in steps]


def remat(what: str, **more: object) -> float:
    """Returns what a rematerialised loop takes beside a plain one on an H200."""
    return float(only(REMAT, benchmark=f"P6 {what} of step / none", **more)["ratio"])


def peak(path: str, way: str) -> float:
    """Returns its peak memory beside a plain one's at depth 64."""
    return float(only(path, benchmark=f"P7 peak bytes of {way} / none", model="2-layer core alone", depth=64)["ratio"])


def modulated(device: str, what: str, direction: str = "forward", *, compiled: bool = False) -> dict[str, Any]:
    """Returns the row of a modulated layer of width 768 over a frozen one, replayed on an H200."""
    given = {"compiled": compiled, "replayed": True} if device == "h200" else {}
    return only(FILES[device], benchmark=f"P5 modulated {what} / frozen, {direction}", width=768, **given)


def layers(what: str) -> list[list[float]]:
    """Returns a value of such layers alone and with their controller, on one CPU thread and on an H200."""
    names = {"cpu": "layer", "h200": "by kernels layer"}
    return [[modulated(device, each)[what] for each in (name, "controller")] for device, name in names.items()]


@cache
def kernel(form: str) -> list[float]:
    """Returns the microseconds of a form for each group of maps, as it was timed last."""
    found = {(row["group"], row["form"]): row["us"] for row in rows_of("training/modulation-kernels-h200.jsonl")}
    return [found[each, form] for each in MAPS]


def over_frozen(form: str) -> float:
    """Returns all of them over the frozen maps'."""
    return sum(kernel(form)) / sum(kernel(f"{form.split()[0]} frozen"))


def power() -> dict[str, Any]:
    """Returns the probe of the card's power while updates ran."""
    (found,) = (row for row in rows_of("training/train-text-probes-h200.jsonl") if row["case"].startswith("power"))
    return found


def reached() -> int:
    """Returns how many of the five runs reach the share of the peak that was the target."""
    return sum(share >= 0.5 for share in shipped("mfu"))


def missed() -> list[float]:
    """Returns how far layers by kernels are above their target, but forward as written."""
    both = [(direction, compiled) for direction in DIRECTIONS.values() for compiled in (False, True)]
    found = [modulated("h200", "by kernels layer", direction, compiled=compiled) for direction, compiled in both]
    return [row["ratio"] - float(row["target"].removeprefix("<= ")) for row in found[1:]]
