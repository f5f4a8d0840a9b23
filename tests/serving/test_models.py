"""A served model: its depths, its length, which prompts fit, and messages as token ids by the tokenizer's template."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GenerationConfig, PreTrainedTokenizerFast

from loopwright.confined import LocalTokenizer
from loopwright.generation.detokenise import text_of
from loopwright.serving.models import ServedModel, chat_ids, find_model
from loopwright.serving.schema import ParsedRequest, Refusal, ServerLimits, parse_request
from tests.cases import noisy
from tests.generation.mix import make
from tests.generation.test_detokenise import BYTES
from tests.generation.test_generation_config import drawing_by, random_config
from tests.generation.tiny import DENSE, word_tokenizer
from tests.serving.live import WORDS, live


def served(
    name: str = "huginn-tiny", *, limits: ServerLimits | None = None, changes: dict[str, Any] | None = None, **options: Any
) -> ServedModel:
    model = make(name, **(changes or {}))
    return ServedModel("m", model, WORDS, limits=limits or ServerLimits(), **({"max_rows": 1, "max_tokens": 40} | options))


def text(**body: Any) -> ParsedRequest:
    return parse_request(json.dumps({"prompt": "a"} | body).encode(), chat=False)


class Shouting(PreTrainedTokenizerFast):
    """A tokenizer that changes what is decoded."""

    def _decode(self, *args: Any, **options: Any) -> str:
        return super()._decode(*args, **options).upper()


SPACED, LOUD = word_tokenizer(), Shouting(tokenizer_object=WORDS.backend_tokenizer, unk_token="<unk>", eos_token="<end>")
SPACED.clean_up_tokenization_spaces = True
SPACED.add_tokens(["?"])


@given(st.lists(st.integers(0, 95), max_size=6), st.sampled_from([WORDS, BYTES, SPACED, LOUD]))
def test_text_is_what_the_tokenizer_itself_decodes(ids: list[int], tokenizer: Any) -> None:
    for some in (ids, [2, 96, 3] if tokenizer is SPACED else ids):
        assert text_of(tokenizer)(some) == tokenizer.decode(some, skip_special_tokens=True)
        spoken = [one for one in some if one != 2]
        assert text_of(tokenizer, skip=False, silent={2})(some) == tokenizer.decode(spoken, skip_special_tokens=False)


def test_the_card_tells_length_depths_and_exits() -> None:
    card = served().card()
    assert card["max_model_len"] == 40 and card["depths"] == {"default": 4, "min": 1, "max": 16}
    assert "change" in card["exits"] and "gate" not in card["exits"]
    assert served(max_tokens=4000).card()["max_model_len"] == 128  # the positions of the model
    assert served(depth=2, limits=ServerLimits(depth=3)).card()["depths"] == {"default": 2, "min": 1, "max": 3}
    gated = served("ouro-1.4b-tiny").card()
    assert "gate" in gated["exits"]


CONFIGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"temperature": 1.0}),  # of the file, and what is asked of the engine where the request says nothing
    ({"temperature": 0.5, "top_k": 3}, {"temperature": 0.5}),
    ({"do_sample": False, "temperature": 0.5}, {}),
    ({"do_sample": True, "temperature": 0.5}, {}),
]


@pytest.mark.parametrize(("told", "asked"), CONFIGS)
def test_what_a_request_leaves_open(told: dict[str, Any], asked: dict[str, Any]) -> None:
    model = served()
    model.engine.model.generation_config = GenerationConfig(max_new_tokens=7, **told)
    options = model.options(text())
    assert {name: value for name, value in options.items() if name == "temperature"} == asked
    assert model.options(text(temperature=0.2))["temperature"] == 0.2
    assert (model.new_tokens(text(), [3, 4]), model.new_tokens(text(max_tokens=3), [3, 4])) == (7, 3)
    model.engine.model.generation_config = GenerationConfig(max_length=5)
    assert model.new_tokens(text(), [3, 4]) == 3


def test_answers_over_http_follow_the_generation_config() -> None:
    with live() as server:
        model = server.model.engine.model
        for seed in range(4):
            draw = random.Random(seed)
            model.generation_config = config = random_config(draw)
            config.stop_strings, config.max_length, config.max_new_tokens = None, None, 6
            config.do_sample = config.do_sample is True  # without it requests draw, as OpenAI's do
            config.eos_token_id = config.eos_token_id or 1
            ids = torch.tensor([WORDS("the cat sat")["input_ids"]])
            with drawing_by(seed), torch.no_grad():
                made = model.generate(ids, attention_mask=torch.ones_like(ids))[0, 3:].tolist()
            body = {"prompt": "the cat sat", "seed": seed, "return_token_ids": True}
            answer = server.client.post("/v1/completions", json=body).json()
            assert answer["choices"][0]["token_ids"] == made, config


def test_a_model_with_a_last_step_offers_no_more() -> None:
    changes = {"beyond_max_steps": "refuse"}
    model = served("ouroboros-qwen2.5-3b-tiny", changes=changes)
    last = model.engine.model.config.max_steps
    assert last is not None and model.max_depth == last
    assert served("ouroboros-qwen2.5-3b-tiny", changes=changes, limits=ServerLimits(depth=1000)).max_depth == last
    with pytest.raises(ValueError, match="depth: 2 is beyond max_depth=1"):
        served(depth=2, limits=ServerLimits(depth=1))


def test_a_dense_model_has_one_depth() -> None:
    model = ServedModel("d", noisy("ouroboros-qwen2.5-3b-tiny", **DENSE), WORDS, limits=ServerLimits(), max_rows=1, max_tokens=20)
    assert (model.depth, model.max_depth, model.card()["exits"]) == (1, 1, [])


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt: it has no tokens"),
        ([96], "prompt: token 96; the model knows tokens 0 to 95"),
        ([-1], "prompt: token -1"),
        ([1] * 40, "prompt: 40 tokens leave no room for an answer in 40"),
        (["the", "the " * 40], "prompt: 40 tokens"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(prompt: Any, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        served().prompt_ids(text(prompt=prompt))


def test_prompts_are_texts_ids_or_lists_of_either() -> None:
    model = served()
    assert model.prompt_ids(text(prompt="the cat")) == [[2, 4]] == model.prompt_ids(text(prompt=[2, 4]))
    assert model.prompt_ids(text(prompt=["the cat", [5]])) == [[2, 4], [5]]


def test_the_length_of_an_answer() -> None:
    model = served(limits=ServerLimits(new_tokens=30))
    assert model.new_tokens(text(), [1] * 3) == 16 and model.new_tokens(text(), [1] * 30) == 10
    assert model.new_tokens(text(max_tokens=30), [1] * 10) == 30
    assert model.new_tokens(text(max_tokens=0, echo=True), [1]) == 1
    with pytest.raises(Refusal, match="max_tokens: 30 after a prompt of 11 is more than the 40 tokens"):
        model.new_tokens(text(max_tokens=30), [1] * 11)
    with pytest.raises(Refusal, match="--max-new-tokens"):
        model.new_tokens(text(max_tokens=31), [1])


def test_models_are_found_by_name() -> None:
    one: Any = {"a": "A"}
    assert find_model(one, None) == find_model(one, "a") == "A"
    with pytest.raises(Refusal, match="model: 'aa' is not served here; did you mean 'a'") as refused:
        find_model({"a1": "A", "a": "B"}, "aa")  # type: ignore[dict-item]
    assert refused.value.status == 404
    with pytest.raises(Refusal, match="model: missing"):
        find_model({"a": "A", "b": "B"}, None)  # type: ignore[dict-item]


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
