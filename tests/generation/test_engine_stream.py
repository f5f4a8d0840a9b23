"""An engine of one row streams what the plain stream does, and says what exits and drafts saved."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.generation.engine import stream_uneven
from loopwright.generation.sampling import Draw, Sampling, sample
from loopwright.generation.stream import encode, stream
from loopwright.model.keys.pool import KeyPool
from tests.generation.mix import make
from tests.generation.tiny import word_tokenizer

SAMPLING, SEED = Sampling(temperature=3.0), 9


@torch.no_grad()
def drafts_by_hand(model: lw.LoopedForCausalLM, ids: torch.Tensor, count: int) -> tuple[int, int]:
    """Returns how many drafts at depth 1, four tokens a round, hold at depth 3, and how many there are: full passes alone."""

    def drawn(text: list[int], depth: int) -> int:
        return int(sample(model(torch.tensor([text]), depth=depth).logits[:, -1], [Draw(SAMPLING, SEED, len(text))]))

    text, held, drafted = ids[0].tolist(), 0, 0
    end = len(text) + count
    while len(text) < end:
        guess = list(text)
        for _ in range(min(4, end - len(text)) - 1):
            guess.append(drawn(guess, 1))
        drafted += len(guess) - len(text)
        while len(text) < end:
            text.append(drawn(text, 3))
            if guess[: len(text)] != text:
                break
            held += 1
    return held, drafted


@pytest.mark.long
def test_pieces_are_those_of_the_plain_stream() -> None:
    model, words = make("huginn-tiny"), word_tokenizer()
    ids = encode(words, "the cat sat", 96)
    plain: list[str] = []
    given = {"max_new_tokens": 12, "depth": 3, "sampling": SAMPLING, "seed": SEED}
    expected = stream(model, words, ids, write=plain.append, **given)  # type: ignore[arg-type]
    held, drafted = drafts_by_hand(model, ids, expected.tokens)
    assert 0 < held < drafted
    for options, said in (
        ({"draft_depth": 1}, f"drafts at depth 1: {held} of {drafted} held"),
        ({"exit": {"kind": "never"}}, "exit by never: 3.00 of 3 steps a token on average"),
    ):
        pieces: list[str] = []
        statistics, saved = stream_uneven(model, words, ids, write=pieces.append, **given, **options)  # type: ignore[arg-type]
        assert pieces == plain and (statistics.tokens, statistics.depth) == (expected.tokens, 3)
        assert saved == said


@pytest.mark.parametrize(("options", "coda"), [({"draft_depth": 1}, 2), ({"exit": {"kind": "never"}}, 5)])
def test_each_stack_of_the_pool_is_as_large_as_the_request_needs(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], coda: int
) -> None:
    pools: list[KeyPool] = []

    class Seen(KeyPool):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            pools.append(self)

    monkeypatch.setattr("loopwright.generation.scheduler.KeyPool", Seen)
    model, words = make("huginn-tiny"), word_tokenizer()
    stream_uneven(model, words, encode(words, "the cat", 96), write=lambda text: None, max_new_tokens=4, depth=5, **options)
    (pool,) = pools
    assert {stack: cells.count for stack, cells in pool.cells.items()} == {"prelude": 6, "core": 30, "coda": 6 * coda}
