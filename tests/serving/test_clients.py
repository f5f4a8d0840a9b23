"""Clients that people put before a server of OpenAI's: each gets the tokens of the model alone, whole and streamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.live import WORDS, Live, live, offline

pytestmark = pytest.mark.ecosystem
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else an import asks the net
MOST = 6
EXTRA = {"depth": 2, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


@pytest.fixture(scope="module")
def texts(server: Live) -> dict[str, str]:
    """What the model says by itself to "the cat sat", as text and as a message."""
    model, prompts = server.model.engine.model, {"text": "the cat sat", "chat": "the cat sat again then"}
    said = {kind: offline(model, WORDS(prompt)["input_ids"], EXTRA["depth"], MOST) for kind, prompt in prompts.items()}
    return {kind: WORDS.decode(tokens, skip_special_tokens=True).strip() for kind, tokens in said.items()}


def test_litellm(server: Live, texts: dict[str, str]) -> None:
    litellm = pytest.importorskip("litellm")
    options: dict[str, Any] = {
        "api_base": f"{server.url}/v1", "api_key": "none", "max_tokens": MOST, "temperature": 0, "extra_body": EXTRA,
    }  # fmt: skip
    ask = {"model": "openai/tiny", "messages": [{"role": "user", "content": "the cat sat"}]}
    assert litellm.completion(**ask, **options).choices[0].message.content.strip() == texts["chat"]
    parts = litellm.completion(**ask, stream=True, **options)
    assert "".join(part.choices[0].delta.content or "" for part in parts).strip() == texts["chat"]
    found = litellm.text_completion(model="text-completion-openai/tiny", prompt="the cat sat", **options)
    assert found.choices[0].text.strip() == texts["text"]


def test_langchain(server: Live, texts: dict[str, str]) -> None:
    openai = pytest.importorskip("langchain_openai")
    options: dict[str, Any] = {
        "base_url": f"{server.url}/v1", "api_key": "none", "model": "tiny", "max_tokens": MOST, "temperature": 0,
        "extra_body": EXTRA,
    }  # fmt: skip
    chat = openai.ChatOpenAI(**options)
    assert chat.invoke("the cat sat").content.strip() == texts["chat"]
    assert "".join(part.content for part in chat.stream("the cat sat")).strip() == texts["chat"]
    assert [each.content.strip() for each in chat.batch(["the cat sat"] * 2)] == [texts["chat"]] * 2
    assert openai.OpenAI(**options).invoke("the cat sat").strip() == texts["text"]
