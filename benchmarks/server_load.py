"""P20 by a load generator that is not ours: `vllm bench serve` against our server, beside the engine called in process.

    sh deploy/vllm/environment.sh FOLDER && python -m benchmarks.server_load FOLDER/bin/vllm

The generator keeps 32 streams open until 160 requests are answered; the engine gets as many requests at once. As in server.py, the
processor time of this process holds all that HTTP costs, and none of what the generator does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import threading
from pathlib import Path

import torch

from benchmarks.decode import models
from benchmarks.pairs import report
from benchmarks.server import NEW, PROMPT, STREAMS, clocked, words
from loopwright.serving.models import ServedModel
from loopwright.serving.schema import ServerLimits
from loopwright.serving.server import bind, make_server

REQUESTS = 5 * STREAMS
NAME = "ouro-small"


def main(vllm: str) -> None:
    """Prints the generator's own report, then the ratio of three runs."""
    torch.set_num_threads(1)
    model, limits = models()[NAME].eval(), ServerLimits(queue=REQUESTS)
    tokenizer = words(model.config.vocab_size)
    served = ServedModel(NAME, model, tokenizer, limits=limits, max_rows=STREAMS, max_tokens=STREAMS * 64)
    server, listening = make_server({NAME: served}, lambda record: None, limits=limits), bind("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            for run in range(4):
                processor, wall = clocked(lambda seed=run: offline(served, seed))
                result, cost = load(vllm, Path(folder), listening.getsockname()[1], seed=run)
                if run:  # the first warms up
                    rates = {"http_tokens_per_s": result["output_throughput"], "engine_tokens_per_s": REQUESTS * NEW / wall}
                    ratios = {"ratio": processor / cost, "wall_ratio": rates["http_tokens_per_s"] / rates["engine_tokens_per_s"]}
                    shape = {"model": NAME, "streams": STREAMS, "requests": REQUESTS, "prompt": PROMPT, "new_tokens": NEW}
                    report("P20 vllm bench serve / engine in process", {**shape, **ratios, **rates, "target": ">= 0.95"})
    finally:
        server.should_exit = True
        thread.join()
        served.engine.close()


def offline(served: ServedModel, seed: int) -> None:
    """Asks the engine itself for as many answers."""
    draws = torch.Generator().manual_seed(seed)
    prompts = torch.randint(0, served.engine.model.config.vocab_size, (REQUESTS, PROMPT), generator=draws).tolist()
    for request in [served.engine.submit(prompt, max_new_tokens=NEW, ignore_eos=True) for prompt in prompts]:
        request.result()


def load(vllm: str, folder: Path, port: int, *, seed: int) -> tuple[dict[str, float], float]:
    """Returns what the generator measured, and the processor time that this process took in the time it measured."""
    command = [
        vllm, "bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{port}", "--endpoint", "/v1/completions",
        "--model", NAME, "--tokenizer", str(folder), "--dataset-name", "random", "--random-input-len", str(PROMPT),
        "--random-output-len", str(NEW), "--num-prompts", str(REQUESTS), "--max-concurrency", str(STREAMS), "--ignore-eos",
        "--temperature", "0", "--seed", str(seed), "--disable-tqdm", "--save-result", "--result-dir", str(folder),
        "--result-filename", "result.json",
    ]  # fmt: skip
    done: list[subprocess.CompletedProcess[str]] = []
    cost, _ = clocked(lambda: done.append(subprocess.run(command, capture_output=True, text=True, check=False)))
    if done[0].returncode:
        raise SystemExit(f"{' '.join(command)}\n{done[0].stdout[-2000:]}\n{done[0].stderr[-2000:]}")
    print(done[0].stdout[done[0].stdout.index("====") :], flush=True)
    result = json.loads((folder / "result.json").read_text())
    assert result["completed"] == REQUESTS, f"{result['completed']} of {REQUESTS} answered"
    return result, cost


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("vllm", help="the program vllm")
    main(asked.parse_args().vllm)
