"""`loopwright check`: is a model right?"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch

from loopwright.checking import conformance
from loopwright.checking.conformance import CheckReport
from loopwright.checkpoints.source import Source
from loopwright.cli.console import console, progress, table
from loopwright.cli.opening import find_device, find_dtype, open_model, tell_wait
from loopwright.model.presets import PRESETS, build
from loopwright.process import fitting_threads
from loopwright.storage.manifest import MANIFEST


def check_model(
    source: str, *, dtype: str = "float32", device: str = "cpu", seed: int = 0, full: bool = False
) -> dict[str, CheckReport]:
    """Prints the conformance table of a model or preset and returns the report, by the name of what was checked."""
    out = console()
    name, where, kind = source, find_device(device), find_dtype(dtype)
    opened = Source(source)
    if opened.is_preset:
        if not full and not source.endswith("-tiny"):
            name = f"{source}-tiny"
            out.print(f"{source} is checked in its small form, {name} (--full builds it at full size)")
        torch.manual_seed(seed)
        model = build(name).to(device=where, dtype=kind)  # type: ignore[call-arg]  # how transformers wraps `to`
    else:
        model = open_model(opened, kind, where)
    with fitting_threads(model), progress() as bar:
        tell_wait(model, None)
        task = bar.add_task("check", total=len(conformance.CHECKS))
        report = conformance.check(model, progress=lambda one: bar.update(task, advance=1, description=one))
    out.print(report.table())
    if not opened.is_preset:
        out.print(_describe_files(opened), markup=False)
    counts = _counts(report.rows)
    out.print(f"{name}: {counts[True]} passed, {counts[False]} failed, {counts[None]} not offered")
    return {name: report}


def _describe_files(source: Source) -> str:
    if source.has_manifest:
        return f"files: as {MANIFEST} says they were written (size and sha256)"
    return f"files: there is no {MANIFEST} in {source.folder}, so that nothing says whether they are as they were written"


def _counts(rows: Iterable[Any]) -> dict[bool | None, int]:
    counts: dict[bool | None, int] = {True: 0, False: 0, None: 0}
    for row in rows:
        counts[row.passed] += 1
    return counts


def check_presets() -> dict[str, CheckReport]:
    """Builds every preset small, runs the conformance checks on each and prints one table; returns the reports by preset."""
    rows = table("every preset at test size", "preset", "parameters", "passed", "failed", "not offered", "seconds")
    reports: dict[str, CheckReport] = {}
    with progress() as bar:
        task = bar.add_task("check", total=len(PRESETS) * len(conformance.CHECKS))
        for name in PRESETS:
            begin = time.perf_counter()
            torch.manual_seed(0)
            model = build(f"{name}-tiny")

            def show(one: str, name: str = name) -> None:
                bar.update(task, advance=1, description=f"{name}: {one}")

            with fitting_threads(model):
                reports[name] = conformance.check(model, progress=show)
            counts = _counts(reports[name].rows)
            size = sum(p.numel() for p in model.parameters())
            cells = [f"{size:,}", *(str(counts[kind]) for kind in (True, False, None)), f"{time.perf_counter() - begin:.1f}"]
            rows.add_row(name, *cells, style="red" if counts[False] else None)
    out = console()
    out.print(rows)
    for name, report in reports.items():
        for row in (row for row in report.rows if row.passed is False):
            out.print(f"failed: {name}: {row.name}: {row.detail}")
    return reports
