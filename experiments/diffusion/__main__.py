"""`python -m experiments.diffusion DATA`: trains the model if it is missing, and sets the sampler beside plain greedy decoding.

DATA holds `models/stories260K` and `corpus/`. The run goes to runs/diffusion, rows and table to experiments/results/diffusion.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import loopwright as lw
from experiments.diffusion.sampler import Forcing, force
from loopwright.cli.runs import train
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluation.text import read_passages

RESULTS = Path(__file__).parents[1] / "results" / "diffusion"
DEPTH, PROMPT, NEW, PROMPTS, TIMED, ROUNDS = 16, 24, 32, 12, 3, 3
TEXT = "corpus/test.jsonl.gz"
PAPER = {"inner": 4, "rounds": 4, "threshold": 0.03, "noise": 0.5, "average": 0.1, "wavefront": 128}


def plain(depth: int) -> Forcing:
    """Returns the settings with which the sampler is plain greedy decoding."""
    return Forcing(inner=depth, rounds=1, noise=0.0, average=0.0, wavefront=1)


SETTINGS: dict[str, Forcing] = {
    **{f"plain, depth {depth}": plain(depth) for depth in (1, 2, 4, 8)},
    "the paper's": Forcing(**PAPER),
    "without noise": Forcing(**PAPER | {"noise": 0.0}),
    "without noise and average": Forcing(**PAPER | {"noise": 0.0, "average": 0.0}),
    "threshold 0.1": Forcing(**PAPER | {"threshold": 0.1}),
    "threshold 0.3": Forcing(**PAPER | {"threshold": 0.3}),
    "wavefront 1": Forcing(**PAPER | {"wavefront": 1}),
    "wavefront 4": Forcing(**PAPER | {"wavefront": 4}),
    "rounds of 2 steps, at most 8": Forcing(**PAPER | {"inner": 2, "rounds": 8}),
}


def main() -> None:
    """Trains, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--run", type=Path, default=Path("runs/diffusion"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if not asked.run.exists():
        files = {"files": "corpus/train-00.jsonl.gz", "valid_files": "corpus/valid.jsonl.gz", "tokenizer": "models/stories260K"}
        words = [f"data.{field}={asked.data / path}" for field, path in files.items()]
        train(str(Path(__file__).parent / "text.yaml"), words, out=str(asked.run))
    passages = read_passages("test", asked.data / TEXT, Tokenizer(asked.data / "models" / "stories260K"), 128).drawn(PROMPTS)
    rows = measure(lw.load(asked.run), [row.ids[: PROMPT + NEW] for row in passages.rows])
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (RESULTS / "table.md").write_text(table(rows))


def measure(model: lw.LoopedForCausalLM, texts: Sequence[Sequence[int]], rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Returns a row for each setting: what it says beside plain greedy decoding, and what it costs.

    Times are ratios of processor time on one thread to plain decoding by the same code, timed in turn on a few prompts; medians of
    some rounds.
    """
    prompts = [list(text[:PROMPT]) for text in texts]
    expected = [force(model, prompt, NEW, plain(DEPTH)).tokens for prompt in prompts]
    held = statistics.fmean(continuation_loss(model, text[:PROMPT], list(text[PROMPT:])) for text in texts)
    rows = [{"setting": f"plain, depth {DEPTH}", "held_out_loss": held, **told(model, prompts, expected, expected)}]
    ratios: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(rounds):
        whole = timed(model, prompts[:TIMED], plain(DEPTH))
        for name, how in SETTINGS.items():
            ratios[name].append(timed(model, prompts[:TIMED], how) / whole)
    for name, how in SETTINGS.items():
        made = [force(model, prompt, NEW, how) for prompt in prompts]
        row = {"setting": name, **vars(how), **told(model, prompts, [one.tokens for one in made], expected)}
        row |= {"steps": sum(one.steps for one in made) / len(made) / (NEW - 1)}
        row |= {"position_steps": sum(one.position_steps for one in made) / len(made) / (NEW - 1)}
        rows.append(row | {"time": statistics.median(ratios[name]), "time_low": min(ratios[name]), "time_high": max(ratios[name])})
    return [{key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()} for row in rows]


def timed(model: lw.LoopedForCausalLM, prompts: Sequence[list[int]], how: Forcing) -> float:
    """Returns the processor time of all answers."""
    begin = time.process_time()
    for prompt in prompts:
        force(model, prompt, NEW, how)
    return time.process_time() - begin


def told(
    model: lw.LoopedForCausalLM, prompts: Sequence[list[int]], answers: Sequence[list[int]], expected: Sequence[list[int]]
) -> dict[str, float]:
    """Returns how far answers agree with the expected ones, and their loss under the model at full depth, in nats a token."""
    pairs = list(zip(answers, expected, strict=True))
    prefix = [next((i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b), NEW) for pair in pairs]
    losses = [continuation_loss(model, prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
    return {
        "equal_answers": sum(a == b for a, b in pairs) / len(pairs),
        "equal_before_first_difference": statistics.fmean(prefix) / NEW,
        "own_loss": statistics.fmean(losses), "repeated": statistics.fmean(repeated(answer) for answer in answers),
    }  # fmt: skip


def repeated(tokens: Sequence[int]) -> float:
    """Returns the share of groups of three tokens that stood in the text before."""
    groups = [tuple(tokens[i : i + 3]) for i in range(len(tokens) - 2)]
    return 1 - len(set(groups)) / len(groups)


@torch.no_grad()
def continuation_loss(model: lw.LoopedForCausalLM, prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Returns the mean loss of a continuation in one pass at full depth."""
    ids = torch.tensor([[*prompt, *answer]])
    logs = model(ids, depth=DEPTH).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
    return -float(logs.gather(1, ids[0, len(prompt) :, None]).mean())


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as a markdown table."""
    heads = [
        "",
        "answers equal",
        "equal before the first difference",
        "own loss",
        "repeated",
        "core steps a token",
        "of positions",
        "time",
    ]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in rows:
        cells = [row["setting"], f"{row['equal_answers']:.2f}", f"{row['equal_before_first_difference']:.2f}"]
        cells += [f"{row['own_loss']:.3f}", f"{row['repeated']:.2f}"]
        if "time" in row:
            cells += [f"{row['steps']:.2f}", f"{row['position_steps']:.1f}"]
            cells += [f"{row['time']:.2f} ({row['time_low']:.2f}–{row['time_high']:.2f})"]
        else:
            cells += [f"{DEPTH:.2f}", f"{DEPTH:.1f}", "1"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
