"""The `openai` client and the examples of docs/serving.md, against a live server."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.live import WORDS, Live, live, offline

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live() as running:
        yield running


def examples(language: str, server: Live) -> list[str]:
    """Returns the examples of the page that talk to a server, with the live one's port."""
    blocks = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [block.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}") for block in blocks if "127.0.0.1:8000" in block]


def test_the_curl_lines_of_the_page_answer(server: Live) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (block,) = examples("bash", server)
    script = "set -e\n" + block.replace("curl -s", "curl --fail-with-body -s")
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '"max_model_len": 128' in ran.stdout and '"object": "text_completion"' in ran.stdout
    assert ran.stdout.endswith("data: [DONE]\n\n")


@pytest.mark.slow
def test_the_python_lines_of_the_page_run(server: Live) -> None:
    pytest.importorskip("openai", reason="the openai client is not installed (extra dev)")
    (block,) = examples("python", server)
    ran = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert "[4, 4, 4, 4" in ran.stdout


@pytest.mark.slow
def test_the_client_of_openai(server: Live) -> None:
    openai = pytest.importorskip("openai", reason="the openai client is not installed (extra dev)")
    client: Any = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"] and client.models.retrieve("tiny").max_model_len == 128
    extra = {"depth": 2, "ignore_eos": True, "return_token_ids": True}
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 6, "temperature": 0, "extra_body": extra}
    tokens = offline(server.model.engine.model, [2, 4, 8], 2, 6)
    whole = client.completions.create(prompt="the cat sat", logprobs=2, **options)
    assert whole.choices[0].token_ids == tokens and whole.usage.completion_tokens == 6
    assert len(whole.choices[0].logprobs.token_logprobs) == 6
    streamed = list(client.completions.create(prompt="the cat sat", stream=True, stream_options={"include_usage": True}, **options))
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == whole.choices[0].text
    assert streamed[-1].usage == whole.usage
    messages = [{"role": "user", "content": "the cat"}]
    chat = client.chat.completions.create(messages=messages, n=2, logprobs=True, top_logprobs=3, **options)
    expected = offline(server.model.engine.model, WORDS("the cat again then")["input_ids"], 2, 6)
    assert [choice.message.content for choice in chat.choices] == [WORDS.decode(expected, skip_special_tokens=True)] * 2
    assert len(chat.choices[0].logprobs.content[0].top_logprobs) == 3
    parts = client.chat.completions.create(messages=messages, stream=True, **options)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == chat.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="depth: 99 is more than 16"):
        client.completions.create(prompt="a", **options | {"extra_body": {"depth": 99}})
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.completions.create(prompt="a", **options | {"model": "gpt"})
