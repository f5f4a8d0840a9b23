"""The check of early exits passes sound models and finds planted mistakes: copied keys, states kept wrongly."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.checking import steps as early_exit
from loopwright.generation.mixed_depth import StateHistory
from loopwright.generation.request import RequestOptions
from tests.cases import noisy
from tests.evaluation.foreign import Bare
from tests.generation.tiny import DENSE


def row(model: torch.nn.Module) -> lw.CheckRow:
    return lw.check(model, names=["early exits"]).rows[0]


def test_sound_models_pass() -> None:
    found = row(noisy("ouroboros-qwen2.5-3b-tiny"))
    assert found.passed and "same bits in 1 comparison" in found.detail


def test_copied_keys_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_exit, "RequestOptions", partial(RequestOptions, exit_keys="copy"))
    found = row(noisy("ouro-1.4b-tiny"))
    assert found.passed is False and "after" in found.detail and "difference" in found.detail


def test_states_that_are_kept_wrongly_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = StateHistory.begin

    def off(self: StateHistory, first: int, e: Tensor, s: Tensor) -> None:
        begin(self, first, 1.5 * e, s)

    monkeypatch.setattr(StateHistory, "begin", off)
    found = row(noisy("huginn-tiny"))
    assert found.passed is False and "never leaving" in found.detail


def test_where_there_is_nothing_to_leave() -> None:
    assert "not a loopwright model" in row(Bare()).detail
    dense = row(noisy("ouroboros-qwen2.5-3b-tiny", **DENSE))
    assert dense.passed is None
