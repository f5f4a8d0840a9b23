"""The server attacked (S1 fuzz, S3 overload, S4 disconnects, S5 many streams), on loopback, bounded in count and time.

python -m pytest -m attack -s tests/attack/test_server.py

S2, limits refused before any work, is tests/serving/test_app.py. REQUESTS=1000 makes the fuzz shorter.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.attack.http_client import Line, memory_mib, request_bytes, send_anything, server_process
from tests.attack.mutate import as_json, damage, mutate
from tests.generation.mix import make
from tests.generation.tiny import save_model
from tests.serving.live import live, offline

REQUESTS = int(os.environ.get("REQUESTS", "100000"))
TEXT: dict[str, Any] = {
    "model": "t", "prompt": "the cat sat", "max_tokens": 2, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "n": 1,
    "seed": 3, "stop": ["w9"], "stop_token_ids": [7], "presence_penalty": 0.5, "frequency_penalty": 0.1, "repetition_penalty": 1.1,
    "logit_bias": {"5": 1.5}, "logprobs": 1, "echo": True, "depth": 2, "step_tokens": 0, "return_depth_used": True,
    "return_token_ids": True, "state_seed": 5, "ignore_eos": True, "user": "me",
    "min_tokens": 1, "skip_special_tokens": False, "best_of": 1, "store": False, "metadata": {"a": "b"}, "service_tier": "auto",
}  # fmt: skip
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "the"},
        {"role": "assistant", "content": None, "tool_calls": None, "refusal": None},
        {"role": "user", "content": [{"type": "text", "text": "cat"}]},
    ],
    "max_completion_tokens": 2, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2,
    "exit": {"kind": "change", "threshold": 0.5}, "exit_keys": "copy", "depth": 3, "response_format": {"type": "text"},
    "tools": [], "tool_choice": "none", "modalities": ["text"], "add_generation_prompt": True, "parallel_tool_calls": True,
}  # fmt: skip
DRAFT: dict[str, Any] = {"prompt": [[2, 3], [4]], "max_tokens": 3, "depth": 3, "draft_depth": 1, "draft_tokens": 2, "exit": None}
TOKENIZE: dict[str, Any] = {"prompt": "the cat", "add_special_tokens": False, "model": "t"}
VALID = [("/v1/completions", TEXT), ("/v1/chat/completions", CHAT), ("/v1/completions", DRAFT), ("/v1/tokenize", TOKENIZE)]


def by_schema(draw: random.Random) -> tuple[str, bytes]:
    """Returns a path and a body in which some fields are hostile."""
    path, body = draw.choice(VALID)
    changed = {name: value for name, value in body.items() if draw.random() < 0.7 or name in ("prompt", "messages")}
    return path, as_json(mutate(changed, draw, draw.choice((0, 1, 1, 1, 2, 4)))).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = {"hidden_size": 16, "intermediate_size": 16, "prelude_layers": 1, "core_layers": 1, "coda_layers": 1}
    return save_model(tmp_path_factory.mktemp("attacked") / "t", chat=True, **small)


@pytest.mark.attack
def test_fuzz(folder: Path) -> None:
    """S1: no 5xx, no hang, flat memory; every refusal is one line with a reason."""
    statuses: Counter[str] = Counter()
    wrong: list[str] = []
    memory: list[float] = []
    done = [0]

    async def attack(port: int, number: int, count: int) -> None:
        draw, line = random.Random(number), Line(port)
        for _ in range(count):
            way = draw.random()
            try:
                if way < 0.7:
                    path, body = by_schema(draw)
                    status, _, said = await line.ask(request_bytes(body, path))
                    found, kind = [status], "schema"
                elif way < 0.85:
                    path, body = by_schema(draw)
                    body = damage(body, draw)
                    status, _, said = await line.ask(request_bytes(body, path))
                    found, kind = [status], "body"
                else:
                    path, body = by_schema(draw)
                    found, said, kind = await send_anything(port, damage(request_bytes(body, path), draw)), b"", "http"
            except TimeoutError:
                wrong.append(f"hang: {body[:300]!r}")
                line.close()
                continue
            done[0] += 1
            for status in found or [0]:
                statuses[f"{kind} {status or 'closed'}"] += 1
                if status >= 500:
                    wrong.append(f"{status}: {body[:300]!r} {said[:300]!r}")
                if kind != "http" and 400 <= status < 500:
                    message = json.loads(said)["error"]["message"]
                    if not message or "\n" in message:
                        wrong.append(f"{status} without a line: {said[:300]!r}")
        line.close()

    async def all_of_them(port: int, process: Any) -> None:
        tasks = [asyncio.create_task(attack(port, number, REQUESTS // 16)) for number in range(16)]
        marks = [REQUESTS * part // 10 for part in range(1, 11)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.2)
            while marks and done[0] >= marks[0] * 0.98:
                memory.append(round(memory_mib(process), 1))
                marks.pop(0)
        await asyncio.gather(*tasks)

    options = ("--max-new-tokens", "2", "--depth", "2", "--max-depth", "3", "--max-choices", "4", "--max-tokens", "2000")
    with server_process(folder, *options) as (port, process):
        begun = time.perf_counter()
        asyncio.run(all_of_them(port, process))
        took = time.perf_counter() - begun
        status, _, said = asyncio.run(Line(port).ask(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"))
        _, _, page = asyncio.run(Line(port).ask(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n"))
    print(f"S1: {done[0]:,} requests in {took:.0f} s; {dict(sorted(statuses.items()))}")
    print(f"S1: memory in MiB at every tenth: {memory}; wrong: {len(wrong)}")
    assert wrong == [] and status == 200, (wrong[:5], said)
    assert b'loopwright_open_sequences{model="t"} 0.0' in page
    assert memory[-1] <= memory[2] * 1.05 + 5


@pytest.mark.attack
def test_overload(folder: Path) -> None:
    """S3: ten times what can be served: the rest is told to come later, and who is let in waits no longer."""
    rows, queue, tokens = 4, 4, 40
    body = request_bytes(as_json({"prompt": "the cat sat", "max_tokens": tokens, "ignore_eos": True, "depth": 4}))

    async def closed_loop(port: int, clients: int, seconds: float) -> list[float]:
        times: list[float] = []
        end = time.perf_counter() + seconds

        async def client() -> None:
            line = Line(port)
            while time.perf_counter() < end:
                begun = time.perf_counter()
                status, _, _ = await line.ask(body)
                assert status == 200
                times.append(time.perf_counter() - begun)
            line.close()

        await asyncio.gather(*(client() for _ in range(clients)))
        return times

    async def open_loop(port: int, rate: float, seconds: float) -> tuple[list[float], Counter[int], list[bytes]]:
        times, statuses, waits, draw = [], Counter[int](), [], random.Random(0)

        async def one() -> None:
            line, begun = Line(port), time.perf_counter()
            status, headers, _ = await line.ask(body)
            statuses[status] += 1
            if status == 200:
                times.append(time.perf_counter() - begun)
            elif status == 429:
                waits.append(headers.get(b"retry-after", b""))
            line.close()

        tasks, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end:
            tasks.append(asyncio.create_task(one()))
            await asyncio.sleep(draw.expovariate(rate))
        await asyncio.gather(*tasks)
        return times, statuses, waits

    with server_process(folder, "--max-rows", str(rows), "--max-queue", str(queue)) as (port, _):
        asyncio.run(closed_loop(port, rows + queue, 3))  # warm-up
        full = asyncio.run(closed_loop(port, rows + queue, 20))
        rate = len(full) / 20
        times, statuses, waits = asyncio.run(open_loop(port, 10 * rate, 20))
    p99 = [statistics.quantiles(one, n=100)[98] for one in (full, times)]
    print(f"S3: at capacity {rate:.1f} requests/s, p99 {p99[0]:.2f} s; at {10 * rate:.0f} requests/s {dict(statuses)}, p99")
    print(f"S3: of accepted {p99[1]:.2f} s, ratio {p99[1] / p99[0]:.2f}; Retry-After {sorted(set(waits))}")
    assert set(statuses) == {200, 429} and all(wait.isdigit() and int(wait) >= 1 for wait in waits)
    assert p99[1] <= 1.5 * p99[0]


@pytest.mark.attack
def test_disconnects() -> None:
    """S4: 1,000 clients that go at random; no row or cell is lost, and the others' answers are the same."""
    model = make("huginn-tiny", hidden_size=16, intermediate_size=16)
    expected = {(prompt, depth): offline(model, [prompt, 5], depth, 6) for prompt in range(2, 8) for depth in (1, 3, 5)}
    gone, served, wrong = [0], [0], [0]

    async def leaver(port: int, number: int, count: int) -> None:
        draw = random.Random(number)
        for _ in range(count):
            body = {"prompt": [draw.randrange(96)], "max_tokens": 60, "ignore_eos": True, "stream": draw.random() < 0.6}
            body |= {"depth": draw.randint(1, 6)} | draw.choice([{}, {"exit": "change"}, {"n": 2}])
            if body["depth"] > 1 and "exit" not in body and draw.random() < 0.3:
                body["draft_depth"] = 1
            raw = request_bytes(as_json(body))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(raw if draw.random() < 0.9 else raw[: draw.randrange(len(raw))])
            await asyncio.sleep(draw.random() * 0.1)
            if body["stream"] and draw.random() < 0.7:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(draw.randint(1, 2000)), 1)
            if draw.random() < 0.5:
                writer.transport.abort()
            writer.close()
            gone[0] += 1

    async def stayer(port: int, number: int, until_gone: int) -> None:
        draw, line = random.Random(number), Line(port)
        while gone[0] < until_gone:
            prompt, depth = draw.choice(list(expected))
            body = {
                "prompt": [prompt, 5],
                "max_tokens": 6,
                "ignore_eos": True,
                "depth": depth,
                "temperature": 0,
                "return_token_ids": True,
            }
            status, _, said = await line.ask(request_bytes(as_json(body)))
            served[0] += 1
            wrong[0] += status != 200 or json.loads(said)["choices"][0]["token_ids"] != expected[prompt, depth]
        line.close()

    async def both(port: int) -> None:
        await asyncio.gather(*(leaver(port, n, 125) for n in range(8)), *(stayer(port, 100 + n, 1000) for n in range(3)))

    with live({"t": model}, max_rows=12, max_tokens=900) as server:
        asyncio.run(both(server.port))
        idle = server.idle()
        statuses = Counter(record["status"] for record in server.records if "status" in record)
    print(f"S4: {gone[0]} disconnects, {served[0]} others, {wrong[0]} wrong; all rows and cells free: {idle}; {dict(statuses)}")
    assert (gone[0], wrong[0], idle) == (1000, 0, True) and not any(status >= 500 for status in statuses)


@pytest.mark.attack
def test_concurrent_streams() -> None:
    """S5: 64 streams at once, at mixed depths, lengths and ways of decoding, are the offline greedy tokens."""
    model, draw = make("huginn-tiny"), random.Random(0)
    wishes = [
        ([draw.randrange(96) for _ in range(draw.randint(1, 20))], draw.randint(1, 8), draw.randint(5, 30)) for _ in range(64)
    ]
    expected = [offline(model, *wish) for wish in wishes]

    async def ask(port: int, prompt: list[int], depth: int, new: int) -> tuple[list[int], list[int]]:
        body = {"prompt": prompt, "depth": depth, "max_tokens": new, "temperature": 0, "ignore_eos": True, "stream": True}
        extra = {"draft_depth": 1} if depth > 1 and len(prompt) % 3 == 0 else {}
        raw = request_bytes(as_json(body | extra | {"return_token_ids": True, "return_depth_used": True}))
        status, _, said = await Line(port).ask(raw)
        assert status == 200, said
        chunks = [json.loads(line[6:]) for line in said.split(b"\n\n") if line.startswith(b"data: {")]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        return [token for one in choices for token in one["token_ids"]], [step for one in choices for step in one["depth_used"]]

    async def all_of_them(port: int) -> list[tuple[list[int], list[int]]]:
        return await asyncio.gather(*(ask(port, *wish) for wish in wishes))

    with live({"t": model}, max_rows=64, max_tokens=6000) as server:
        answers = asyncio.run(all_of_them(server.port))
    right = sum(tokens == wanted for (tokens, _), wanted in zip(answers, expected, strict=True))
    depths = sum(set(steps) == {wish[1]} for (_, steps), wish in zip(answers, wishes, strict=True))
    print(f"S5: {right} of 64 concurrent streams equal the offline tokens, {depths} of 64 at their own depth")
    assert right == depths == 64
