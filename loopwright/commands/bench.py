"""`loopwright bench`: how fast a model decodes, as a table, JSON and a figure."""

from __future__ import annotations

import json
from pathlib import Path

from loopwright.api import need_writable
from loopwright.checkpoints.source import Source
from loopwright.commands.console import console, open_model
from loopwright.commands.device import find_device, find_dtype
from loopwright.evaluation.by_depth import parse_depths
from loopwright.evaluation.throughput import BenchReport, throughput
from loopwright.model.presets import build
from loopwright.process import fitting_threads, say
from loopwright.storage.files import write_whole
from loopwright.storage.run import RunFolder


def bench(
    source: str,
    *,
    depths: str | None = None,
    batches: str = "1,4,16",
    prompt_tokens: int = 64,
    new_tokens: int = 32,
    device: str = "cpu",
    dtype: str = "float32",
    out: str | None = None,
) -> BenchReport:
    """Prints how fast a model decodes at depths and batch sizes, and with `out` writes numbers and figure; returns the report."""
    where, kind = find_device(device), find_dtype(dtype)
    opened, sizes = Source(source), parse_depths(batches, "batches")
    asked = parse_depths(depths) if depths else None
    if out is not None:
        RunFolder(out).check_out("bench")
        need_writable("bench", Path(out))
    if opened.is_preset:  # speed does not depend on what the weights are
        model = build(source).to(device=where, dtype=kind)  # type: ignore[call-arg]  # how transformers wraps `to`
    else:
        opened.need_weights("bench")
        model = open_model(opened, kind, where)
    config = model.config
    usual = config.check_depth(None)
    with fitting_threads(model):
        report = throughput(
            model, asked or ([1] if not config.is_looped else sorted({1, max(1, usual // 2), usual})), sizes,
            prompt_tokens=prompt_tokens, new_tokens=new_tokens, source=opened.name,
            tell=lambda line: say(f"bench: {line} …"),
        )  # fmt: skip
    printer = console()
    printer.print(report.table(printer.width))
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "bench.json", json.dumps(report.to_dict(), indent=2) + "\n")
        report.plot(folder / "bench.svg")
        for name in ("bench.json", "bench.svg"):
            printer.print(f"written: {folder / name}", markup=False, soft_wrap=True)
    return report
