"""OpenAI's forms, field by field."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.generation.scores import TokenScore
from loopwright.serving.answer import Delta
from loopwright.serving.openai_json import Shape, event
from loopwright.serving.schema import parse_request
from tests.generation.test_detokenise import BYTES
from tests.serving.live import WORDS


def shape_of(*, chat: bool = False, tokenizer: Any = WORDS, **body: Any) -> Shape:
    first = {"messages": [{"role": "user", "content": "a"}]} if chat else {"prompt": "a"}
    model = SimpleNamespace(name="m", word=lambda token: tokenizer.decode([token]))
    asked = parse_request(json.dumps(first | body).encode(), chat=chat)
    return Shape(SimpleNamespace(parsed=asked, model=model, usage={"total_tokens": 7}))  # type: ignore[arg-type]


def delta(text: str, tokens: list[int], *, reason: str | None = None, **more: Any) -> Delta:
    scores = [TokenScore(-1.0, ((3, -0.5), (tokens[0], -1.0)))] * len(tokens)
    return Delta(text, tokens, [2] * len(tokens), scores, [], reason, **more)


def answer(index: int = 0) -> Any:
    return SimpleNamespace(index=index)


def read(sent: bytes) -> dict[str, Any]:
    assert sent.startswith(b"data: ") and sent.endswith(b"\n\n") and sent.count(b"\n") == 2
    return json.loads(sent[6:])


def test_an_event_is_one_line() -> None:
    assert event({"a": "x\ny"}) == b'data: {"a": "x\\ny"}\n\n'
    with pytest.raises(ValueError, match="JSON"):
        event(float("nan"))


@pytest.mark.long
@given(st.text(), st.text(min_size=1), st.booleans(), st.booleans(), st.booleans())
def test_an_event_is_written_as_its_whole_dict_would_be(text: str, name: str, chat: bool, usage: bool, more: bool) -> None:
    shape = shape_of(
        chat=chat, stream=True, return_token_ids=more, **({"stream_options": {"include_usage": True}} if usage else {})
    )
    shape.job.model.name = name
    for place, made in enumerate((delta(text, [8]), delta(text, [8]), delta(text, [9], reason="stop"))):
        sent = shape.event(answer(1), made)
        said = shape.choice(answer(1), made)  # the role stands in the first alone
        whole = {"id": shape.id, "object": "chat.completion.chunk" if chat else "text_completion", "created": shape.created,
                 "model": name, "choices": [said]} | ({"usage": None} if usage else {})  # fmt: skip
        if chat and not place:
            whole["choices"] = [said | {"delta": {"role": "assistant"} | said["delta"]}]
        assert sent == event(whole)


def test_scores_of_text_go_on_where_the_last_chunk_ended() -> None:
    shape = shape_of(logprobs=1, echo=True)
    echoed = delta("the cat sat", [8], prompt=[2, 4], prompt_scores=[None, TokenScore(-2.0, ((5, -0.1),))])
    first = shape.choice(answer(), echoed)["logprobs"]
    assert first["tokens"] == ["the", "cat", "sat"] and first["token_logprobs"] == [None, -2.0, -1.0]
    assert first["top_logprobs"] == [None, {"dog": -0.1, "cat": -2.0}, {"a": -0.5, "sat": -1.0}]
    assert first["text_offset"] == [0, 3, 6]
    assert shape.choice(answer(), delta(" ran", [9]))["logprobs"]["text_offset"] == [9]
    assert shape.choice(answer(1), delta("ran", [9]))["logprobs"]["text_offset"] == [0]


def test_chunks_of_a_chat_open_once_and_end_with_usage() -> None:
    shape = shape_of(chat=True, stream=True, stream_options={"include_usage": True})
    chunks = [read(shape.event(answer(index), delta("x", [8]))) for index in (0, 1, 0)]
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks] == ["assistant", "assistant", None]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"} and chunks[0]["id"] == chunks[2]["id"]
    assert shape.last()["choices"] == [] and shape.last()["usage"] == {"total_tokens": 7} and chunks[0]["usage"] is None


def test_a_whole_answer_is_its_deltas_joined() -> None:
    shape = shape_of(return_token_ids=True, return_depth_used=True)
    for part in (delta("the", [2]), delta(" cat", [4], reason="stop")):
        shape.keep(answer(), part)
    choice = shape.whole()["choices"][0]
    assert choice == {
        "index": 0, "text": "the cat", "logprobs": None, "token_ids": [2, 4], "depth_used": [2, 2], "finish_reason": "stop"
    }  # fmt: skip


def test_half_letters_have_no_bytes_and_zero_probability_is_null() -> None:
    half = BYTES("é").input_ids[0]
    shape = shape_of(chat=True, tokenizer=BYTES, logprobs=True)
    made = Delta("", [half], [1], [TokenScore(-math.inf)], [], None)
    entry = shape.choice(answer(), made)["logprobs"]["content"][0]
    assert entry["bytes"] is None and entry["logprob"] is None and entry["id"] == half
    assert shape._entry(BYTES("b").input_ids[0], -1.0)["bytes"] == [98]
