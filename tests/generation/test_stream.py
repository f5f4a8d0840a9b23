"""Streaming gives the text of `generate`, piece by piece, also with exits and drafts, and refuses what would change nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopwright as lw
from loopwright.generation.sampling import Draw, Sampling, checked_seed, sample
from loopwright.generation.stream import Statistics, TextPieces, encode, encode_chat, stream, stream_mixed
from loopwright.model.keys.pool import KeyPool
from tests.cases import noisy
from tests.generation.mix import make
from tests.generation.tiny import byte_tokenizer, word_tokenizer

TOKENIZER = word_tokenizer()


def test_the_stream_is_what_generate_gives() -> None:
    model = noisy("huginn-tiny")
    ids = encode(TOKENIZER, "the cat sat", 96)
    pieces: list[str] = []
    statistics = stream(model, TOKENIZER, ids, write=pieces.append, max_new_tokens=8, depth=3)
    expected = model.generate(ids, max_new_tokens=8, depth=3, do_sample=False, eos_token_id=1, pad_token_id=1)
    assert "".join(pieces) == TOKENIZER.decode(expected[0, 3:], skip_special_tokens=True)
    assert len([piece for piece in pieces if piece]) > 1  # it came in pieces
    assert (statistics.prompt_tokens, statistics.tokens, statistics.depth) == (3, expected.shape[1] - 3, 3)


def test_a_config_that_wants_a_mapping_back_changes_nothing() -> None:
    model = noisy("huginn-tiny")
    ids, pieces = encode(TOKENIZER, "the cat sat", 96), (list[str](), list[str]())
    plain = stream(model, TOKENIZER, ids, write=pieces[0].append, max_new_tokens=4, depth=3)
    model.generation_config.return_dict_in_generate = True
    assert stream(model, TOKENIZER, ids, write=pieces[1].append, max_new_tokens=4, depth=3).tokens == plain.tokens
    assert pieces[0] == pieces[1]


def test_depth_changes_what_is_said() -> None:
    model = noisy("ouro-1.4b-tiny", std=1.0)
    ids = encode(TOKENIZER, "the cat", 96)
    texts = []
    for depth in (1, 4):
        pieces: list[str] = []
        stream(model, TOKENIZER, ids, write=pieces.append, max_new_tokens=8, depth=depth)
        texts.append("".join(pieces))
    assert texts[0] != texts[1]


def test_sampling_is_repeated_by_its_seed() -> None:
    model = noisy("huginn-tiny")
    ids = encode(TOKENIZER, "the cat", 96)
    texts = []
    for seed in (1, 1, 2):
        pieces: list[str] = []
        stream(model, TOKENIZER, ids, write=pieces.append, max_new_tokens=12, sampling=Sampling(temperature=1.0), seed=seed)
        texts.append("".join(pieces))
    assert texts[0] == texts[1] != texts[2]


def test_the_end_token_of_the_tokenizer_stops() -> None:
    model = noisy("huginn-tiny", head_bias=True)
    with torch.no_grad():
        model.lm_head.bias[1] = 100.0  # "<end>"
    pieces: list[str] = []
    statistics = stream(model, TOKENIZER, encode(TOKENIZER, "the cat", 96), write=pieces.append, max_new_tokens=8)
    assert statistics.tokens == 1 and "".join(pieces) == ""


def test_chat_uses_the_template() -> None:
    chat = word_tokenizer(chat=True)
    assert chat.decode(encode_chat(chat, "the cat", 96)[0]) == "the cat again then"
    with pytest.raises(ValueError, match="no chat template"):
        encode_chat(TOKENIZER, "the cat", 96)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('only\\nsystem') }}", "TemplateError: only system"),
        ("{% for m in %}", "TemplateSyntaxError"),
        ("{{ messages[3]['content'] }}", "UndefinedError"),
        ("{{ 1 + 'a' }}", "TypeError"),
    ],
)
def test_a_chat_template_that_fails_gets_one_line(template: str, reason: str) -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ValueError, match=f"chat template fails on a user's turn .{reason}.*leave --chat out") as caught:
        encode_chat(tokenizer, "the cat", 96)
    assert "\n" not in str(caught.value)


def test_the_text_ends_with_the_context() -> None:
    model = noisy("huginn-tiny", max_position_embeddings=8)
    pieces: list[str] = []
    statistics = stream(model, TOKENIZER, torch.tensor([[2, 3, 4]]), write=pieces.append, max_new_tokens=100_000)
    assert (statistics.tokens, statistics.context) == (5, 8)
    assert str(statistics).endswith("stopped at the end of the model's context of 8 tokens (max_position_embeddings)")
    within = stream(model, TOKENIZER, torch.tensor([[2, 3, 4]]), write=pieces.append, max_new_tokens=5)
    assert (within.tokens, within.context) == (5, None)
    with pytest.raises(ValueError, match=r"prompt: 8 tokens leave no room in the model's context of 8 .* shorten it"):
        stream(model, TOKENIZER, torch.full((1, 8), 3), write=pieces.append, max_new_tokens=1)
    endless = noisy("universal-tiny", max_position_embeddings=4)  # no positions: nothing ends
    assert stream(endless, TOKENIZER, torch.tensor([[2, 3, 4]]), write=pieces.append, max_new_tokens=3).tokens == 3


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)])
def test_weights_that_are_not_finite_are_an_error(sampling: Sampling) -> None:
    model = noisy("huginn-tiny")
    with torch.no_grad():
        model.prelude[0].mlp.up_proj.weight[0, 0] = math.nan
    pieces: list[str] = []
    with pytest.raises(ValueError, match=r"generate: 96 of 96 logits are not finite after 3 tokens"):
        stream(model, TOKENIZER, torch.tensor([[2, 3, 4]]), write=pieces.append, max_new_tokens=4, sampling=sampling)
    assert not pieces


def test_a_seed_that_torch_cannot_hold() -> None:
    with pytest.raises(ValueError, match=r"seed must be a whole number from -2\*\*63 to 2\*\*64 - 1 \(got 1000"):
        stream(
            noisy("huginn-tiny"), TOKENIZER, torch.tensor([[2]]), write=print, max_new_tokens=1,
            sampling=Sampling(temperature=1.0), seed=10**30,
        )  # fmt: skip


def test_prompts_the_model_cannot_read() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        encode(TOKENIZER, "", 96)
    with pytest.raises(ValueError, match="not its tokenizer"):
        encode(TOKENIZER, "the until", 10)


def test_what_would_change_nothing_is_refused() -> None:
    model = noisy("ouro-1.4b-tiny")
    with pytest.raises(ValueError, match="would change nothing"):
        checked_seed(model, 3)
    with pytest.raises(ValueError, match="max_new_tokens: 0"):
        stream(model, TOKENIZER, torch.tensor([[2]]), write=print, max_new_tokens=0)


def test_statistics_in_words() -> None:
    assert str(Statistics(5, 20, 4.0, 8)) == "20 tokens, 5.0 tokens/s, depth 8, after a prompt of 5"


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
        statistics, saved = stream_mixed(model, words, ids, write=pieces.append, **given, **options)  # type: ignore[arg-type]
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
    stream_mixed(model, words, encode(words, "the cat", 96), write=lambda text: None, max_new_tokens=4, depth=5, **options)
    (pool,) = pools
    assert {stack: cells.count for stack, cells in pool.cells.items()} == {"prelude": 6, "core": 30, "coda": 6 * coda}


@pytest.mark.parametrize("tokenizer", [word_tokenizer(), byte_tokenizer()])
@settings(max_examples=20)
@given(st.lists(st.integers(0, 95), max_size=12), st.lists(st.integers(0, 95), max_size=3))
def test_pieces_after_a_prompt_are_the_text_of_the_answer(tokenizer: Any, answer: list[int], prompt: list[int]) -> None:
    written: list[str] = []
    pieces = TextPieces(tokenizer, written.append)
    pieces.put(torch.tensor([prompt], dtype=torch.long))
    for token in answer:
        pieces.put(torch.tensor([token]))
    pieces.end()
    assert "".join(written) == tokenizer.decode(answer, skip_special_tokens=True)
