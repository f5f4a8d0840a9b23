"""An engine of one row streams what the plain stream does, and says what exits and drafts saved."""

from __future__ import annotations

from loopwright.engine.stream import stream_uneven
from loopwright.generate.sampling import Sampling
from loopwright.generate.stream import encode, stream
from tests.engine.mix import make
from tests.generate.tiny import word_tokenizer


def test_pieces_are_those_of_the_plain_stream() -> None:
    model, words = make("huginn-tiny"), word_tokenizer()
    ids = encode(words, "the cat sat", 96)
    plain: list[str] = []
    given = {"max_new_tokens": 8, "depth": 3, "sampling": Sampling(temperature=1.5), "seed": 4}
    expected = stream(model, words, ids, write=plain.append, **given)  # type: ignore[arg-type]
    for options in ({"draft_depth": 1}, {"exit": {"kind": "never"}}):
        pieces: list[str] = []
        statistics, saved = stream_uneven(model, words, ids, write=pieces.append, **given, **options)  # type: ignore[arg-type]
        assert pieces == plain and (statistics.tokens, statistics.depth) == (expected.tokens, 3)
        assert "held" in saved or "3.00 of 3 steps" in saved
