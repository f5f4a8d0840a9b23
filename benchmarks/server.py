"""P20: tokens/s of 32 concurrent streams over HTTP, beside the engine called in process.

The server runs in this process and its clients in another one, so that the processor time of this process holds what HTTP costs
(parsing, text, JSON, events, sockets) and not what the clients do. That counts every bit of it as lost, also where an idle core
would do it beside the engine; wall time is given too.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import loopwright as lw
from benchmarks.decode import models
from benchmarks.pairs import no_options, report
from loopwright.serving.models import ServedModel
from loopwright.serving.schema import ServerLimits
from loopwright.serving.server import bind, make_server

STREAMS, PROMPT, NEW = 32, 16, 16


def main(pairs: int = 5) -> None:
    """Prints P20 for both sizes."""
    torch.set_num_threads(1)
    for name, model in models().items():
        compare_with_engine(name, model.eval(), pairs)


def compare_with_engine(name: str, model: lw.LoopedForCausalLM, pairs: int) -> None:
    """Prints P20 for one model, over alternating pairs."""
    limits = ServerLimits(queue=STREAMS)
    served = ServedModel(name, model, words(model.config.vocab_size), limits=limits, max_rows=STREAMS, max_tokens=STREAMS * 64)
    server, listening = make_server({name: served}, lambda record: None, limits=limits), bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    clients = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.server", str(listening.getsockname()[1])], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    rows = []
    try:
        for number in range(pairs + 1):
            http, alone = clocked(lambda n=number: by_http(clients, n)), clocked(lambda n=number: in_process(served, n))
            if number:  # the first warms up
                rows.append((alone[0] / http[0], alone[1] / http[1], STREAMS * NEW / http[1]))
    finally:
        clients.communicate("\n")
        server.should_exit = True
        thread.join()
        served.engine.close()
    low, middle, high = statistics.quantiles([row[0] for row in rows], n=4)
    wall, rate = (statistics.median(column) for column in list(zip(*rows, strict=True))[1:])
    shape = {"model": name, "streams": STREAMS, "prompt": PROMPT, "new_tokens": NEW, "pairs": pairs, "target": ">= 0.95"}
    numbers = {"ratio": middle, "ratio_q1": low, "ratio_q3": high, "wall_ratio": wall, "http_tokens_per_s": rate}
    report("P20 HTTP / engine in process, tokens/s", {**shape, **numbers})


def prompts(number: int) -> list[list[int]]:
    """Returns the prompts of one run; no two runs share one, so that none is taken from kept rows."""
    return [[2 + number, 2 + stream, *range(2, PROMPT)] for stream in range(STREAMS)]


def in_process(served: ServedModel, number: int) -> None:
    """Asks the engine itself."""
    requests = [served.engine.submit(ids, max_new_tokens=NEW, ignore_eos=True) for ids in prompts(number)]
    for request in requests:
        request.result()


def by_http(clients: subprocess.Popen[str], number: int) -> None:
    """Lets the other process ask, and waits for its answer."""
    assert clients.stdin is not None and clients.stdout is not None
    clients.stdin.write(f"{number + 100}\n")
    clients.stdin.flush()
    tokens = int(clients.stdout.readline())
    assert tokens == STREAMS * NEW, f"{tokens} tokens came"


def clocked(run: Callable[[], object]) -> tuple[float, float]:
    """Returns the processor and the wall time of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def words(vocabulary: int) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of as many words."""
    inner = Tokenizer(WordLevel({f"w{i}": i for i in range(vocabulary)}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0")


async def stream(port: int, ids: list[int]) -> int:
    """Returns how many tokens a stream brought."""
    body = json.dumps({"prompt": ids, "max_tokens": NEW, "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}}).encode()  # fmt: skip
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    tokens = 0
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            usage = json.loads(line[6:])["usage"]
            tokens = usage["completion_tokens"] if usage else tokens
    writer.close()
    return tokens


def ask_for_all(port: int) -> None:
    """The clients' process: for each number on stdin asks for all streams at once, and writes how many tokens came."""
    while number := sys.stdin.readline().strip():

        async def all_streams(number: int = int(number)) -> list[int]:
            return await asyncio.gather(*(stream(port, ids) for ids in prompts(number)))

        print(sum(asyncio.run(all_streams())), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] and sys.argv[1].isdigit():  # as this file starts itself, with the server's port
        ask_for_all(int(sys.argv[1]))
    else:
        no_options(__doc__)
        main()
