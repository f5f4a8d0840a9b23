"""Messages as token ids, by the tokenizer's template."""

from __future__ import annotations

import pytest

from loopwright.confined import LocalTokenizer
from loopwright.serving.models import chat_ids
from loopwright.serving.schema import Refusal
from tests.generation.tiny import word_tokenizer

ASKED = [{"role": "user", "content": "a"}]


def test_messages_are_written_by_the_template() -> None:
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    words = word_tokenizer(chat=True)
    expected = words.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert chat_ids(LocalTokenizer(words), messages) == words("the cat again sat again then")["input_ids"] == list(expected)


@pytest.mark.parametrize("template", ["{{ raise_exception('no\\nsystem') }}", "{{ 1 / 0 }}", "{% for %}"])
def test_a_template_that_fails_is_one_line(template: str) -> None:
    words = word_tokenizer()
    words.chat_template = template
    with pytest.raises(Refusal, match=r"^messages: the model's chat template refuses them") as refused:
        chat_ids(LocalTokenizer(words), ASKED)
    assert "\n" not in str(refused.value) and refused.value.param == "messages"


def test_a_template_that_writes_too_much_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.confined.TEXT", 1000)
    words = word_tokenizer()
    words.chat_template = "{{ 'a ' * 501 }}"
    with pytest.raises(Refusal, match=r"^messages: the model's chat template was stopped \(it writes 1,002 characters\)"):
        chat_ids(LocalTokenizer(words), ASKED)


def test_a_tokenizer_without_a_template_says_where_to_go() -> None:
    with pytest.raises(Refusal, match="no chat template; use /v1/completions"):
        chat_ids(LocalTokenizer(word_tokenizer()), ASKED)
