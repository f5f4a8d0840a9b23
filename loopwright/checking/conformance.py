"""The conformance suite: is a model's cache, mask, causality, depth, loss and file what it should be?

`check` works on any loopwright model and on any module that takes input ids and returns logits. Each check states one
equality (its docstring); a check that does not apply says why. The model comes back as it was.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy
import torch
from torch import nn
from transformers.utils import logging

from loopwright.checking.probes import NotOfferedError, Probe, Verdict
from loopwright.checking.saved import gradients, label_alignment, save_and_load, state_between_calls
from loopwright.checking.steps import (
    depth_honesty,
    depth_on_a_cache,
    early_exits,
    initial_state,
    last_step,
    one_sweep,
    steps_on_a_cache,
    tap,
)
from loopwright.checking.tokens import (
    batch_invariance,
    cached,
    causality,
    chunked_prefill,
    finite_logits,
    generation,
    left_padding,
    right_padding,
)
from loopwright.plot import Shown
from loopwright.schema import refuse_unknown

if TYPE_CHECKING:
    from rich.table import Table

WAKING_STD = 0.05


@dataclass(frozen=True)
class CheckRow:
    """The outcome of one check; `passed` is None where the check does not apply, and `detail` says why."""

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True)
class CheckReport(Shown):
    """The outcome of all checks of one model."""

    rows: tuple[CheckRow, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(row.passed is not False for row in self.rows)

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(row.name for row in self.rows if row.passed is False)

    def table(self) -> Table:
        """Returns the rows as a rich table."""
        from rich.table import Table
        from rich.text import Text

        table = Table("check", "result", "detail")
        for row in self.rows:
            word, style = _WORDS[row.passed]
            table.add_row(row.name, Text(word, style), Text(row.detail.removeprefix("not offered: ")))
        return table

    def __repr__(self) -> str:
        """How many passed; `table` and `str` show each."""
        counts = ", ".join(f"{sum(row.passed is key for row in self.rows)} {word.lower()}" for key, (word, _) in _WORDS.items())
        return f"CheckReport({counts}{': ' * bool(self.failed)}{', '.join(self.failed)})"

    def __str__(self) -> str:
        lines = ((row.name, _WORDS[row.passed][0], row.detail.removeprefix("not offered: ")) for row in self.rows)
        return "\n".join(f"{name:<20} {word:<12} {detail}" for name, word, detail in lines)


_WORDS: dict[bool | None, tuple[str, str]] = {
    True: ("passed", "green"),
    False: ("FAILED", "bold red"),
    None: ("not offered", "dim"),
}


def check(
    model: nn.Module,
    vocab_size: int | None = None,
    *,
    names: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> CheckReport:
    """Runs the checks on a model and returns a report; the model itself is not changed.

    Parameters that are mostly zero get small values while the checks run: parts that start without effect (adapters, gates) would
    otherwise not be tested at all.

    Args:
        model: a loopwright model, or any module that takes input ids and returns logits.
        vocab_size: the number of ids, if neither the config nor the input embedding says it.
        names: the checks to run; default: all.
        progress: called with the name of each check before it runs.
    """
    refuse_unknown("check", names or (), CHECKS)
    probe = Probe(model, vocab_size)
    rows = []
    with ExitStack() as stack:
        for context in (_quiet(), _whole_products(), _unchanged(model), torch.no_grad()):
            stack.enter_context(context)
        model.eval()
        woken = stack.enter_context(_awake(model))
        _first_call(probe)
        for name in CHECKS if names is None else names:
            if progress is not None:
                progress(name)
            verdict = _confirmed(CHECKS[name], probe)
            rows.append(CheckRow(name, verdict.passed, verdict.detail))
    if woken:
        note = f"; {woken} all-zero parameters (or mostly) held small values while checking"
        rows[0] = CheckRow(rows[0].name, rows[0].passed, rows[0].detail + note)
    return CheckReport(tuple(rows))


def _confirmed(one: Callable[[Probe], Verdict], probe: Probe) -> Verdict:
    """Returns what a check finds; what fails in float32 by rounding alone is asked again in float64.

    A loop can amplify rounding without bound, so no tolerance of float32 tells a chaotic model from a wrong one. A wrong one
    is wrong in float64 too; rounding shrinks with the precision.
    """
    verdict = _run(one, probe)
    if not verdict.by_rounding or probe.dtype != torch.float32:
        return verdict
    try:
        wide = Probe(copy.deepcopy(probe.model).double(), probe.vocab_size)
    except Exception:  # others' modules may not be copied or cast: then the float32 numbers stand
        return verdict
    again = _run(one, wide)
    if not again.passed:
        return verdict
    return Verdict(True, f"{again.detail}; in float32 rounding grows to {verdict.detail}")


def _run(one: Callable[[Probe], Verdict], probe: Probe) -> Verdict:
    try:
        return one(probe)
    except NotOfferedError as absent:
        return Verdict(None, f"not offered: {absent}")
    except Exception as error:  # what others' code raises is a finding about it
        lines = str(error).strip().splitlines() or [""]
        return Verdict(False, f"raised {type(error).__name__}: {lines[0]}")


def _first_call(probe: Probe) -> None:
    """Calls the model once, so that one that cannot be called at all is an error and not a table of failures."""
    ids = probe.ids(2)
    try:
        probe.logits(ids)
    except Exception as error:
        if str(error).startswith("check: "):
            raise
        raise ValueError(
            f"check: the model fails on ids of shape {tuple(ids.shape)} below {probe.vocab_size} "
            f"({type(error).__name__}: {error}); allowed: a module that takes input ids and returns logits"
        ) from error


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Puts back what a check or the model itself may change: modes, buffers, config and random states."""
    modes = {module: module.training for module in model.modules()}
    buffers = [(module, name, b, b.clone()) for module in modes for name, b in module._buffers.items() if b is not None]
    config = getattr(model, "config", None)
    fields = getattr(config, "__dict__", {})
    settings = dict(fields)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer.copy_(value)
        fields.clear()
        fields.update(settings)


@contextmanager
def _awake(model: nn.Module) -> Iterator[int]:
    """Gives the zeros of parameters that are mostly zero small values for a while; yields how many such parameters there were."""
    generator = torch.Generator().manual_seed(0)
    trained = [p for p in model.parameters() if p.requires_grad and p.is_floating_point()]
    # mostly: an injection that starts as the input alone is an identity beside zeros
    zero = [(p, p.detach().clone()) for p in trained if 2 * int(p.count_nonzero()) < p.numel()]
    try:
        with torch.no_grad():
            for parameter, value in zero:
                small = (torch.randn(parameter.shape, generator=generator) * WAKING_STD).to(value)
                parameter.copy_(torch.where(value == 0, small, value))
        yield len(zero)
    finally:
        with torch.no_grad():
            for parameter, value in zero:
                parameter.copy_(value)


@contextmanager
def _whole_products() -> Iterator[None]:
    """Lets float32 products be whole for a while: a training in bf16 leaves them as TF32, whose rounding no tolerance knows."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps transformers from writing to the terminal."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


CHECKS: dict[str, Callable[[Probe], Verdict]] = {
    "finite logits": finite_logits,
    "state between calls": state_between_calls,
    "initial state": initial_state,
    "batch invariance": batch_invariance,
    "causality": causality,
    "left padding": left_padding,
    "right padding": right_padding,
    "cached = uncached": cached,
    "chunked prefill": chunked_prefill,
    "steps on a cache": steps_on_a_cache,
    "depth on a cache": depth_on_a_cache,
    "generation": generation,
    "early exits": early_exits,
    "label alignment": label_alignment,
    "gradients": gradients,
    "depth honesty": depth_honesty,
    "last step answers": last_step,
    "one sweep": one_sweep,
    "tap on = tap off": tap,
    "save and load": save_and_load,
}
