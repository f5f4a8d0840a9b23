"""Every field has a check; what is unknown, malformed, too much or does not go together is refused by name."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.serving.schema import CHAT, TEXT, TOKENIZE, Refusal, ServerLimits, parse_request, read_fields

BAD_TEXT: list[tuple[dict[str, Any], str]] = [
    ({"deph": 3}, "body: unknown 'deph'; did you mean 'depth'?"),
    ({"tools": [{"type": "function"}]}, "tools: .*; there are no tools here, so leave it out"),
    ({"best_of": 2}, "best_of: 2; allowed: 1"),
    ({"store": "yes"}, "store: 'yes'; allowed: true or false"),
    ({"metadata": ["a"]}, "metadata: .*; allowed: a mapping"),
    ({"modalities": ["text"]}, "body: unknown 'modalities'"),
    ({"min_tokens": -1}, "min_tokens: -1; allowed: a whole number of at least 0"),
    ({"add_generation_prompt": False}, "body: unknown 'add_generation_prompt'"),
    ({"prompt": None}, "prompt: missing"),
    ({"prompt": []}, "prompt: \\[\\]; allowed: text, a list of token ids"),
    ({"prompt": [1, "a"]}, "prompt: .*; allowed"),
    ({"prompt": [True]}, "prompt: .*; allowed: a list of token ids"),
    ({"prompt": [[1], [1.5]]}, "prompt: \\[1.5\\]; allowed: a list of token ids"),
    ({"prompt": {"a": 1}}, "prompt: "),
    ({"max_tokens": 0}, "max_tokens: 0 asks for nothing without echo"),
    ({"max_tokens": 1.5}, "max_tokens: 1.5; allowed: a whole number of at least 0"),
    ({"temperature": -1}, "temperature: -1; allowed: a number from 0"),
    ({"temperature": True}, "temperature: True; allowed: a number"),
    ({"top_p": 2}, "top_p: 2; allowed: a number from 0 to 1"),
    ({"top_k": -2}, "top_k: -2"),
    ({"logit_bias": {"x": 1}}, "logit_bias: 'x'; allowed: at most 1024 token ids"),
    ({"logit_bias": {"5": 200}}, "logit_bias.5: 200; allowed: a number from -100 to 100"),
    ({"stop": [""]}, "stop: .*; allowed: a string"),
    ({"stop": ["a"] * 17}, "stop: '17 strings'; allowed: at most 16"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids: "),
    ({"n": 0}, "n: 0; allowed: a whole number of at least 1"),
    ({"seed": 2**63}, "body: seed is 9223372036854775808; allowed: whole numbers of at most 64 bits"),
    ({"stream": "yes"}, "stream: 'yes'; allowed: true or false"),
    ({"stream_options": {"include_usage": True}}, "stream_options: given without stream"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options: unknown 'x'"),
    ({"logprobs": 21}, "logprobs: 21; allowed: .* at most 20"),
    ({"depth": 0}, "depth: 0; allowed: a whole number of at least 1"),
    ({"exit": "chang:1"}, "exit: unknown kind 'chang'"),
    ({"exit": 5}, "exit: 5; allowed: a rule"),
    ({"exit_keys": "none"}, "exit_keys: 'none'; allowed: backfill, copy"),
    ({"draft_tokens": 1}, "draft_tokens: 1"),
]
BAD_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages: \\[\\]; allowed: a list of messages"),
    ({"messages": ["hi"]}, "messages\\[0\\]: 'hi'; allowed: a message"),
    ({"messages": [{"role": "cat", "content": "x"}]}, "messages\\[0\\].role: 'cat'; allowed: system"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages\\[0\\].content: 5; allowed: text"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages\\[0\\].content: "),
    ({"messages": [{"role": "user", "content": None}]}, "messages\\[0\\].content: None; allowed: text"),
    ({"messages": [{"role": "user", "content": "x", "tools": 1}]}, "messages\\[0\\]: unknown 'tools'"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, "messages\\[0\\].tool_calls: .*; there are no tools here"),
    (
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]},
        "messages\\[0\\].role: 'tool'; there are no tools here",
    ),
    ({"tool_choice": "required"}, "tool_choice: 'required'; there are no tools here"),
    ({"tool_choice": {"type": "function"}}, "tool_choice: .*; there are no tools here"),
    ({"functions": [{"name": "a"}]}, "functions: .*; there are no tools here"),
    ({"modalities": ["text", "audio"]}, "modalities: .*; allowed: \\['text'\\]"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation: True; allowed: False"),
    ({"max_tokens": 3, "max_completion_tokens": 3}, "max_completion_tokens: given with max_tokens"),
    ({"top_logprobs": 2}, "top_logprobs: given without logprobs"),
    ({"echo": True}, "body: unknown 'echo'"),
    ({"response_format": "json"}, 'response_format: .*; allowed: a mapping of type "text", "json_object" or "json_schema"'),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format: unknown 'schema'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: None; allowed: "),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}}}, "response_format.json_schema: "),
    ({"structured_outputs": {"regx": "a"}}, "structured_outputs: unknown 'regx'; did you mean 'regex'"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs: .*; give one of json, regex, choice"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs: given with response_format; keep one",
    ),
]


@pytest.mark.parametrize(("body", "message"), BAD_TEXT, ids=[f"{next(iter(b))}-{i}" for i, (b, _) in enumerate(BAD_TEXT)])
def test_what_is_wrong_with_text_is_said_in_one_line(body: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal, match=f"^{message}") as refused:
        parse_request(json.dumps({"prompt": "a"} | body).encode(), chat=False)
    assert refused.value.status == 400 and "\n" not in str(refused.value)


@pytest.mark.parametrize(("body", "message"), BAD_CHAT, ids=[f"{next(iter(b))}-{i}" for i, (b, _) in enumerate(BAD_CHAT)])
def test_what_is_wrong_with_chat_is_said_in_one_line(body: dict[str, Any], message: str) -> None:
    with pytest.raises(Refusal, match=f"^{message}"):
        parse_request(json.dumps({"messages": [{"role": "user", "content": "a"}]} | body).encode(), chat=True)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"deph": 3}, "deph"),
        ({"depth": 0}, "depth"),
        ({"tools": [1]}, "tools"),
        ({"exit": "chang:1"}, "exit"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options"),
        ({"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"x" * 999: 1}, "x" * 100),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_the_field_that_is_refused_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse_request(json.dumps({"messages": [{"role": "user", "content": "a"}]} | body).encode(), chat=True)
    assert refused.value.body()["error"]["param"] == param


UNREAD: dict[str, Any] = {
    "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "safety_identifier": "a", "prompt_cache_key": "b", "user": "c",
    "best_of": 1, "tools": [], "functions": [], "tool_choice": "none", "function_call": "auto", "parallel_tool_calls": True,
    "stream": True, "stream_options": {"include_obfuscation": False},
}  # fmt: skip


def test_fields_that_cannot_change_a_token_are_taken() -> None:
    for chat, main in ((False, {"prompt": "a"}), (True, {"messages": [{"role": "user", "content": "a"}], "modalities": ["text"]})):
        body = {name: value for name, value in (UNREAD | main).items() if not (chat and name == "best_of")}
        plain = {name: value for name, value in main.items() if name != "modalities"} | {"stream": True}
        assert parse_request(json.dumps(body).encode(), chat=chat) == parse_request(json.dumps(plain).encode(), chat=chat)


def test_an_answer_comes_back_as_a_client_keeps_it() -> None:
    """As `model_dump()` of OpenAI's client has it, null wherever there was nothing."""
    nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls", "reasoning"))
    user = {"role": "user", "content": "a", "name": None}
    sent = [
        user,
        {"role": "assistant", "content": "b"} | nothing,
        {"role": "assistant", "content": None, "tool_calls": []} | nothing,
    ]
    asked = parse_request(json.dumps({"messages": [*sent, user], "seed": None, "no_such": None}).encode(), chat=True)
    plain = {"role": "user", "content": "a"}
    assert asked.messages == [plain, {"role": "assistant", "content": "b"}, {"role": "assistant", "content": ""}, plain]


def test_the_fields_of_other_servers() -> None:
    asked = parse_request(b'{"prompt": "a", "min_tokens": 3, "skip_special_tokens": false}', chat=False)
    assert asked.options["min_new_tokens"] == 3 and asked.options["skip_special_tokens"] is False
    body = {"messages": [{"role": "user", "content": "a"}]}
    assert parse_request(json.dumps(body).encode(), chat=True).opening
    assert not parse_request(json.dumps(body | {"add_generation_prompt": False}).encode(), chat=True).opening


def test_null_is_left_out_and_the_rest_goes_to_the_engine() -> None:
    asked = parse_request(
        b'{"prompt": [[1], "a"], "seed": null, "depth": 3, "exit": "change:0.5", "top_k": -1, "stop": "x", "stop_token_ids": [7],'
        b' "logit_bias": {"5": 2}, "echo": true, "logprobs": 0}',
        chat=False,
    )
    assert asked.prompts == [[1], "a"] and asked.seed is None and asked.logprobs == 0
    assert asked.options == {
        "depth": 3, "exit": {"kind": "change", "threshold": 0.5}, "top_k": 0, "stop": ["x", 7], "logit_bias": {5: 2},
        "logprobs": True, "top_logprobs": 0, "prompt_logprobs": True,
    }  # fmt: skip


def test_the_form_of_an_answer() -> None:
    schema = {"type": "integer"}
    for field, form in (
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}},
            {"json": schema},
        ),
        ({"response_format": {"type": "json_object"}}, {"json": {"type": "object"}}),
        ({"structured_outputs": {"regex": "a"}}, {"regex": "a"}),
        ({"structured_outputs": {"choice": ["a"]}, "response_format": {"type": "text"}}, {"choice": ["a"]}),
        ({"response_format": {"type": "text"}}, None),
    ):
        for chat, main in ((False, {"prompt": "a"}), (True, {"messages": [{"role": "user", "content": "a"}]})):
            assert parse_request(json.dumps(main | field).encode(), chat=chat).options.get("constrain") == form


def test_messages_in_parts_and_of_developers() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "c"}, {"role": "user", "content": parts, "name": "me"}]
    asked = parse_request(json.dumps({"messages": messages, "logprobs": True, "top_logprobs": 2}).encode(), chat=True)
    assert asked.messages == [{"role": "system", "content": "c"}, {"role": "user", "content": "a b", "name": "me"}]
    assert asked.logprobs == 2 and asked.options["logprobs"] and not asked.options["prompt_logprobs"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"5", b"\xff", b'{"a": 1, "a": 2}', b'{"seed": 1' + b"0" * 5000 + b"}", b"[" * 9999]
)
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal, match=r"^body: "):
        read_fields(body, TEXT)


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"1e999"])
@pytest.mark.parametrize("name", [b"temperature", b"top_p", b"min_p", b"presence_penalty"])
def test_what_is_no_finite_number_is_refused(name: bytes, word: bytes) -> None:
    with pytest.raises(Refusal):
        read_fields(b'{"' + name + b'": ' + word + b"}", TEXT)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=40)
@given(
    st.sampled_from([TEXT, CHAT, TOKENIZE]).flatmap(
        lambda t: st.tuples(st.just(t), st.dictionaries(st.sampled_from(list(t)), PLAIN))
    )
)
def test_any_json_is_read_or_refused(drawn: tuple[dict[str, Any], dict[str, Any]]) -> None:
    table, data = drawn
    with contextlib.suppress(Refusal):  # anything else is an error of ours
        read_fields(json.dumps(data).encode(), table)


@pytest.mark.parametrize(
    ("inner", "param"),
    [
        (b'"seed": 99999999999999999999', "seed"),
        (b'"stop": ["a", "\\ud800"]', "stop"),
        (b'"metadata": {"\\ud800": 1}', "metadata"),
        (b'"\\ud800": 1', None),
        (b'"logit_bias": ' + b"[" * 120 + b"]" * 120, "logit_bias"),
        (b'"n": 1, "n": 2', "n"),
        (b'"metadata": {"n": 1, "n": 2}', "metadata"),
        (b'"n": 01', None),
    ],
)
def test_the_field_in_which_json_is_not_plain_is_named(inner: bytes, param: str | None) -> None:
    with pytest.raises(Refusal) as refused:
        parse_request(b'{"prompt": "a", ' + inner + b"}", chat=False)
    assert refused.value.param == param and str(refused.value).startswith("body: ")


LIMITS = ServerLimits(body_bytes=10, new_tokens=5, choices=4, depth=3, queue=2)


def test_each_limit_admits_what_it_says_and_names_itself_beyond() -> None:
    LIMITS.check_body(10)
    LIMITS.check_new_tokens("max_tokens", 5)
    LIMITS.check_choices(2, 2)
    LIMITS.check_depth(3, 3)
    LIMITS.check_queue(2, 4, 4, 1.0)
    for call, status, named in (
        (lambda: LIMITS.check_body(11), 413, "--max-body"),
        (lambda: LIMITS.check_new_tokens("max_completion_tokens", 6), 400, "max_completion_tokens: 6 .*--max-new-tokens"),
        (lambda: LIMITS.check_choices(1, 5), 400, "n: 5 is more than 4 answers.*--max-choices"),
        (lambda: LIMITS.check_choices(3, 2), 400, "n: 2 for each of 3 prompts"),
        (lambda: LIMITS.check_depth(4, 3), 400, "depth: 4 .*--max-depth"),
        (lambda: LIMITS.check_queue(3, 4, 4, 1.0), 429, "queue: 0 of 2 sequences wait .*--max-queue"),
    ):
        with pytest.raises(Refusal, match=named) as refused:
            call()
        assert refused.value.status == status


@pytest.mark.parametrize(("seconds", "wait"), [(0.0, "1"), (2.5, "4"), (1e9, "60")])
def test_retry_after_is_what_the_queue_takes(seconds: float, wait: str) -> None:
    with pytest.raises(Refusal) as refused:
        LIMITS.check_queue(1, 6, 4, seconds)
    assert refused.value.headers == {"retry-after": wait}


def test_a_refusal_is_one_bounded_line() -> None:
    body = Refusal("a\nb\x1b" + "c" * 5000, status=404, param="x", code="y").body()["error"]
    assert body["message"].startswith("a b\\x1bccc") and len(body["message"]) == 1000
    assert (body["type"], body["param"], body["code"]) == ("not_found_error", "x", "y")
    assert Refusal("x", status=503).body()["error"]["type"] == "server_error"


def test_limits_that_admit_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"choices must be a whole number >= 1 \(got 0\)"):
        ServerLimits(choices=0)
    assert ServerLimits(queue=0).queue == 0
