"""How a model is called, and how its answers are compared: all the forms that are allowed, and how a failure is said."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

import loopwright as lw
from loopwright.checking.probes import (
    RELATIVE_TOLERANCES,
    NotOfferedError,
    Probe,
    Tally,
    find_cache,
    find_logits,
    find_loss,
    largest_difference,
    same_bits,
)
from tests.evaluation.foreign import Bare, Foreign

LOGITS = torch.zeros(2, 3, 5)


def test_the_vocabulary_comes_from_the_config_then_from_the_embedding() -> None:
    assert Probe(Foreign(vocabulary=31)).vocab_size == 31
    assert Probe(Bare(vocabulary=17)).vocab_size == 17
    assert Probe(Bare(vocabulary=17), 11).vocab_size == 11
    nested = Bare()
    nested.config = SimpleNamespace(text_config=SimpleNamespace(vocab_size=13))
    assert Probe(nested).vocab_size == 13


def test_an_unknown_vocabulary_is_asked_for() -> None:
    model = Bare()
    model.other = nn.Embedding(4, 4)
    with pytest.raises(ValueError, match=r"vocab_size is unknown .*2 embeddings.* give check\(model, vocab_size=…\)"):
        Probe(model)
    assert Probe(model, 19).vocab_size == 19
    with pytest.raises(ValueError, match="vocab_size 1; allowed: at least 2"):
        Probe(model, 1)


def test_ids_avoid_special_tokens_and_repeat_by_seed() -> None:
    model = Foreign(vocabulary=6)
    model.config.pad_token_id, model.config.eos_token_id = 0, [3, 4]
    probe = Probe(model)
    ids = probe.ids(50)
    assert set(ids.flatten().tolist()) == {1, 2, 5}
    assert torch.equal(ids, probe.ids(50)) and not torch.equal(ids, probe.ids(50, seed=1))


def test_changed_ids_are_all_other_ids_from_there_on() -> None:
    probe = Probe(Foreign(vocabulary=3))
    ids = probe.ids(20)
    new = probe.changed(ids, 5)
    assert torch.equal(new[:, :5], ids[:, :5]) and bool((new[:, 5:] != ids[:, 5:]).all()) and int(new.max()) < 3


def test_rows_fit_the_model_s_positions() -> None:
    model = Foreign()
    model.config.max_position_embeddings = 9
    assert Probe(model).length == 9
    model.config.max_position_embeddings = 4
    with pytest.raises(ValueError, match="takes 4 tokens; allowed: at least 8"):
        Probe(model)


@pytest.mark.parametrize(
    "output",
    [
        LOGITS,
        (LOGITS, torch.tensor(1.0)),
        (torch.tensor(1.0), LOGITS),
        [LOGITS],
        {"logits": LOGITS},
        SimpleNamespace(logits=LOGITS),
        CausalLMOutputWithPast(logits=LOGITS),
    ],
)
def test_logits_are_found_in_every_allowed_form(output: Any) -> None:
    assert find_logits(output) is LOGITS


def test_loss_and_cache_are_found() -> None:
    loss, cache = torch.tensor(2.0), {"k": 1}
    assert find_loss((loss, LOGITS)) is loss and find_loss(LOGITS) is None and find_loss({"loss": loss}) is loss
    assert find_cache((LOGITS, None, cache)) is cache and find_cache(LOGITS) is None
    assert find_cache(SimpleNamespace(past_key_values=cache)) is cache and find_cache(SimpleNamespace()) is None


def broken(output: Any) -> nn.Module:
    class Broken(Bare):
        def forward(self, idx: Tensor) -> Any:
            return output(super().forward(idx))

    return Broken()


@pytest.mark.parametrize(
    ("output", "error", "words"),
    [
        (lambda logits: None, TypeError, "forward returned NoneType without logits; allowed: a tensor"),
        (lambda logits: "text", TypeError, "forward returned str"),
        (lambda logits: {"hidden": logits}, TypeError, "forward returned dict without logits"),
        (lambda logits: logits[:, -1], ValueError, r"logits have shape \(2, 19\) for ids \(2, 14\)"),
        (lambda logits: logits[:, 1:], ValueError, r"logits have shape \(2, 13, 19\)"),
        (lambda logits: logits.argmax(-1, keepdim=True), TypeError, "logits are torch.int64; allowed: floating point"),
        (lambda logits: 1 / 0, ValueError, r"the model fails on ids of shape \(2, 14\) below 19 \(ZeroDivisionError"),
    ],
)
def test_a_broken_output_is_an_error_not_a_table(output: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"^check: .*{words}"):
        lw.check(broken(output))


def test_a_model_that_needs_more_than_ids_is_refused() -> None:
    class Demanding(Bare):
        def forward(self, idx: Tensor, image: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(idx)

    with pytest.raises(ValueError, match="forward needs image; allowed: input ids"):
        lw.check(Demanding())


def test_a_mask_that_has_no_default_is_given() -> None:
    class Masked(Foreign):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(input_ids, attention_mask).logits

    probe = Probe(Masked())
    assert probe.logits(probe.ids(2)).shape == (2, 14, 23)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"str is not a model; allowed: a torch\.nn\.Module"):
        lw.check("folder")  # type: ignore[arg-type]
    with torch.device("meta"), pytest.raises(ValueError, match="on the meta device"):
        lw.check(Bare())


def test_need_says_what_is_absent() -> None:
    with pytest.raises(NotOfferedError, match="forward has no labels"):
        Probe(Bare()).need("labels")


def test_calls_are_seeded_unless_asked_not_to() -> None:
    class Random(Foreign):
        def start(self, x: Tensor) -> Tensor:
            return torch.randn_like(x)

    probe = Probe(Random())
    ids = probe.ids(2)
    assert torch.equal(probe.logits(ids), probe.logits(ids))
    assert not torch.equal(probe.call_unseeded(ids).logits, probe.call_unseeded(ids).logits)


def test_the_coarsest_dtype_sets_the_tolerance() -> None:
    model = Foreign()
    model.head.bfloat16()
    assert Probe(model).dtype == torch.bfloat16


def test_close_is_relative_to_the_largest_logit() -> None:
    want = torch.zeros(1, 2, 3)
    want[0, 0, 0] = 100.0
    allowed = 100 * RELATIVE_TOLERANCES[torch.float32]
    for share, passed in ((0.9, True), (1.2, False)):
        tally = Tally(torch.float32)
        tally.close("here", want + allowed * share, want)
        assert tally.verdict().passed is passed


def test_a_failure_says_where_and_how_much() -> None:
    want = torch.ones(2, 5, 3)
    got = want.clone()
    got[1, 4, 2] += 0.5
    tally = Tally(torch.float32)
    tally.close("cached", got, want)
    verdict = tally.verdict()
    assert verdict.passed is False
    assert verdict.detail == "cached: difference 5.0e-01 above tolerance 3.0e-05 (row 1, position 4)"


def test_many_failures_are_cut_short() -> None:
    tally = Tally(torch.float32)
    for n in range(5):
        tally.hold(f"number {n}", False)
    assert tally.verdict().detail == "number 0; number 1; and 3 more"


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_never_close(bad: float) -> None:
    want = torch.ones(1, 2, 3)
    for pair in ((want * bad, want), (want, want * bad), (want * bad, want * bad)):
        tally = Tally(torch.float32)
        tally.close("here", *pair)
        assert tally.verdict().passed is False


def test_same_and_differ_look_at_bits() -> None:
    one = torch.ones(1, 2, 3)
    near = one + 2**-23
    for tell, passed in ((Tally.same, False), (Tally.differ, True)):
        tally = Tally(torch.float32)
        tell(tally, "here", near, one)
        assert tally.verdict().passed is passed
    assert same_bits(one, one.clone()) and not same_bits(one, one[:, :1])


def test_other_shapes_are_infinitely_far() -> None:
    assert largest_difference(torch.ones(1, 2, 3), torch.ones(1, 3, 3))[0] == float("inf")
    assert largest_difference(torch.ones(1, 0, 3), torch.ones(1, 0, 3)) == (0.0, "")


def test_coarse_dtypes_are_allowed_more() -> None:
    assert sorted(RELATIVE_TOLERANCES, key=RELATIVE_TOLERANCES.__getitem__) == [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ]
    assert Tally(torch.float8_e4m3fn).relative == RELATIVE_TOLERANCES[torch.bfloat16]


def test_rounding_may_add_up_over_many_layers() -> None:
    assert Tally(torch.bfloat16, 96).relative == 2 * Tally(torch.bfloat16, 24).relative == 2 * Tally(torch.bfloat16, 3).relative


def test_a_failure_by_differences_alone_may_be_rounding() -> None:
    want = torch.ones(1, 2, 3)
    near = Tally(torch.float32)
    near.close("here", want + 1e-2, want)
    assert near.verdict().by_rounding
    near.same("there", want + 1, want)
    assert not near.verdict().by_rounding
    lost = Tally(torch.float32)
    lost.close("here", want * torch.nan, want)
    assert not lost.verdict().by_rounding and not Tally(torch.float32).verdict().by_rounding
