"""Text that grows token by token: joined, it is the text of all tokens, and no letter comes in halves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.generation.stream import GrowingText
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
