"""A summary of a tiny looped model and of a dense one, made once for the tests of figures, verdicts and pages."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from loopwright.analysis.study import Subject, study
from tests.cases import noisy

ROWS = [[1, 2, 3, 4, 5], [6, 7, 8], [9, 10, 11, 12, 13, 14]]


@cache
def looped() -> dict[str, Any]:
    """Returns the summary of 12 steps of a model with prelude, core and coda."""
    model = noisy("huginn-tiny", prelude_layers=1, core_layers=4, coda_layers=1, std=0.3)
    with TemporaryDirectory() as folder:
        return study(Subject("loop", model, ROWS), Path(folder), depth=12, batch=2)


@cache
def dense() -> dict[str, Any]:
    """Returns the summary of the same layers run once."""
    model = noisy("huginn-tiny", prelude_layers=1, core_layers=4, coda_layers=1, std=0.3).without_adapters()
    with TemporaryDirectory() as folder:
        return study(Subject("plain", model, ROWS), Path(folder))


@cache
def overflowing() -> dict[str, Any]:
    """Returns the summary of a model whose residual grows beyond what float32 holds at the third of 12 steps."""
    model = noisy("retrofit-llama-1b-tiny", std=0.3)
    with torch.no_grad():
        for block in model.core:
            block.mlp.down_proj.weight.mul_(1e18)
        for weight in model.injection.parameters():
            weight.mul_(1e10)
    with TemporaryDirectory() as folder:
        return study(Subject("grows", model, ROWS), Path(folder), depth=12, batch=2)


@cache
def bare() -> dict[str, Any]:
    """Returns the summary of a model that is a core of one layer."""
    model = noisy("huginn-tiny", prelude_layers=0, core_layers=1, coda_layers=0, std=0.3)
    with TemporaryDirectory() as folder:
        return study(Subject("bare", model, ROWS), Path(folder), depth=6, batch=2)
