"""Planted mistakes over tokens: each must be found by the check that names it; a likelihood needs causality."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor

import loopwright as lw
import loopwright.model.backbone
from loopwright.checking.conformance import CHECKS
from loopwright.checking.probes import Verdict
from loopwright.evaluation import likelihood as module
from loopwright.evaluation.likelihood import causality_of, need_likelihood
from tests.cases import noisy
from tests.evaluation.foreign import Foreign
from tests.leaks import LEAKS, leaking


def failures(model: torch.nn.Module, *names: str) -> set[str]:
    return set(lw.check(model, names=names or None).failed)


def detail(model: torch.nn.Module, name: str) -> str:
    return next(row.detail for row in lw.check(model, names=[name]).rows)


def test_the_sound_foreign_model_passes() -> None:
    report = lw.check(Foreign())
    assert report.ok, str(report)
    offered = {row.name for row in report.rows if row.passed}
    assert {"cached = uncached", "chunked prefill", "left padding", "right padding", "depth honesty", "label alignment"} <= offered


def test_pooling_over_the_whole_sequence_fails_causality() -> None:
    class Leaky(Foreign):
        def pooled(self, s: Tensor) -> Tensor:
            return 0.01 * s.mean(1, keepdim=True)

    report = lw.check(Leaky())
    assert "causality" in report.failed
    assert "evaluation mode, tokens from" in next(row.detail for row in report.rows if row.name == "causality")


def test_a_leak_in_training_mode_alone_fails_causality() -> None:
    class Leaky(Foreign):
        def pooled(self, s: Tensor) -> Tensor:
            return s.mean(1, keepdim=True) * 0.01 if self.training else torch.zeros_like(s)

    report = lw.check(Leaky())
    assert report.failed == ("causality",)
    assert "training mode" in next(row.detail for row in report.rows if row.name == "causality")


def test_a_leak_through_the_length_alone_fails_causality() -> None:
    class Leaky(Foreign):
        def pooled(self, s: Tensor) -> Tensor:
            return torch.full_like(s, 0.01 * s.shape[1]) * torch.arange(s.shape[-1])

    report = lw.check(Leaky())
    assert "causality" in report.failed and "tokens alone" in detail(Leaky(), "causality")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:controller")
@pytest.mark.parametrize("heads", [0.05, pytest.param(0.0, marks=pytest.mark.slow)])
def test_the_paper_s_controller_pooling_fails_causality(heads: float) -> None:
    """Zero heads have no effect yet, but will: the check wakes them."""
    torch.manual_seed(0)
    spec = {"kind": "controller", "rank": 4, "style": 8, "pooling": "sequence", "leak_future": True}
    model = lw.build("ouroboros-qwen2.5-3b-tiny", adapters=[spec])
    torch.nn.init.normal_(model.adapters[0].heads, std=heads)
    report = lw.check(model)
    assert "causality" in report.failed
    assert "left padding" not in report.failed and "label alignment" not in report.failed


def test_a_model_that_never_reads_its_ids_fails_causality() -> None:
    torch.manual_seed(0)
    model = lw.build("ouro-1.4b-tiny", state={"kind": "zero"}, adapters=[{"kind": "sinusoidal"}])  # and nothing injected
    assert "never reach the logits" in detail(model, "causality")


def test_dropout_in_training_mode_is_no_leak() -> None:
    class Dropping(Foreign):
        def start(self, x: Tensor) -> Tensor:
            return torch.nn.functional.dropout(x, 0.5, self.training)

    assert failures(Dropping()) == set()


def test_an_ignored_attention_mask_fails_left_padding() -> None:
    class Blind(Foreign):
        def seen(self, attention_mask: Tensor | None) -> None:
            return None

    assert failures(Blind()) == {"left padding"}  # pads on the right are hidden by causality alone


def test_an_ignored_attention_mask_in_our_own_model_fails_left_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    place = loopwright.model.backbone.place_tokens

    def blind(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        return place(*args, **kwargs)

    monkeypatch.setattr(loopwright.model.backbone, "place_tokens", blind)
    torch.manual_seed(0)
    assert failures(lw.build("ouro-1.4b-tiny"), "left padding")


def test_a_mask_that_reaches_backwards_fails_right_padding() -> None:
    class Shifted(Foreign):
        def seen(self, attention_mask: Tensor | None) -> Tensor | None:
            return None if attention_mask is None else attention_mask.roll(-2, 1)

    assert failures(Shifted(), "right padding")


def test_a_cache_with_one_slot_for_all_steps_fails() -> None:
    class OneSlot(Foreign):
        def slot(self, t: int) -> int:
            return 0

    assert failures(OneSlot()) == {"cached = uncached", "chunked prefill", "depth on a cache"}


@pytest.mark.parametrize(
    "name", ["huginn-tiny", *(pytest.param(more, marks=pytest.mark.slow) for more in ("ouro-1.4b-tiny", "asura-tiny"))]
)
def test_our_cache_with_one_slot_for_all_steps_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    start = lw.LoopCache.__init__

    @wraps(start)
    def last(self: lw.LoopCache, config: lw.LoopedConfig, **kwargs: Any) -> None:
        start(self, config, **{**kwargs, "policy": "last"})

    monkeypatch.setattr(lw.LoopCache, "__init__", last)
    torch.manual_seed(0)
    assert len(failures(lw.build(name), "cached = uncached", "chunked prefill")) == 2


def test_a_controller_that_forgets_its_cached_sums_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lw.LoopCache, "carried_sum", lambda *args: None)
    assert len(failures(noisy("ouroboros-qwen2.5-3b-tiny"), "cached = uncached", "chunked prefill")) == 2


def test_chunks_that_see_their_own_future_fail_chunked_prefill_alone() -> None:
    class Chunky(Foreign):
        def attend(self, s: Tensor, visible: Tensor, cache: dict, held: dict, slot: int) -> Tensor:
            return super().attend(s, torch.ones_like(visible) if cache else visible, cache, held, slot)

    assert failures(Chunky()) == {"chunked prefill"}


def test_a_row_that_reads_its_batch_mates_fails_batch_invariance() -> None:
    class Mixing(Foreign):
        def pooled(self, s: Tensor) -> Tensor:
            return 0.01 * s.mean(0, keepdim=True)

    assert failures(Mixing(), "batch invariance")


@pytest.mark.long
def test_generation_that_loses_the_mask_fails_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Careless(lw.LoopedForCausalLM):
        def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
            inputs = super().prepare_inputs_for_generation(input_ids, **kwargs)
            inputs.pop("attention_mask", None)
            inputs.pop("position_ids", None)  # which tell padding, too: no position rises there
            return inputs

    torch.manual_seed(0)
    model = Careless(lw.preset("ouro-1.4b-tiny", initializer_range=0.3)).eval()
    assert failures(model) == {"generation"}
    assert "generate says" in detail(model, "generation")


def test_infinite_logits_fail_and_say_so() -> None:
    model = Foreign()
    with torch.no_grad():
        model.head.bias[3] = torch.inf
    row = lw.check(model).rows[0]
    assert row.name == "finite logits" and row.passed is False and "28 of 644" in row.detail


def test_every_check_states_its_equality() -> None:
    assert all(one.__doc__ and one.__doc__.strip().endswith(".") for one in CHECKS.values())


def test_a_leak_that_has_not_been_trained_yet_is_refused_too() -> None:
    """Its heads are zero, so that nothing leaks so far; what it would learn is no likelihood all the same."""
    spec = {"kind": "controller", "rank": 4, "style": 8, "pooling": "sequence", "leak_future": True}
    with pytest.warns(UserWarning, match="leaks future"):
        fresh = lw.build("ouroboros-qwen2.5-3b-tiny", adapters=[spec])
    with pytest.raises(ValueError, match="not causal"):
        need_likelihood(fresh)


@pytest.mark.filterwarnings("ignore:controller. pooling")
@pytest.mark.parametrize("name", LEAKS)
def test_each_way_to_see_the_future_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = leaking(name, monkeypatch)
    assert causality_of(model).passed is False
    with pytest.raises(ValueError, match="evaluate: mine is not causal"):
        need_likelihood(model, "mine")


def test_a_model_that_makes_no_numbers_is_not_called_a_leak() -> None:
    model = noisy("universal-tiny")
    with torch.no_grad():
        [*model.core.parameters()][-1].view(-1)[0] = float("nan")  # past attention, which hides NaN scores on some processors
    for marked in (False, True):
        with pytest.raises(
            ValueError, match=r"evaluate: the model has no loss, since its logits are not finite \(\d+ of \d+ logits"
        ):
            need_likelihood(model, marked=marked)


def test_a_verdict_that_is_known_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, failed = noisy("universal-tiny"), Verdict(False, "token 3 moved")
    monkeypatch.setattr(module, "check", lambda *a, **k: pytest.fail("asked"))
    assert need_likelihood(model, known=Verdict(True, "")).passed
    with pytest.raises(ValueError, match=r"evaluate: mine is not causal, .* \(token 3 moved\); allowed: a text"):
        need_likelihood(model, "mine", known=failed)
    assert need_likelihood(model, known=failed, marked=True) is failed
