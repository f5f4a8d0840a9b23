"""What docs/stars.md and docs/when-to-loop.md say about a looped language model on text and chats."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import mean

from experiments.pages import Result, by_label, last_of_each, words
from experiments.readme.rows import RESULTS, line

ARMS = {"fixed": "depth 4", "fixed-penalty": "depth 4, penalty", "random": "random depth", "stars": "random depth, penalty"}
TOKENS = 2_910_955  # of the training text
TEXTS = {"heal": "looped, at depth 4", "unlooped": "run once, equal tokens", "unlooped-flops": "run once, equal FLOPs"}


@cache
def runs_of() -> dict[str, list[Result]]:
    """Returns the runs by label."""
    return by_label(last_of_each(RESULTS / "sft/rows.jsonl").values())


def losses(label: str, text: str) -> dict[int, float]:
    """Returns the loss of a text by depth, the mean over seeds."""
    found = [run["texts"][text] for run in runs_of()[label]]
    return {depth: mean(each["loss"][place] for each in found) for place, depth in enumerate(found[0]["depth"])}


def chat_claims() -> Iterator[str]:
    """Yields what the rows say about the arms."""
    for label, name in ARMS.items():
        yield line(name, *(f"{loss:.3f}" for loss in losses(label, "chats").values()))
    asked = sum(run["answers"]["questions"] for run in runs_of()["fixed"])
    yield f"{right_at(4)} of {asked} questions right at depth 4"
    yield f"{right_at(16)} at depth 16"


def right_at(depth: int) -> str:
    """Returns how many questions each arm answers rightly by itself, all seeds together."""
    answers = [[run["answers"] for run in runs_of()[label]] for label in ARMS]
    return words([sum(each["right"][each["depth"].index(depth)] for each in own) for own in answers])


def text_claims() -> Iterator[str]:
    """Yields what the rows say about the looped model beside unlooped ones."""
    for label, name in TEXTS.items():
        run, loss = runs_of()[label][0], losses(label, "text")
        tokens = f"{run['tokens'] / 1e6:.1f} ({run['tokens'] / TOKENS:.1f})"
        yield line(name, tokens, f"{run['flops'] / 1e15:.1f}", f"{run['losses'][-1]:.2f}", f"{loss.get(4, loss[1]):.3f}")
