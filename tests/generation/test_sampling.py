"""A draw is a function of (seed, request, position, token) alone, and follows the distribution that was asked for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

from loopwright.generation.sampling import Draw, HashedDraws, Sampling, TokenCounts, adjusted, gumbel, sample
from tests.cases import noisy

SAMPLINGS = st.builds(
    Sampling,
    temperature=st.none() | st.sampled_from([0, 0.3, 1.0, 2.5]),
    top_p=st.none() | st.floats(0, 1),
    top_k=st.none() | st.integers(1, 40),
    min_p=st.none() | st.floats(0, 1),
    repetition_penalty=st.none() | st.floats(0.5, 2),
    presence_penalty=st.none() | st.floats(-2, 2),
    frequency_penalty=st.none() | st.floats(-2, 2),
    logit_bias=st.none() | st.dictionaries(st.integers(0, 23), st.floats(-5, 5), max_size=3),
)


def counts_of(prompt: list[int], answer: list[int], vocab_size: int = 24) -> TokenCounts:
    counts = TokenCounts(torch.tensor(prompt), vocab_size)
    counts.add(torch.tensor(answer, dtype=torch.long))
    return counts


@pytest.mark.long
@settings(max_examples=60)
@given(st.lists(st.tuples(SAMPLINGS, st.integers(-5, 2**64 - 1), st.integers(0, 10**6), st.integers(0, 9)), min_size=1, max_size=6))
def test_batched_is_alone(rows: list[tuple[Sampling, int, int, int]]) -> None:
    torch.manual_seed(len(rows))
    logits = torch.randn(len(rows), 24) * 3
    draws = [Draw(*row) for row in rows]
    seen = [counts_of([i, 1, 2], [3, i, 3]) for i in range(len(rows))]
    together = sample(logits, draws, seen)
    alone = [sample(logits[i : i + 1], draws[i : i + 1], seen[i : i + 1]) for i in range(len(rows))]
    assert together.tolist() == torch.cat(alone).tolist()
    order = list(reversed(range(len(rows))))
    turned = sample(logits[order], [draws[i] for i in order], [seen[i] for i in order])
    assert turned.tolist() == [together[i] for i in order]


def test_each_number_of_a_draw_changes_its_noise() -> None:
    first = Draw(Sampling(temperature=1.0), seed=3, position=5, request=7)
    others = [Draw(first.sampling, 4, 5, 7), Draw(first.sampling, 3, 6, 7), Draw(first.sampling, 3, 5, 8)]
    noise = gumbel([first, *others], 512, torch.device("cpu"))
    assert torch.equal(noise[:1], gumbel([first], 512, torch.device("cpu")))
    assert torch.equal(noise[0, :100], gumbel([first], 100, torch.device("cpu"))[0])  # of one token alone
    close = torch.corrcoef(noise).fill_diagonal_(0).abs().max()
    assert close < 0.2 and noise.isfinite().all()
    assert noise.unique().numel() == noise.numel()


def test_noise_is_gumbel() -> None:
    noise = gumbel([Draw(Sampling(), 1, position) for position in range(40)], 1000, torch.device("cpu"))
    assert abs(noise.mean().item() - 0.5772) < 0.02 and abs(noise.var().item() - math.pi**2 / 6) < 0.04


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5])
    count = 20_000
    draws = [Draw(Sampling(temperature=0.7), 11, position) for position in range(count)]
    seen = sample(logits.expand(count, -1), draws).bincount(minlength=5) / count
    expected = (logits / 0.7).softmax(-1)
    spread = (expected * (1 - expected) / count).sqrt()
    assert ((seen - expected).abs() < 4.5 * spread).all(), (seen, expected)


@pytest.mark.parametrize(
    ("options", "warper"),
    [
        ({"top_k": 5}, TopKLogitsWarper(5)),
        ({"top_p": 0.6}, TopPLogitsWarper(0.6)),
        ({"min_p": 0.2}, MinPLogitsWarper(0.2)),
        ({"top_k": 100}, lambda ids, x: x),
        ({"top_p": 1.0, "min_p": 0.0}, lambda ids, x: x),
        ({"top_p": 0.0}, TopKLogitsWarper(1)),
        ({"repetition_penalty": 1.7}, RepetitionPenaltyLogitsProcessor(1.7)),
    ],
)
def test_cuts_are_those_of_transformers(options: dict[str, Any], warper: Any) -> None:
    torch.manual_seed(0)
    logits, ids = torch.randn(16, 24) * 2, torch.randint(24, (16, 6))
    seen = [counts_of(row[:4].tolist(), row[4:].tolist()) for row in ids]
    mine = adjusted(logits, [Sampling(**options)] * 16, seen)
    theirs = warper(ids, logits.clone())
    assert torch.equal(mine.isinf(), theirs.isinf())
    assert torch.allclose(mine[~mine.isinf()].float(), theirs[~theirs.isinf()])


def test_bias_and_penalties_of_the_answer() -> None:
    logits = torch.zeros(1, 24)
    mine = adjusted(
        logits, [Sampling(presence_penalty=0.5, frequency_penalty=0.25, logit_bias={7: 3.0})], [counts_of([1, 2], [2, 2, 9])]
    )
    expected = torch.zeros(24, dtype=torch.double)
    expected[2], expected[9], expected[7] = -0.5 - 0.5, -0.5 - 0.25, 3.0
    assert torch.equal(mine[0], expected)


def test_greedy_draws_nothing() -> None:
    assert not Sampling().draws and not Sampling(temperature=0, top_k=5).draws
    assert Sampling(top_p=0.9).draws and Sampling(temperature=0.5).draws
    logits = torch.randn(4, 24)
    draws = [Draw(Sampling(temperature=0), seed, 0) for seed in range(4)]
    assert torch.equal(sample(logits, draws), logits.argmax(-1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0), ("temperature", math.nan), ("temperature", 1e-40), ("temperature", "hot"), ("top_p", 2.0),
        ("top_k", -1), ("top_k", 2.5), ("min_p", -0.1), ("repetition_penalty", 0), ("presence_penalty", math.inf), ("top_k", True),
    ],
)  # fmt: skip
def test_options_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: {value!r}; allowed: "):
        Sampling(**{name: value})


def test_biases_out_of_range() -> None:
    with pytest.raises(ValueError, match="logit_bias: 3: nan"):
        Sampling(logit_bias={3: math.nan})
    with pytest.raises(ValueError, match="logit_bias: token 96; the model knows tokens 0 to 95"):
        Sampling(logit_bias={96: 1.0}).check_vocabulary(96)


def test_transformers_generate_makes_the_same_draws() -> None:
    model, ids = noisy("huginn-tiny").double(), torch.randint(2, 96, (1, 5), generator=torch.Generator().manual_seed(0))
    sampling = Sampling(temperature=1.3, top_k=30, frequency_penalty=0.4, repetition_penalty=1.2)
    theirs = model.generate(
        ids, max_new_tokens=8, depth=2, do_sample=False, eos_token_id=None, logits_processor=[HashedDraws(sampling, 5, 5)]
    )
    own = ids
    counts = TokenCounts(ids[0], 96)
    for _ in range(8):
        token = sample(model(own, depth=2).logits[:, -1].detach(), [Draw(sampling, 5, own.shape[1])], [counts])
        counts.add(token)
        own = torch.cat([own, token[None]], dim=1)
    assert own.tolist() == theirs.tolist()
