"""Where golden cases lie, and small builders that several test files share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.model.keys.cache import Filled, Group
from loopwright.model.presets import PRESETS

HERE = Path(__file__).parent
LIKE_ANOTHER = {"ouro-2.6b", "retrofit-tinyllama"}  # presets that differ from another in sizes alone
# every preset as a case of a test, those behind `-m slow`
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name in LIKE_ANOTHER)) for name in PRESETS]
TINY_CASES = [pytest.param(f"{name}-tiny", marks=[pytest.mark.slow] * (name in LIKE_ANOTHER)) for name in PRESETS]
UNLIKE = {
    "ouro-1.4b",
    "huginn",
    "asura",
    "ouroboros-qwen2.5-3b",
}  # an exit gate; a random start and a coda; norms per step; a controller
ROOTS = (HERE / "golden", HERE.parent.parent / "shared" / "golden")


def some(names: Iterable[str], kept: Collection[str]) -> list[Any]:
    """Returns every name as a case; those that are not kept repeat what the kept ones say, on other numbers, behind `-m slow`."""
    names = list(names)
    assert set(kept) <= set(names)
    return [pytest.param(name, id=name, marks=[] if name in kept else pytest.mark.slow) for name in names]


SOME_TINY_CASES = some((f"{name}-tiny" for name in PRESETS), {f"{name}-tiny" for name in UNLIKE})


def golden_folders(*names: str) -> list[Path]:
    """Returns the folders of the named cases: the copies in the repository, and the originals where they are there."""
    return [root / name for root in ROOTS for name in names if (root / name).is_dir()]


def gap(a: Tensor, b: Tensor) -> float:
    """Returns the largest absolute difference."""
    assert a.shape == b.shape, f"{tuple(a.shape)} against {tuple(b.shape)}"
    return (a - b).abs().max().item() if a.numel() else 0.0


def noisy(name: str, *, seed: int = 0, std: float = 1.0, **changes: Any) -> lw.LoopedForCausalLM:
    """Returns a tiny preset whose every parameter has been moved, so that no part is without effect.

    A preset as it is is built once in a process: each caller has a copy, and finds the generator where building would leave it.
    """
    torch.manual_seed(seed)
    if changes:
        return _moved(name, std, changes)
    model, generator = _built(name, seed, std, torch.get_default_dtype(), torch.get_default_device())
    torch.set_rng_state(generator)
    return copied(model)


@cache
def _built(name: str, seed: int, std: float, *surroundings: object) -> tuple[lw.LoopedForCausalLM, Tensor]:
    return _moved(name, std, {}), torch.get_rng_state()


def _moved(name: str, std: float, changes: dict[str, Any]) -> lw.LoopedForCausalLM:
    model = lw.build(name, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * std * max(parameter.std().item() if parameter.numel() > 1 else 0.0, 0.1))
    return model


def copied(module: Any, memo: dict[int, Any] | None = None) -> Any:
    """Returns what `deepcopy` does, without the time it takes for a dozen empty collections of every module."""
    memo = {} if memo is None else memo
    memo[id(module)] = twin = module.__class__.__new__(module.__class__)
    for name, value in module.__dict__.items():
        if name == "_modules":
            value = {key: child if child is None else memo.get(id(child)) or copied(child, memo) for key, child in value.items()}
        elif isinstance(value, dict | set) and not value:
            value = type(value)()
        elif not isinstance(value, bool | int | float | str | None):
            value = deepcopy(value, memo)
        twin.__dict__[name] = value
    return twin


def plant_one_coda_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants a defect: the coda has one group of slots for all readings, and none is ever missed."""
    begin = lw.LoopCache.begin_reading
    monkeypatch.setattr(lw.LoopCache, "begin_reading", lambda self, reading: begin(self, 1))
    check = lw.LoopCache.check
    monkeypatch.setattr(lw.LoopCache, "check", lambda self, depth, readings: check(self, depth, ()))


def plant_marks_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants a defect: a step of rows at their own steps counts as a run of every row at every step."""
    ran = Filled.ran

    def all_of_them(self: Filled, group: Group, rows: list[int] | None, lengths: list[int]) -> None:
        ran(self, group, rows, lengths)
        if rows is not None:
            self.missing |= {("core", t): {} for t in range(16)}
            self._ran |= dict.fromkeys(self.missing)

    monkeypatch.setattr(Filled, "ran", all_of_them)
