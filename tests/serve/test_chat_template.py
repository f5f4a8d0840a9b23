"""Messages by the tokenizer's template."""

from __future__ import annotations

import pytest

from loopwright.serve.chat_template import chat_ids
from loopwright.serve.limits import Refusal
from tests.generate.tiny import word_tokenizer


def test_messages_are_written_by_the_template() -> None:
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    words = word_tokenizer(chat=True)
    assert chat_ids(words, messages) == words("the cat again sat again then")["input_ids"]


@pytest.mark.parametrize("template", ["{{ raise_exception('no\\nsystem') }}", "{{ 1 / 0 }}", "{% for %}"])
def test_a_template_that_fails_is_one_line(template: str) -> None:
    words = word_tokenizer()
    words.chat_template = template
    with pytest.raises(Refusal, match=r"^messages: the model's chat template refuses them") as refused:
        chat_ids(words, [{"role": "user", "content": "a"}])
    assert "\n" not in str(refused.value)


def test_a_tokenizer_without_a_template_says_where_to_go() -> None:
    with pytest.raises(Refusal, match="no chat template; use /v1/completions"):
        chat_ids(word_tokenizer(), [{"role": "user", "content": "a"}])
