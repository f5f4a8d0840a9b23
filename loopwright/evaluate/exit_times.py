"""How long decoding takes under an exit rule, beside full depth: really run by the engine, apart from the loss.

The engine decodes greedily after the beginnings of the measured rows, one row at a time and many at once, with exact keys
(`backfill`) and without end tokens, so that every run makes as many tokens. Full depth is timed again before every few rules, and a
rule's time is divided by the last one: what else the machine does meanwhile falls on both. Prompts are read in the timed part too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loopwright.data.batch import Batch
from loopwright.engine.request import Request, RequestOptions
from loopwright.engine.scheduler import Scheduler
from loopwright.generate.exit_rules import build_exit, write_exit
from loopwright.metrics.score import IGNORED
from loopwright.model.looped import LoopedForCausalLM

BATCHES = (1, 16)
ROUNDS = 5  # of all rules, after one that warms up
BETWEEN = 4  # rules that one run of full depth stands for
PROMPT, NEW = 16, 24  # tokens, at most

Told = Callable[[int, int], object]
Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class ExitTime:
    """The time of one rule over that of full depth, median and quartiles of some rounds, and the mean steps of what was decoded."""

    rule: str
    batch: int
    mean_steps: float
    ratio: float
    low: float
    high: float


def prompts_of(batch: Batch, *, answers: bool) -> tuple[Prompts, int]:
    """Returns how the rows of a batch begin, and how many tokens follow: the questions and the shortest answer, or running text."""
    asked = batch.labels != IGNORED
    rows = [ids[mask.bool()].tolist() for ids, mask in zip(batch.input_ids, _real(batch), strict=True)]
    if answers:
        first = asked.int().argmax(1).tolist()
        return [tuple(row[:place]) for row, place in zip(batch.input_ids.tolist(), first, strict=True)], int(asked.sum(1).min())
    shortest = min(map(len, rows))
    prompt = max(1, min(PROMPT, shortest // 2))
    return [tuple(row[:prompt]) for row in rows], max(1, min(NEW, shortest - prompt))


def _real(batch: Batch) -> torch.Tensor:
    return torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask


@torch.no_grad()
def exit_times(
    model: LoopedForCausalLM,
    prompts: Prompts,
    new_tokens: int,
    specs: Sequence[Mapping[str, Any]],
    depth: int,
    *,
    batches: Sequence[int] = BATCHES,
    rounds: int = ROUNDS,
    tell: Told | None = None,
) -> tuple[ExitTime, ...]:
    """Returns the times of every fixed depth below `depth` and of every rule, for each batch size that there are prompts for."""
    times: list[ExitTime] = []
    runs: dict[str, dict[str, Any]] = {f"depth:{d}": {"depth": d} for d in range(1, depth)}
    runs |= {write_exit(spec): {"depth": depth, "exit": build_exit(spec, model)} for spec in specs}
    sizes = sorted({min(size, len(prompts)) for size in batches})
    total, done = len(sizes) * (rounds + 1) * len(runs), 0
    for size in sizes:
        chosen = prompts[: sizes[-1]]  # the same for every size: a few texts may be odd ones
        ratios: dict[str, list[float]] = {name: [] for name in runs}
        steps: dict[str, float] = {}
        for turn in range(rounds + 1):
            for place, (name, options) in enumerate(runs.items()):
                if place % BETWEEN == 0:
                    full, _ = _decode(model, chosen, size, new_tokens, {"depth": depth}, depth)
                taken, steps[name] = _decode(model, chosen, size, new_tokens, options, depth)
                if turn:  # the first warms up
                    ratios[name].append(taken / full)
                done += 1
                if tell is not None:
                    tell(done, total)
        for name, each in ratios.items():
            low, middle, high = statistics.quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
            times.append(ExitTime(name, size, steps[name], middle, low, high))
    return tuple(times)


def clock_of(model: LoopedForCausalLM) -> str:
    """Returns which clock measures: the processor's with one thread, which is the wall time of an idle machine; else the wall's."""
    return "processor" if model.device.type == "cpu" and torch.get_num_threads() == 1 else "wall"


def _decode(
    model: LoopedForCausalLM, prompts: Prompts, rows: int, new: int, options: Mapping[str, Any], deepest: int
) -> tuple[float, float]:
    """Returns the seconds of all answers, and the mean steps of their tokens."""
    readings = deepest if options.get("exit") is not None else 1
    longest = max(map(len, prompts)) + new
    scheduler = Scheduler(model, rows=rows, tokens=rows * longest, depth=options["depth"], readings=readings)
    requests = [Request(RequestOptions(prompt, max_new_tokens=new, **options)) for prompt in prompts]
    for request in requests:
        scheduler.add(request)
    read = time.process_time if clock_of(model) == "processor" else time.perf_counter
    _wait(model)
    begin = read()
    while scheduler.busy:
        scheduler.tick()
    _wait(model)
    seconds = read() - begin
    depths = [depth for request in requests for depth in request.result(0).depths]
    return seconds, sum(depths) / len(depths)


def _wait(model: LoopedForCausalLM) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
