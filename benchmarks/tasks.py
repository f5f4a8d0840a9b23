"""lm-eval's tasks at depths 1, 2, 4, 8: `evaluate --tasks` against lm-eval's own `hf` model, run once for each depth.

    python -m benchmarks.tasks MODEL FOLDER [--questions 40] [--pairs 5]

MODEL is a looped model's folder, FOLDER holds the questions of arc_easy and hellaswag as JSON lines (see docs/evaluation.md). Both
sides get the same loaded questions, one thread and rows in batches of 8. Needs the extra `eval`.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import loopwright as lw
from benchmarks.pairs import compare, report
from loopwright.evaluation import harness

DEPTHS = [1, 2, 4, 8]
TASKS = ["arc_easy", "hellaswag"]
BATCH = 8


def hf_results(model: lw.LoopedForCausalLM, tokenizer: Any, loaded: Any, questions: int) -> list[Any]:
    """Returns what lm-eval's own model gives at each depth."""
    from lm_eval.models.huggingface import HFLM

    own, found = model.config.depth, []
    try:
        for depth in DEPTHS:
            model.config.depth = depth
            theirs = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=BATCH)
            found.append(harness._results(theirs, loaded, questions, 0))
    finally:
        model.config.depth = own
    return found


def our_results(model: lw.LoopedForCausalLM, tokenizer: Any, loaded: Any, questions: int) -> list[Any]:
    """Returns what the one pass gives at each depth."""
    ours = harness._harness(model, tokenizer, DEPTHS, BATCH, None)
    return [harness._results(ours, loaded, questions, place) for place in range(len(DEPTHS))]


def agreement(ours: list[Any], theirs: list[Any], task: str) -> dict[str, object]:
    """Returns how far log-likelihoods are apart, and whether every accuracy is the same."""
    apart = [
        (abs(x[0] - y[0]), abs(x[0] - y[0]) / abs(y[0]))
        for a, b in zip(ours, theirs, strict=True)
        for s, t in zip(a["samples"][task], b["samples"][task], strict=True)
        for x, y in zip(s["filtered_resps"], t["filtered_resps"], strict=True)
    ]
    same = [
        all(a["results"][task][f"{name},none"] == b["results"][task][f"{name},none"] for name in ("acc", "acc_norm"))
        for a, b in zip(ours, theirs, strict=True)
    ]
    return {"log_likelihoods": len(apart), "largest_difference": max(x for x, _ in apart),
            "largest_relative": max(x for _, x in apart), "equal_accuracies": all(same)}  # fmt: skip


def main() -> None:
    """Prints one row per task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder")
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    model, tokenizer = lw.load(given.model), lw.tokenizer(given.model)
    for task in TASKS:
        with harness._quiet():
            loaded, _ = harness._load([task], given.folder, None)
            sides = (our_results, hf_results)
            kept = [side(model, tokenizer, loaded, given.questions) for side in sides]
            ours, theirs = (partial(side, model, tokenizer, loaded, given.questions) for side in sides)
            times = compare(ours, theirs, pairs=given.pairs, warm_up=0)
        facts = {"model": Path(given.model).name, "task": task, "questions": given.questions, "depths": DEPTHS}
        report("tasks at all depths, one pass / hf model per depth", {**facts, **times, **agreement(kept[0], kept[1], task)})


if __name__ == "__main__":
    main()
