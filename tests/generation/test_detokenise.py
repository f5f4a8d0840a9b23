"""Text that grows token by token: joined, the pieces are the text, without half letters and without what a stop string cuts off."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.generation.detokenise import AnswerPieces, GrowingText
from tests.generation.tiny import byte_tokenizer, word_tokenizer

WORDS, BYTES = word_tokenizer(), byte_tokenizer()


@settings(max_examples=40)
@given(st.text(st.sampled_from("ab é漢🙂.\n"), max_size=12))
def test_letters_come_whole_and_joined_they_are_the_text(text: str) -> None:
    tokens, growing, sent = BYTES(text).input_ids, GrowingText(BYTES.decode), ""
    for end in range(len(tokens)):
        sent += growing.more(tokens[: end + 1])
        assert sent + growing.waiting == BYTES.decode(tokens[: end + 1]).rstrip("�") and "�" not in sent
    assert sent == text


def test_a_long_answer_is_decoded_a_few_tokens_at_a_time() -> None:
    lengths: list[int] = []

    def decode(ids: list[int]) -> str:
        lengths.append(len(ids))
        return str(WORDS.decode(ids))

    growing, tokens = GrowingText(decode), [5 + i % 20 for i in range(100)]
    assert "".join(growing.more(tokens[: end + 1]) for end in range(100)) == WORDS.decode(tokens)
    assert max(lengths) == 2


def test_words_before_give_the_first_new_one_its_space() -> None:
    assert GrowingText(WORDS.decode, before=1).more([5, 6]) == WORDS.decode([5, 6])[len(WORDS.decode([5])) :]


TEXTS = st.text(st.sampled_from("ab é漢🙂.\n"), max_size=12)


def decode_by(tokenizer: Any) -> Any:
    return lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


@settings(max_examples=40)
@given(TEXTS, st.lists(TEXTS.filter(bool), max_size=2), st.lists(st.integers(1, 4), max_size=8), st.booleans())
def test_pieces_joined_are_the_text_cut_at_the_first_stop(text: str, stop: list[str], sizes: list[int], ends: bool) -> None:
    tokens = BYTES(text).input_ids
    tokens = [*tokens[: len(tokens) // 2], BYTES.eos_token_id, *tokens[len(tokens) // 2 :]] if ends else tokens
    grown = [decode_by(BYTES)(tokens[:end]) for end in range(len(tokens) + 1)]
    ended = next((end for end, so_far in enumerate(grown) if any(one in so_far for one in stop)), len(tokens))
    tokens, whole = tokens[:ended], grown[ended]  # the engine goes no further
    cut = min((whole.find(one) for one in stop if one in whole), default=len(whole))
    pieces, sent, at = AnswerPieces(decode_by(BYTES), stop), "", 0
    for size in [*sizes, len(tokens)]:
        at = min(at + size, len(tokens))
        sent += pieces.more(tokens[:at])
        assert whole[:cut].startswith(sent) and "�" not in sent
    assert sent + pieces.end(whole[:cut]) == whole[:cut]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 95), min_size=1, max_size=12), st.integers(0, 3))
def test_words_keep_their_spaces_control_words_and_an_echoed_prompt_too(tokens: list[int], before: int) -> None:
    decode, prompt = decode_by(WORDS), [2, 3, 4][:before]
    pieces = AnswerPieces(decode, before=before)
    sent = "".join(pieces.more(prompt + tokens[: end + 1]) for end in range(len(tokens)))
    assert decode(prompt) + sent == decode(prompt + tokens)


def test_what_may_be_a_stop_string_is_held_back() -> None:
    pieces = AnswerPieces(decode_by(BYTES), ["abc"])
    ids = BYTES("xabxabc").input_ids
    assert [pieces.more(ids[:end]) for end in range(1, 8)] == ["x", "", "", "abx", "", "", ""]
