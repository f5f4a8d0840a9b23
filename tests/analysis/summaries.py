"""A summary of a tiny looped model and of a dense one, made once for the tests of figures, verdicts and pages."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from loopwright.analysis.study import Subject, study
from loopwright.model.causal_lm import LoopedForCausalLM
from tests.cases import noisy

ROWS = [[1, 2, 3, 4, 5], [6, 7, 8], [9, 10, 11, 12, 13, 14]]


def summary_of(name: str, model: LoopedForCausalLM, **options: Any) -> dict[str, Any]:
    """Returns a summary with a spectrum of few products, which are most of the time of a study."""
    with TemporaryDirectory() as folder, patch("loopwright.analysis.trace.single_prompt.KRYLOV", 8):
        return study(Subject(name, model, ROWS), Path(folder), **options)


@cache
def looped() -> dict[str, Any]:
    """Returns the summary of 12 steps of a model with prelude, core and coda."""
    model = noisy("huginn-tiny", prelude_layers=1, core_layers=4, coda_layers=1, std=0.3)
    return summary_of("loop", model, depth=12, batch=2)


@cache
def dense() -> dict[str, Any]:
    """Returns the summary of the same layers run once."""
    model = noisy("huginn-tiny", prelude_layers=1, core_layers=4, coda_layers=1, std=0.3).without_adapters()
    return summary_of("plain", model)


@cache
def overflowing() -> dict[str, Any]:
    """Returns the summary of a model whose residual grows beyond what float32 holds at the third of 12 steps."""
    model = noisy("retrofit-llama-1b-tiny", std=0.3)
    with torch.no_grad():
        for block in model.core:
            block.mlp.down_proj.weight.mul_(1e18)
        for weight in model.injection.parameters():
            weight.mul_(1e10)
    return summary_of("grows", model, depth=12, batch=2)


@cache
def bare() -> dict[str, Any]:
    """Returns the summary of a model that is a core of one layer."""
    model = noisy("huginn-tiny", prelude_layers=0, core_layers=1, coda_layers=0, std=0.3)
    return summary_of("bare", model, depth=6, batch=2)
