"""`loopwright serve`: models behind OpenAI's HTTP interface. `loopwright explore`: the same on loopback, with its page opened."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from loopwright.checkpoints.load import generation_config_of
from loopwright.checkpoints.source import Source
from loopwright.cli.opening import find_device, find_dtype, open_model, open_tokenizer, probed
from loopwright.errors import one_line
from loopwright.generation.generation_config import check_offered, with_tokens_of
from loopwright.process import fitting_threads, say

PROMPTS = ("Once upon a time", "79+87=")  # a tokenizer of a few symbols knows no story
ROWS = 4  # sequences of explore at a time: one person asks for two answers at once
SHORTEST_KEY = 8  # characters; a shorter one is guessed


def serve(
    sources: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_env: str | None = None,
    max_rows: int = 16,
    max_tokens: int = 8192,
    depth: int | None = None,
    max_depth: int | None = None,
    max_new_tokens: int = 4096,
    max_choices: int = 64,
    max_queue: int = 64,
    max_body: int = 2**20,
    cors_origin: Sequence[str] = (),
    generation_config: str = "auto",
    allowed_host: Sequence[str] = (),
    drain_seconds: int = 30,
    device: str = "cpu",
    dtype: str = "float32",
    tokenizer: str | None = None,
    access_log: bool = True,
    on_listening: Callable[[str], object] | None = None,
) -> None:
    """Serves models until a signal comes. What can be wrong is found before any weights are read.

    `generation_config` fills in what requests leave open: each model's own ("auto"), nothing ("none", "vllm"), or that of a folder.
    `on_listening` is called with the address once the models are loaded; without `access_log` only errors are logged, to stderr.
    """
    try:
        from loopwright.serving.explore.views import EXPLORER
        from loopwright.serving.models import ServedModel
        from loopwright.serving.schema import ServerLimits
        from loopwright.serving.server import bind, run
    except ModuleNotFoundError as error:
        raise ValueError(f"serve: the package {error.name} is missing; pip install 'loopwright[serve]'") from None

    where, kind = find_device(device), find_dtype(dtype)
    named = name_sources(sources)
    key = _key(api_key_env)
    _check_origins(cors_origin)
    _check_hosts(allowed_host)
    limits = ServerLimits(max_body, max_new_tokens, max_choices, max_depth, max_queue)
    opened = {name: Source(source) for name, source in named.items()}
    for source in opened.values():
        source.need_weights("serve")
        source.config.check_depth(depth)
    configs = {name: _settings(source, generation_config) for name, source in opened.items()}
    listening = bind(host, port)  # before the weights: a port that is taken is known at once
    models: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(listening.close)
        for name, source in opened.items():
            words = open_tokenizer(source, tokenizer)
            apart = probed(name, words)
            stack.callback(apart.close)
            model = open_model(source, kind, where)
            if generation_config != "auto":
                model.generation_config = with_tokens_of(model.generation_config, configs[name])
            stack.enter_context(fitting_threads(model))
            models[name] = ServedModel(
                name, model, words, limits=limits, max_rows=max_rows, max_tokens=max_tokens, depth=depth, words=apart
            )
            stack.callback(models[name].engine.close)

        def ready() -> None:
            say(_welcome(models, listening.getsockname()[:2], api_key_env))
            if on_listening is not None:
                on_listening(_url(listening.getsockname()[:2]))

        run(
            models, listening,
            limits=limits, key=key, cors=cors_origin, allowed_hosts=(host, *allowed_host), drain_seconds=drain_seconds,
            access_log=access_log, site=EXPLORER, on_ready=ready,
        )  # fmt: skip
        say("loopwright: stopped; every request that was begun is answered")


def name_sources(words: Sequence[str]) -> dict[str, str]:
    """Returns the sources by the names they are served under: NAME=SOURCE, or the last part of a path or hub id."""
    named: dict[str, str] = {}
    for word in words:
        name, sign, source = word.partition("=")
        if not sign or Path(word).exists():
            name, source = Path(word).resolve().name if Path(word).exists() else word.rstrip("/").rpartition("/")[2], word
        if not name or not source:
            raise ValueError(f"model: {word!r}; write NAME=FOLDER, or the folder alone")
        if name in named:
            raise ValueError(f"model: two are called {name!r}; name them, as in one={named[name]} two={source}")
        named[name] = source
    return named


def _settings(source: Source, chosen: str) -> GenerationConfig | None:
    """Returns the generation config that requests to a model are filled in from, None where there is none."""
    if chosen in ("none", "vllm"):
        return None
    config = generation_config_of(source.folder if chosen == "auto" else Path(chosen))
    if config is None and chosen != "auto":
        raise ValueError(f"generation-config: {chosen!r} has no generation_config.json; allowed: auto, none, or a folder with one")
    if config is not None:
        check_offered(config, draws=config.do_sample is not False)
    return config


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key or len(key) < SHORTEST_KEY:
        state = "is not set" if not key else f"holds fewer than {SHORTEST_KEY} characters"
        raise ValueError(f"api-key-env: the variable {variable} {state}; put the key into it")
    return key


ORIGINS = {"*": "would let every web page ask", "null": "is what every sandboxed page calls itself"}


def _check_origins(origins: Sequence[str]) -> None:
    for origin in origins:
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#*\s]+", origin):
            wrong = ORIGINS.get(origin, "is no origin")
            raise ValueError(f"cors-origin: {origin!r} {wrong}; name the page's own, as in https://its.origin (no path)")


def _check_hosts(hosts: Sequence[str]) -> None:
    for host in hosts:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*|[0-9A-Fa-f:]+", host):
            raise ValueError(f"allowed-host: {host!r}; give a name or an address, as in gpu-box.example (no port)")


def _url(address: tuple[str, int]) -> str:
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{host}:{address[1]}"


def _example(model: Any) -> tuple[str | list[int], int]:
    """Returns a prompt that the model takes, and the tokens that fit after it."""
    text = model.readable(*PROMPTS)
    return ([0], model.max_model_len - 1) if text is None else (text, model.max_model_len - len(model.encode(text)))


def _welcome(models: dict[str, Any], address: tuple[str, int], api_key_env: str | None) -> str:
    """Returns what the user is told: where, what, how deep, and a line to try."""
    from loopwright.serving.guard import is_loopback

    url = _url(address)
    lines = [f"loopwright: serving on {url} (Ctrl-C or SIGTERM ends it, after the answers that were begun)"]
    for name, model in models.items():
        depths = f"depth {model.depth} (1 to {model.max_depth} by request)" if model.max_depth > 1 else "dense"
        lines.append(f"  {name}: {depths}, {model.max_model_len:,} tokens of context, {model.rows} sequences at a time")
    if not is_loopback(address[0]):
        guarded = "behind the key" if api_key_env else "WITHOUT a key: anybody who reaches this port may use it (--api-key-env)"
        lines.append(f"  open to other machines, {guarded}")
    first = next(iter(models.values()))
    prompt, room = _example(first)
    body = {"model": first.name, "prompt": prompt, "max_tokens": min(32, room), "temperature": 0}
    if first.max_depth > 1:
        body["depth"] = first.depth
    bearer = f' -H "Authorization: Bearer ${api_key_env}"' if api_key_env else ""
    asked = json.dumps(body).replace("'", "\\u0027")
    lines.append(f"  explore it in a browser: {url}/")
    lines += ["  try:", f"  curl {url}/v1/completions -H 'Content-Type: application/json'{bearer} -d '{asked}'"]
    return "\n".join(one_line(line) if not line.startswith(" ") else "  " + one_line(line) for line in lines)


def explore(
    sources: Sequence[str],
    *,
    port: int = 8000,
    browser: bool = True,
    depth: int | None = None,
    max_depth: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    tokenizer: str | None = None,
) -> None:
    """Serves models on loopback and opens the explorer, until Ctrl-C."""
    for source in name_sources(sources).values():
        Source(source).need_weights("explore")
    serve(
        sources,
        port=port, depth=depth, max_depth=max_depth, max_rows=ROWS, device=device, dtype=dtype, tokenizer=tokenizer,
        access_log=False, on_listening=_open if browser else None,
    )  # fmt: skip


def _open(url: str) -> None:
    """Opens the page in a thread: some browsers hold the call up until they are closed."""

    def ask() -> None:
        if not webbrowser.open(f"{url}/"):
            say(f"loopwright: no browser was found; open {url}/")

    threading.Thread(target=ask, name="loopwright-browser", daemon=True).start()
