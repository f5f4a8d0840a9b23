"""Our models in vLLM beside our own `generate`: greedy tokens of six prompts, each asked twice, by preset, depth and devices.

    sh deploy/vllm/environment.sh FOLDER && FOLDER/bin/python deploy/vllm/compare.py [--rows rows.json] [--only NAME …]

Tiny presets with every weight moved, float32. Each row starts vLLM in a process of its own. The second time, what fits whole blocks
of a prompt comes from vLLM's prefix cache.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LAST = {"universal": {"read_out": "last"}}  # vLLM reads the last step alone
PRESETS = ("ouro-1.4b", "huginn", "retrofit-llama-1b", "asura", "ouroboros-qwen2.5-3b", "universal")
CASES: dict[str, dict[str, Any]] = {
    **{name: {"preset": name, "changes": LAST.get(name, {})} for name in PRESETS},
    "retrofit-olmo2-1b": {"preset": "retrofit-olmo2-1b"},
    "relaxed": {"preset": "relaxed"},
    "stars-addition": {"preset": "stars-addition"},
    "huginn, depth 7 at the start": {"preset": "huginn", "depth": 7},
    "ouro-1.4b, sliding window 24": {"preset": "ouro-1.4b", "changes": {"sliding_window": 24}},
    "retrofit-llama-1b, two ranks": {"preset": "retrofit-llama-1b", "ranks": 2},
    "huginn, two ranks": {"preset": "huginn", "ranks": 2},
    "ouro-1.4b, depths 1 to 4 by request": {"preset": "ouro-1.4b", "by_request": True},
    "huginn, depths 1 to 4 by request": {"preset": "huginn", "by_request": True},
}
LENGTHS = (1, 5, 12, 34, 50, 70)
NEW, BLOCK = 16, 32
HEAD = 32  # the least that vLLM's kernels for CPUs take; tiny presets have 8


def main() -> None:
    """Runs each case in a process of its own and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=Path, help="a JSON file for the rows")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        print(json.dumps(compare(CASES[given.case])))
        return
    rows = []
    print(f"{'model':<40}{'depth':>6}{'ranks':>6}{'equal':>8}{'again':>8}{'cached':>8}{'start s':>9}")
    for name in given.only:
        row = {"case": name, **run(name)}
        rows.append(row)
        if "refused" in row:
            print(f"{name:<40}{row['refused']}", flush=True)
        else:
            equal, again = (f"{row[key]}/{len(LENGTHS)}" for key in ("equal", "again"))
            print(
                f"{name:<40}{row['depth']:>6}{row['ranks']:>6}{equal:>8}{again:>8}{row['cached']:>8}{row['start_seconds']:>9.1f}",
                flush=True,
            )
        if given.rows:
            given.rows.write_text("[\n" + ",\n".join(json.dumps(one) for one in rows) + "\n]\n")


def run(name: str) -> dict[str, Any]:
    """Returns the row of one case; its process is alone with vLLM's global state."""
    two = CASES[name].get("ranks", 1) > 1
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        **({"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if two else {}),
    }
    done = subprocess.run(
        [sys.executable, __file__, "--case", name], env={**settings, **os.environ}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name}: failed\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))


def compare(case: dict[str, Any]) -> dict[str, Any]:
    """Returns how many prompts vLLM continues as `generate` does, the first time and again."""
    import torch
    from vllm import LLM, SamplingParams
    from vllm.exceptions import VLLMValidationError

    model = moved(case["preset"], case.get("changes", {}))
    depth, ranks = case.get("depth", model.config.depth), case.get("ranks", 1)
    prompts = [torch.randint(0, model.config.vocab_size, (length,)).tolist() for length in LENGTHS]
    depths = [1 + i % depth if case.get("by_request") else depth for i in range(len(prompts))]
    expected = [continued(model, prompt, steps) for prompt, steps in zip(prompts, depths, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        begun = time.perf_counter()
        llm = LLM(
            folder, skip_tokenizer_init=True, dtype="float32", max_model_len=128, max_num_seqs=8, block_size=BLOCK, seed=0,
            hf_overrides={"depth": depth}, tensor_parallel_size=ranks, distributed_executor_backend="mp" if ranks > 1 else "uni",
        )  # fmt: skip
        seconds = time.perf_counter() - begun
        greedy = [
            SamplingParams(
                temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False,
                extra_args={"depth": steps} if case.get("by_request") else None,
            )
            for steps in depths
        ]  # fmt: skip
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        try:
            first, second = llm.generate(asked, greedy), llm.generate(asked, greedy)
        except VLLMValidationError as error:
            return {"depth": depth, "ranks": ranks, "refused": str(error)}
    equal, again = (
        sum(list(answer.outputs[0].token_ids) == tokens for answer, tokens in zip(answers, expected, strict=True))
        for answers in (first, second)
    )
    runner = "V2" if llm.llm_engine.vllm_config.use_v2_model_runner else "V1"
    cached = sum(answer.num_cached_tokens or 0 for answer in second)
    shape = {"depth": depth, "ranks": ranks, "runner": runner, "prompts": len(prompts), "new_tokens": NEW}
    return {**shape, "equal": equal, "again": again, "cached": cached, "start_seconds": round(seconds, 1)}


def moved(preset: str, changes: dict[str, Any]) -> Any:
    """Returns a tiny preset whose every weight was moved, so that no part is without effect."""
    import torch

    import loopwright as lw

    torch.manual_seed(0)
    model = lw.build(f"{preset}-tiny", head_dim=HEAD, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = parameter.std().item() if parameter.numel() > 1 else 0.0
            parameter.add_(torch.randn_like(parameter) * 0.5 * max(spread, 0.1))
    return model.eval()


def continued(model: Any, prompt: list[int], depth: int) -> list[int]:
    """Returns the tokens that our own `generate` adds."""
    import torch

    ids = torch.tensor([prompt])
    seen = torch.ones_like(ids)  # said, because `generate` takes token 0 for padding
    ids = model.generate(
        ids, attention_mask=seen, depth=depth, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return ids[0, len(prompt) :].tolist()


if __name__ == "__main__":
    main()
