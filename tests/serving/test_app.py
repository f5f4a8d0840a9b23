"""The routes from outside, on a live server: answers are the engine's, and refusals come before any work."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from loopwright.generation.constraints import ConstrainedVocabulary
from loopwright.serving.app import Service
from loopwright.serving.schema import ServerLimits
from tests.generation.mix import make
from tests.generation.tiny import few_words, letter_tokenizer
from tests.serving.live import SMALL, WORDS, Live, hold_engines, live, offline


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(limits=ServerLimits(body_bytes=40_000, new_tokens=64, choices=6, queue=3)) as running:
        yield running


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("depth", [1, 3])
def test_a_completion_is_the_offline_one_whole_and_streamed(server: Live, depth: int) -> None:
    ids = WORDS("the cat sat")["input_ids"]
    tokens = offline(server.model.engine.model, ids, depth, 6)
    body = {"max_tokens": 6, "depth": depth, "ignore_eos": True, "return_token_ids": True, "return_depth_used": True}
    whole = server.ask(**body)
    choice = whole["choices"][0]
    assert choice["token_ids"] == tokens and choice["depth_used"] == [depth] * 6 and choice["finish_reason"] == "length"
    assert choice["text"] == WORDS.decode(tokens, skip_special_tokens=True)
    assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9, "completion_steps": 6 * depth}
    chunks = events(server.post(**body, stream=True, stream_options={"include_usage": True}).text)
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == whole["usage"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == choice["text"]
    assert [token for chunk in chunks[:-1] for token in chunk["choices"][0]["token_ids"]] == tokens
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]].count("length") == 1
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_chat_is_the_completion_of_its_template(server: Live) -> None:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "the cat"}], "temperature": 0, "max_tokens": 4}
    answer = server.client.post("/v1/chat/completions", json=body | {"logprobs": True, "top_logprobs": 2}).json()
    plain = server.ask(prompt="the cat again then", max_tokens=4, logprobs=2)
    message = answer["choices"][0]["message"]
    assert answer["object"] == "chat.completion" and message == {"role": "assistant", "content": plain["choices"][0]["text"]}
    content = answer["choices"][0]["logprobs"]["content"]
    assert [one["logprob"] for one in content] == plain["choices"][0]["logprobs"]["token_logprobs"]
    assert all(len(one["top_logprobs"]) == 2 and one["bytes"] == list(one["token"].encode()) for one in content)
    chunks = events(server.client.post("/v1/chat/completions", json=body | {"stream": True}).text)
    assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == message["content"]


@pytest.mark.long
def test_exits_drafts_and_steps(server: Live) -> None:
    body = {"ignore_eos": True, "return_token_ids": True, "return_depth_used": True}
    plain = server.ask(**body)["choices"][0]
    drafted = server.ask(draft_depth=1, draft_tokens=3, **body)["choices"][0]
    stepped = server.ask(step_tokens=2, **body)["choices"][0]
    assert plain["token_ids"] == drafted["token_ids"] == stepped["token_ids"]
    for token, steps in zip(stepped["token_ids"], stepped["step_tokens"], strict=True):
        assert len(steps) == 4 and all(len(step) == 2 for step in steps) and steps[-1][0]["id"] == token
    early = server.ask(exit={"kind": "change", "threshold": 1.2}, **body)["choices"][0]
    rule = {"kind": "change", "threshold": 1.2}
    alone = server.model.engine.submit([2, 4, 8], max_new_tokens=5, exit=rule, ignore_eos=True).result()
    assert early["depth_used"] == alone.depths and early["token_ids"] == alone.tokens


def test_what_lm_eval_asks_for(server: Live) -> None:
    """Prompts as lists of ids with echo and scores, of which the last token is left out."""
    answer = server.ask(prompt=[[2, 4, 8], [5, 6]], echo=True, logprobs=1, max_tokens=1, temperature=0)
    for choice, ids in zip(answer["choices"], [[2, 4, 8], [5, 6]], strict=True):
        scores = choice["logprobs"]
        assert scores["token_logprobs"][0] is None and len(scores["token_logprobs"]) == len(ids) + 1
        assert scores["tokens"][: len(ids)] == [WORDS.decode([token]) for token in ids]
        best = [max(one.values()) for one in scores["top_logprobs"][1:]]
        assert all(top >= own for top, own in zip(best, scores["token_logprobs"][1:], strict=True))


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"depth": 17}, 400, "depth: 17 is more than 16, this server's limit (--max-depth)"),
    ({"max_tokens": 65}, 400, "max_tokens: 65 is more than 64, this server's limit (--max-new-tokens)"),
    ({"n": 7}, 400, "n: 7 is more than 6 answers, this server's limit (--max-choices)"),
    ({"prompt": ["a"] * 7}, 400, "n: 1 for each of 7 prompts is more than 6 answers"),
    ({"prompt": "the " * 200}, 400, "prompt: 200 tokens leave no room for an answer in 128 (max_model_len)"),
    ({"prompt": "the " * 20_000}, 413, "body: more than 40,000 bytes, this server's limit (--max-body)"),
    ({"model": "other"}, 404, "model: 'other' is not served here"),
    ({"deph": 2}, 400, "body: unknown 'deph'; did you mean 'depth'?"),
    ({"exit": "gate"}, 400, "exit: 'gate' needs a model with an exit gate"),
    ({"prompt": [96]}, 400, "prompt: token 96"),
]


@pytest.mark.parametrize(("body", "status", "message"), REFUSED, ids=[f"{next(iter(b))}-{s}" for b, s, _ in REFUSED])
def test_limits_are_named_before_any_work(server: Live, body: dict[str, Any], status: int, message: str) -> None:
    ran = server.model.engine.ran.admitted
    response = server.post(**body)
    assert response.status_code == status and response.json()["error"]["message"].startswith(message)
    assert server.model.engine.ran.admitted == ran and server.model.engine.open_requests == 0


def test_fields_that_clients_send_and_that_change_nothing(server: Live) -> None:
    unread = {"store": False, "metadata": {}, "service_tier": "auto", "safety_identifier": "a", "prompt_cache_key": "b"}
    none = {"tools": [], "tool_choice": "none", "parallel_tool_calls": False, "stream_options": None}
    plain = server.ask()
    assert server.ask(**unread, **none, best_of=1)["choices"] == plain["choices"]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "the cat"}]
    ask = {"messages": messages, "temperature": 0, "max_tokens": 4, "modalities": ["text"], **unread, **none}
    said = server.client.post("/v1/chat/completions", json=ask).json()["choices"][0]["message"]
    nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "tool_calls"))
    messages += [said | nothing, {"role": "user", "content": "a dog"}, {"role": "assistant", "content": None}]
    assert server.client.post("/v1/chat/completions", json=ask).status_code == 200
    refused = server.client.post("/v1/chat/completions", json=ask | {"tools": [{"type": "function"}]})
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["param"] == "tools" and error["message"].endswith("no tools here, so leave it out")
    for body, param in (({"exit": {"kind": "change", "treshold": 1}}, "exit"), ({"draft_depth": 9}, "draft_depth")):
        assert server.post(**body).json()["error"]["param"] == param
    assert server.post(prompt="a", logit_bias={"95000": 1}).json()["error"]["param"] == "logit_bias"


def test_the_opening_of_an_answer_is_left_out(server: Live) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WORDS, "chat_template", "{{ messages[0].content }}{{ ' then' if add_generation_prompt else '' }}")
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "the cat"}]}
        for opening, tokens in (({}, 3), ({"add_generation_prompt": True}, 3), ({"add_generation_prompt": False}, 2)):
            assert server.client.post("/v1/tokenize", json=body | opening).json()["count"] == tokens
            answer = server.client.post("/v1/chat/completions", json=body | opening | {"max_tokens": 1}).json()
            assert answer["usage"]["prompt_tokens"] == tokens


def test_the_least_tokens_and_control_words(server: Live) -> None:
    end = {"logit_bias": {"1": 100}}  # <end> is what the model would say
    assert server.ask(**end)["usage"]["completion_tokens"] == 1
    for stream in (False, True):
        body = end | {"min_tokens": 3, "skip_special_tokens": False, "stream": stream}
        text = server.post(**body).text
        pieces = [chunk["choices"][0] for chunk in events(text)] if stream else json.loads(text)["choices"]
        plain = server.ask(min_tokens=3, **end)
        assert plain["usage"]["completion_tokens"] == 4 and plain["choices"][0]["finish_reason"] == "stop"
        assert "".join(piece["text"] for piece in pieces) == plain["choices"][0]["text"]  # the word that ended it is no text
    kept = server.ask(skip_special_tokens=False, ignore_eos=True, max_tokens=2, **end)
    assert kept["choices"][0]["text"] == "<end> <end>"
    assert server.post(min_tokens=6).json()["error"]["message"].startswith("min_tokens: 6 is more than the 5 of max_tokens")


def test_a_full_queue_is_429_with_retry_after(server: Live) -> None:
    with hold_engines():  # none of the six may end before the seventh comes
        requests = [server.model.engine.submit([2], max_new_tokens=120, ignore_eos=True) for _ in range(6)]
        response = server.post(n=2)
        for request in requests:
            request.cancel()
    assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
    assert "--max-queue" in response.json()["error"]["message"]
    for request in requests:
        request.result()
    assert server.post(n=2).status_code == 200 and server.idle()


def test_the_smaller_routes(server: Live) -> None:
    client = server.client
    assert client.get("/health").json() == {"status": "ok", "models": ["tiny"]}
    for path in ("/health", "/v1/models", "/v1/models/tiny", "/metrics"):  # a page that lets its own name point here
        said = client.get(path, headers={"host": "evil.example"})
        assert "tiny" not in said.text and said.status_code == (200 if path == "/health" else 403)
    said = client.post("/v1/completions", json={"model": "x", "prompt": [2]}, headers={"host": "evil.example"})
    assert said.status_code == 403 and "tiny" not in said.text
    (card,) = client.get("/v1/models").json()["data"]
    assert card == client.get("/v1/models/tiny").json() and card["depths"]["max"] == 16
    assert client.get("/v1/models/none").status_code == 404
    assert client.post("/v1/tokenize", json={"prompt": "the cat"}).json() == {"count": 2, "tokens": [2, 4], "max_model_len": 128}
    chat = {"messages": [{"role": "user", "content": "the cat"}]}
    assert client.post("/v1/tokenize", json=chat).json()["count"] == 4
    assert client.post("/v1/tokenize", json={"prompt": "a"} | chat).status_code == 400
    assert client.post("/v1/tokenize", json={"prompt": "the cat", "add_special_tokens": False}).json()["tokens"] == [2, 4]
    for method, path, status in (("GET", "/", 404), ("GET", "/v1/completions", 405), ("POST", "/v1/models", 405)):
        response = client.request(method, path)
        assert response.status_code == status and response.json()["error"]["message"]
    assert "access-control-allow-origin" not in client.get("/health", headers={"origin": "http://evil.example"}).headers


@pytest.mark.long
def test_several_models_keys_and_origins() -> None:
    models = {"a": make("huginn-tiny", **SMALL).float(), "b": make("ouro-1.4b-tiny", core_layers=1).float()}
    with live(models, key="secret-key", cors=("https://app.example",)) as server:
        for name, model in models.items():
            answer = server.ask(model=name, depth=2, ignore_eos=True, return_token_ids=True)
            assert answer["model"] == name and answer["choices"][0]["token_ids"] == offline(model, [2, 4, 8], 2, 5)
        assert server.post().json()["error"]["message"].startswith("model: missing")
        for path in ("/v1/models", "/metrics"):
            assert server.client.get(path, headers={"authorization": "Bearer no"}).status_code == 401
            assert server.client.get(path).status_code == 200
        assert server.client.get("/health", headers={"authorization": ""}).json() == {"status": "ok"}
        assert server.client.get("/health").json()["models"] == ["a", "b"]


def test_the_preflight_of_openais_client_passes() -> None:
    sent = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,x-stainless-package-version"
    sent += ",x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout,openai-organization"
    asked = {"access-control-request-method": "POST", "access-control-request-headers": sent}
    asked["access-control-request-private-network"] = "true"
    with live(cors=("https://app.example",)) as server:
        told = server.client.options("/v1/completions", headers=asked | {"origin": "https://app.example"})
        assert told.status_code == 200 and told.headers["access-control-allow-origin"] == "https://app.example"
        assert told.headers["access-control-allow-headers"] == sent
        assert told.headers["access-control-allow-private-network"] == "true"
        answer = server.client.get("/v1/models", headers={"origin": "https://app.example"})
        assert "retry-after" in answer.headers["access-control-expose-headers"]
        for origin in ("https://evil.example", "null", "https://app.example.evil"):
            assert server.client.options("/v1/completions", headers=asked | {"origin": origin}).status_code == 400
            headers = server.client.get("/v1/models", headers={"origin": origin}).headers
            assert "access-control-allow-origin" not in headers
        plain = {name: value.encode() for name, value in asked.items()} | {"origin": b"https://app.example"}
        for names in (b"x-a\x1b[2J", b"x a", "x-\xe4".encode(), b"x-a,\x07"):
            told = server.client.options("/v1/completions", headers=plain | {"access-control-request-headers": names})
            assert told.status_code == 400 and "access-control-allow-headers" not in told.headers


def test_a_prompt_without_tokens_is_refused() -> None:
    with live(tokenizer=few_words()) as running:
        for special in (True, False):
            response = running.client.post("/v1/tokenize", json={"prompt": "cat", "add_special_tokens": special})
            assert response.status_code == 400 and "has no tokens in this tokenizer" in response.json()["error"]["message"]


def test_grammars_are_compiled_aside_and_the_vocabulary_before_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llguidance")
    with live(tokenizer=letter_tokenizer(), limits=ServerLimits(choices=6)) as running:
        engine, threads, loops = running.model.engine, [], []
        assert engine._vocabulary is not None
        compile, notifier = ConstrainedVocabulary._compile, Service.notifier

        def compiled(self: Any, kind: str, grammar: str) -> Any:
            threads.append(threading.current_thread())
            return compile(self, kind, grammar)

        def rung(self: Any) -> Any:
            loops.append(threading.current_thread())
            return notifier(self)

        monkeypatch.setattr(ConstrainedVocabulary, "_compile", compiled)
        monkeypatch.setattr(Service, "notifier", rung)
        body = {"prompt": "a", "temperature": 1, "n": 3, "structured_outputs": {"regex": "[a-f]{3}"}}
        texts = [choice["text"] for choice in running.ask(**body)["choices"]]
        assert all(re.fullmatch("[a-f]{3}", text) for text in texts)
        assert len(threads) == 3 and len(loops) == 1  # once for each answer
        assert loops[0] not in threads and engine._worker not in threads
        refused = running.post(prompt="a", structured_outputs={"regex": "[0-9"})
        assert refused.status_code == 400 and "unclosed character class" in refused.text
        assert refused.json()["error"]["param"] == "structured_outputs"
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "no such"}}}
        error = running.post(prompt="a", response_format=form).json()["error"]
        assert error["param"] == "response_format" and error["message"].startswith("response_format: ")


def test_an_error_that_nobody_foresaw_is_500_and_tells_nothing(monkeypatch: pytest.MonkeyPatch, server: Live) -> None:
    monkeypatch.setattr("loopwright.serving.app.find_model", lambda models, name: {}["secret"])
    response = server.post()
    assert response.status_code == 500 and "secret" not in response.text
    assert server.last_record()["status"] == 500
