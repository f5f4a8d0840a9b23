"""What is equal in which precision: tokens in float32 and float64; in bfloat16 logits to a bound, and tokens but at near-ties."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.generation.engine import Engine
from tests.cases import noisy
from tests.generation.mix import deepest

PRESETS = ["huginn", "ouro-1.4b", "asura", "ouroboros-qwen2.5-3b", "retrofit-llama-1b", "universal"]
LOGITS = 0.125  # log-probabilities of the engine and of `generate` differ by no more, in bfloat16
NEAR = 2 * LOGITS  # so that tokens differ only where the largest logits are no further apart


@dataclass
class Comparison:
    """Requests, the largest difference of a log-probability up to where tokens differ, and `generate`'s own margins there."""

    requests: int = 0
    apart: float = 0.0
    margins: list[float] = field(default_factory=list)

    def holds(self) -> bool:
        return self.apart <= LOGITS and all(margin <= NEAR for margin in self.margins)


@torch.no_grad()
def compared(names: list[str], dtype: torch.dtype, requests: int, new: int = 12) -> Comparison:
    """Compares greedy requests, served together at depths of their own, with `generate` of each alone."""
    found = Comparison()
    for name in names:
        model, draw = noisy(f"{name}-tiny", hidden_size=64).to(dtype).eval(), random.Random(name)
        known, last = model.config.vocab_size, min(4, deepest(model))
        requested = [([draw.randrange(known) for _ in range(draw.randint(1, 12))], draw.randint(1, last)) for _ in range(requests)]
        with Engine(model, max_rows=5, max_tokens=600, chunk_tokens=7) as engine:
            options: dict[str, Any] = {"max_new_tokens": new, "ignore_eos": True, "top_logprobs": known}
            handles = [engine.submit(prompt, depth=depth, **options) for prompt, depth in requested]
            for (prompt, depth), handle in zip(requested, handles, strict=True):
                follow(found, model, prompt, depth, handle.result(600))
    return found


def follow(found: Comparison, model: lw.LoopedForCausalLM, prompt: list[int], depth: int, result: Any) -> None:
    """Counts one request, token by token up to the first that differs."""
    ids = torch.tensor([prompt])
    made: Any = model.generate(
        ids, attention_mask=torch.ones_like(ids), depth=depth, max_new_tokens=len(result.tokens), do_sample=False,
        eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    found.requests += 1
    theirs = made.sequences[0, len(prompt) :].tolist()
    for own, token, ranked, logits in zip(result.tokens, theirs, result.top_logprobs, made.logits, strict=True):
        scores = logits[0].double().log_softmax(-1)
        places, values = zip(*ranked, strict=True)
        found.apart = max(found.apart, float((scores[list(places)] - torch.tensor(values, dtype=torch.double)).abs().max()))
        if own != token:
            found.margins.append(float(scores[token] - scores[own]))
            return  # what follows another token is another text


@pytest.fixture(autouse=True)
def usual_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The products of bfloat16 that people have on a CPU, whose rounding depends on the batch; the other tests do without."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)


@pytest.mark.long
def test_a_few_requests_in_bfloat16() -> None:
    found = compared(["huginn"], torch.bfloat16, 6, new=6)
    assert found.requests == 6 and found.holds(), found


@pytest.mark.slow
def test_bfloat16_differs_at_near_ties_alone() -> None:
    found = compared(PRESETS, torch.bfloat16, 40)
    print(f"{len(found.margins)} of {found.requests} requests differ, margins {found.margins}, logits by {found.apart}")
    assert found.requests == 240 and found.holds(), found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_are_equal_in_wider_precision(dtype: torch.dtype) -> None:
    found = compared(PRESETS, dtype, 40)
    print(f"{len(found.margins)} of {found.requests} requests differ, logits by {found.apart}")
    assert (found.requests, found.margins) == (240, []), found


def test_a_token_that_is_no_near_tie_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def second(logits: torch.Tensor, *args: Any) -> torch.Tensor:
        return logits.topk(10).indices[:, -1]

    monkeypatch.setattr("loopwright.generation.scheduler.sample", second)
    found = compared(["relaxed"], torch.bfloat16, 3, new=2)
    assert len(found.margins) == 3 and found.apart <= LOGITS and not found.holds()
