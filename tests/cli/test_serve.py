"""`loopwright serve`: names, keys, what the start prints, and a process that drains at SIGTERM."""

from __future__ import annotations

import builtins
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from loopwright.cli import service as module
from loopwright.cli.service import name_sources, serve
from loopwright.serving.models import ServedModel
from loopwright.serving.schema import Refusal
from tests.generation.tiny import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("served") / "tiny")


def test_models_have_names(folder: Path) -> None:
    assert name_sources([str(folder), "big=owner/name", "owner/other"]) == {
        "tiny": str(folder), "big": "owner/name", "other": "owner/other"
    }  # fmt: skip
    with pytest.raises(ValueError, match="two are called 'tiny'; name them"):
        name_sources([str(folder), f"tiny={folder}"])
    with pytest.raises(ValueError, match="write NAME=FOLDER"):
        name_sources(["=x"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"api_key_env": "NO_SUCH_KEY"}, "api-key-env: the variable NO_SUCH_KEY is not set"),
        ({"api_key_env": "SHORT_KEY"}, "holds fewer than 8 characters"),
        ({"depth": 0}, "depth: 0"),
        ({"cors_origin": ["*"]}, r"cors-origin: '\*' would let every web page ask; name the page's own"),
        ({"cors_origin": ["https://a.example", "null"]}, "cors-origin: 'null' is what every sandboxed page calls itself"),
        ({"cors_origin": ["https://a.example/"]}, "cors-origin: 'https://a.example/' is no origin"),
        ({"cors_origin": ["a.example"]}, "cors-origin: 'a.example' is no origin"),
        ({"allowed_host": ["*"]}, r"allowed-host: '\*'; give a name or an address"),
        ({"allowed_host": ["gpu-box:8000"]}, "allowed-host: 'gpu-box:8000'; give a name or an address"),
        ({"max_choices": 0}, "choices must be"),
        ({"device": "tpu"}, "device: "),
        ({"generation_config": "no/such"}, "generation-config: 'no/such' has no generation_config.json; allowed: auto, none, or"),
    ],
)
def test_what_is_wrong_is_found_before_weights_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("SHORT_KEY", "abc")
    monkeypatch.setattr(module, "open_model", lambda *args: pytest.fail("weights were read"))
    with pytest.raises(ValueError, match=message):
        serve([str(folder)], port=0, **options)


def test_the_generation_config_that_is_chosen(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = json.loads((folder / "generation_config.json").read_text())
    copied = Path(shutil.copytree(folder, tmp_path / "model"))
    (copied / "generation_config.json").write_text(json.dumps(own | {"eos_token_id": [5, 6], "do_sample": True, "top_k": 4}))
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text(json.dumps({"temperature": 0.3}))
    seen: list[Any] = []
    monkeypatch.setattr("loopwright.serving.server.run", lambda models, *_, **__: seen.append(models["m"].engine.model))
    for word, expected in (
        ("auto", ([5, 6], True, 4, None)), ("none", ([5, 6], None, None, None)), ("vllm", ([5, 6], None, None, None)),
        (str(other), ([5, 6], None, None, 0.3)),
    ):  # fmt: skip
        serve([f"m={copied}"], port=0, generation_config=word)
        config = seen[-1].generation_config
        assert (config.eos_token_id, config.do_sample, config.top_k, config.temperature) == expected
    (copied / "generation_config.json").write_text(json.dumps({"num_beams": 4}))
    with pytest.raises(ValueError, match=r"generation_config: num_beams is 4, which only model.generate offers; set it to 1"):
        serve([f"m={copied}"], port=0)
    serve([f"m={copied}"], port=0, generation_config="none")


def test_a_preset_has_nothing_to_serve() -> None:
    with pytest.raises(ValueError, match="serve: 'huginn' is a preset, which has no trained weights"):
        serve(["huginn"], port=0)


@pytest.mark.parametrize(("knows", "length", "prompt", "room"), [
    ("Once upon a time", 40, "Once upon a time", 24), ("012", 10, "012", 7), ("Once upon a time 012", 10, "012", 7),
    ("0123456789+=", 10, "79+87=", 4), ("xyz", 10, [0], 9),
])  # fmt: skip
def test_the_line_to_try_has_a_prompt_that_the_model_takes(knows: str, length: int, prompt: Any, room: int) -> None:
    def encode(text: str) -> list[int]:
        if not set(text) <= set(knows):
            raise Refusal("prompt: it has no tokens", param="prompt")
        return list(range(len(text)))

    def check_ids(field: str, ids: list[int]) -> list[int]:
        if len(ids) >= length:
            raise Refusal(f"{field}: too long")
        return ids

    model = SimpleNamespace(encode=encode, check_ids=check_ids, decode=lambda ids: "012", max_model_len=length)
    model.readable = lambda *texts: ServedModel.readable(model, *texts)
    assert module._example(model) == (prompt, room)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith("loopwright.serving"):
            raise ModuleNotFoundError("no", name="uvicorn")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"the package uvicorn is missing; pip install 'loopwright\[serve\]'"):
        serve([str(folder)])


@pytest.mark.slow
def test_a_process_says_where_it_is_logs_json_and_drains(folder: Path) -> None:
    command = [sys.executable, "-m", "loopwright", "serve", f"t={folder}", "--port", "0", "--api-key-env", "LW_KEY", "--depth", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"LW_KEY": "secret-key"}
    )
    assert process.stderr is not None
    lines = []
    while "curl" not in (lines[-1] if lines else ""):
        lines.append(process.stderr.readline())
        assert lines[-1], lines
    said = "".join(lines)
    found = re.search(r"http://127\.0\.0\.1:\d+", said)
    assert found is not None and "t: depth 2 (1 to 16 by request), 128 tokens of context" in said and "secret-key" not in said
    with httpx.Client(base_url=found[0], headers={"authorization": "Bearer secret-key"}, timeout=30) as client:
        body = {"prompt": "the cat", "max_tokens": 40, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as response:
            texts = response.iter_lines()
            next(texts)
            process.send_signal(signal.SIGTERM)
            assert [line for line in texts if line][-1] == "data: [DONE]"
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    (record,) = [json.loads(line) for line in out.splitlines()]
    assert record["status"] == 200 and record["completion_tokens"] == 40 and record["depth"] == 2
