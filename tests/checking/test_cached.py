"""Planted mistakes of a cache over steps: a coda that all steps share, steps that count as run, depths that meet."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import loopwright as lw
from tests.cases import noisy, plant_marks_of_every_step, plant_one_coda_slot
from tests.evaluation.foreign import Bare, Foreign

ROWS = ("steps on a cache", "depth on a cache")


def rows(model: nn.Module) -> dict[str, lw.CheckRow]:
    return {row.name: row for row in lw.check(model, names=ROWS).rows}


def built(name: str, **changes: Any) -> lw.LoopedForCausalLM:
    torch.manual_seed(0)
    return lw.build(name, **changes)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (built, "huginn-tiny"),
        pytest.param(built, "retrofit-tinyllama-tiny", marks=pytest.mark.slow),
        (noisy, "ouroboros-qwen2.5-3b-tiny"),
    ],
)
def test_a_coda_slot_that_all_steps_share_fails(make: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(row.passed for row in rows(make(name)).values())
    plant_one_coda_slot(monkeypatch)
    found = rows(make(name))
    assert [found[row].passed for row in ROWS] == [False, False]
    assert found["steps on a cache"].detail.startswith("step 0: difference")
    assert "depth 3, then 1: difference" in found["depth on a cache"].detail


def test_select_rules_that_share_a_coda_slot_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_one_coda_slot(monkeypatch)
    detail = rows(noisy("ouro-1.4b-tiny", coda_layers=1, depth=2))["steps on a cache"].detail
    assert "step 0: difference" in detail and "select=" in detail


@pytest.mark.long
def test_a_step_that_marks_every_slot_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_marks_of_every_step(monkeypatch)
    for name in ("ouro-1.4b-tiny", "asura-tiny"):
        row = rows(built(name))["depth on a cache"]
        assert row.passed is False and "a token at step 0 by one index per row, then depth 2" in row.detail


def test_a_cache_that_refuses_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lw.LoopCache, "_refuse_missing", lambda *args: None)
    row = rows(built("ouro-1.4b-tiny"))["depth on a cache"]
    assert row.passed is False and "depth 1, then 2: difference" in row.detail


@pytest.mark.long
def test_what_a_sound_model_says() -> None:
    assert rows(built("ouro-1.4b-tiny"))["depth on a cache"].detail.endswith("of 6 changes of depth 3 exact, 3 refused")
    assert rows(built("huginn-tiny"))["depth on a cache"].detail.endswith("of 6 changes of depth 1 exact, 5 refused")
    assert rows(built("relaxed-tiny"))["depth on a cache"].detail.endswith("of 3 changes of depth 1 exact, 2 refused")


class Reading(nn.Module):
    """Somebody's looped model with a coda: a running mean of what is read out, cached under a key of `slot`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(19, 8), nn.Linear(8, 19)
        self.config = SimpleNamespace(vocab_size=19)

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: dict | None = None,
        use_cache: bool = False,
        depth: int = 3,
        output_steps: bool = False,
    ) -> SimpleNamespace:
        cache = dict(past_key_values or {})
        past = cache.get("length", 0)
        s, steps = self.table(input_ids), []
        for t in range(depth):
            s = torch.tanh(1.5 * s + 0.1 * t)
            if output_steps or t == depth - 1:
                steps.append(self.head(self.coda(s, cache, self.slot(t), past)))
        cache["length"] = past + input_ids.shape[1]
        return SimpleNamespace(logits=steps[-1], step_logits=self.kept(steps, output_steps), past_key_values=cache)

    def coda(self, s: Tensor, cache: dict, slot: int, past: int) -> Tensor:
        count, carried = cache.get(slot, (0, torch.zeros_like(s[:, 0])))
        if self.strict() and count != past:
            raise RuntimeError("missing")
        total = s.cumsum(1) + carried[:, None]
        cache[slot] = (past + s.shape[1], total[:, -1])
        return s + total / torch.arange(past + 1, past + s.shape[1] + 1)[:, None]

    def slot(self, t: int) -> int:
        return t

    def strict(self) -> bool:
        return True

    def kept(self, steps: list[Tensor], output_steps: bool) -> list[Tensor] | None:
        return steps if output_steps else None


def test_a_foreign_model_with_a_coda_slot_per_step_passes() -> None:
    found = rows(Reading())
    assert [found[row].passed for row in ROWS] == [True, True], found
    assert "of 4 changes of depth 0 exact, 4 refused" in found["depth on a cache"].detail


def test_a_foreign_model_whose_steps_share_a_coda_slot_fails() -> None:
    class OneSlot(Reading):
        def slot(self, t: int) -> int:
            return 0

        def strict(self) -> bool:
            return False

    found = rows(OneSlot())
    assert [found[row].passed for row in ROWS] == [False, False]


class Silent(Reading):
    """Its output_steps does nothing."""

    def kept(self, steps: list[Tensor], output_steps: bool) -> None:
        return None


def test_what_is_not_offered_says_why() -> None:
    found = rows(Foreign())
    assert found["steps on a cache"].passed is None and "forward has no output_steps" in found["steps on a cache"].detail
    assert found["depth on a cache"].passed and "2 exact, 2 refused" in found["depth on a cache"].detail
    assert all(row.passed is None and "forward has no past_key_values" in row.detail for row in rows(Bare()).values())
    assert "returned no step_logits" in rows(Silent())["steps on a cache"].detail
    dense = built("ouro-1.4b-tiny").without_adapters()
    assert all(row.passed is None and "no core" in row.detail for row in rows(dense).values())
