"""A flat batch over another engine's pages = each request alone by `generate`, at any depth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import loopwright as lw
from loopwright.vllm import pages
from loopwright.vllm.pages import flat_features, slot_names, sum_names
from tests.cases import SOME_TINY_CASES, noisy
from tests.vllm.paged import Attention, decode

PROMPTS = [[5], [1, 2, 3, 4, 5], [7, 0, 7, 2, 9, 4, 1, 0, 3]]


def slots_of(model: lw.LoopedForCausalLM, depth: int) -> dict[str, Attention]:
    config = model.config
    names = [*slot_names(config, depth), *sum_names(model, depth)]
    sizes = {"num_kv_heads": config.num_key_value_heads, "per_layer_sliding_window": config.sliding_window}
    return {n: Attention(config.num_attention_heads, config.head_dim, 1.0, prefix=n, **sizes) for n in names}


@torch.no_grad()
def by_pages(model: lw.LoopedForCausalLM, prompts: list[list[int]], depths: list[int] | None, **options: Any) -> list[list[int]]:
    depth = max(depths) if depths else model.config.check_depth(None)
    slots = slots_of(model, depth)

    def forward(ids: Tensor, positions: Tensor, owners: list[int]) -> Tensor:
        Attention.batch = [str(owner) for owner in owners]
        each = None if depths is None else torch.tensor([depths[owner] for owner in owners])
        return model.lm_head(flat_features(model, slots, model.token_vectors(ids), positions, depth=depth, depths=each))

    return decode(forward, prompts, 4, **options)


def alone(model: lw.LoopedForCausalLM, prompt: list[int], depth: int | None = None) -> list[int]:
    ids = torch.tensor([prompt])
    options: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    return model.generate(ids, depth=depth, eos_token_id=None, **options)[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", SOME_TINY_CASES)
def test_requests_in_pages_equal_generate(name: str) -> None:
    model = noisy(name, read_out="last").double().eval()
    prompts = [[token % model.config.vocab_size for token in prompt] for prompt in PROMPTS]
    assert by_pages(model, prompts, None) == [alone(model, prompt) for prompt in prompts]


@pytest.mark.parametrize("name", ["huginn-tiny", "ouroboros-qwen2.5-3b-tiny"])
def test_each_request_at_its_own_depth(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = noisy(name, read_out="last").double().eval()
    depths = [1, 4, 2]
    expected = [alone(model, prompt, depth) for prompt, depth in zip(PROMPTS, depths, strict=True)]
    assert by_pages(model, PROMPTS, depths) == expected
    # a state that goes on after its depth is another answer, so the comparison can fail
    monkeypatch.setattr(pages.torch, "where", lambda condition, after, s: after)
    assert by_pages(model, PROMPTS, depths) != expected


@pytest.mark.slow
@settings(max_examples=5)
@given(chunks=st.lists(st.integers(1, 6), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_however_prompts_are_cut(chunks: list[int], seed: int) -> None:
    model = noisy("ouroboros-qwen2.5-3b-tiny", seed=seed, depth=2).double().eval()
    assert by_pages(model, PROMPTS, None, chunks=chunks) == [alone(model, prompt) for prompt in PROMPTS]


def test_sums_wider_than_a_page_take_several() -> None:
    wide = {"adapters": [{"kind": "controller", "rank": 4, "style": 40}], "head_dim": 8, "depth": 2}
    model = noisy("ouroboros-qwen2.5-3b-tiny", **wide).double().eval()
    assert len(list(sum_names(model, 2))) == 2 * 5  # 80 numbers, 16 to a page of 2 heads
    assert by_pages(model, PROMPTS, None) == [alone(model, prompt) for prompt in PROMPTS]


def test_names_of_slots() -> None:
    config = lw.preset("huginn-tiny")
    assert len(list(slot_names(config, 3))) == len(set(slot_names(config, 3))) == 2 + 3 * 2 + 2
