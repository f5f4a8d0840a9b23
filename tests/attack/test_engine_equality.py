"""Requests of every kind, served together, are what each is alone: random mixes over all presets; and a soak of many requests.

python -m pytest -m attack -s tests/attack/test_engine_equality.py
"""

from __future__ import annotations

import random
import resource
import time
from importlib.util import find_spec

import pytest
import torch

from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.scheduler import Scheduler
from loopwright.model.presets import PRESETS
from tests.generation.mix import answer, check, constrained, make, random_options, serve, with_mixed_depth

NAMES = [f"{name}-tiny" for name in sorted(PRESETS)]
REQUESTS = 50  # of each preset


@pytest.mark.attack
@pytest.mark.parametrize("name", NAMES)
def test_engine_is_alone(name: str) -> None:
    model, draw = make(name), random.Random(name)
    requested = [random_options(model, draw) for _ in range(REQUESTS)]
    requested = [with_mixed_depth(model, options, draw) if draw.random() < 0.5 else options for options in requested]
    if find_spec("llguidance") is not None and model.config.vocab_size == 96:
        requested = requested[: REQUESTS // 2] + constrained(requested[REQUESTS // 2 :], draw)
    answers = [answer(model, options) for options in requested]
    for rows, tokens, chunk, lag in ((4, 120, 3, 0), (7, 400, 64, 1)):
        scheduler = Scheduler(model, rows=rows, tokens=tokens, chunk=chunk, lag=lag)
        requests, cancelled = serve(scheduler, requested, draw, cancels=0.05)
        wrong = check(model, requests, cancelled, answers)
        print(f"{name}: {len(requests)} requests ({len(cancelled)} cancelled) in {rows} rows, lag {lag}: {wrong} wrong")
        assert wrong == 0
        assert len(scheduler.free_slots) == rows and not scheduler.running
        assert all(sum(size for _, size in cells.free) == cells.count for cells in scheduler.pool.cells.values())


@pytest.mark.attack
@torch.no_grad()
def test_soak() -> None:
    """10,000 requests through 8 rows: memory flat, no lost row, nobody waits longer than the queue before him."""
    model, draw = make("huginn-tiny", hidden_size=16, intermediate_size=16).float(), random.Random(0)
    scheduler = Scheduler(model, rows=8, tokens=160)
    waiting: list[tuple[Request, int]] = []
    done, longest, submitted, begun = 0, 0, 0, time.perf_counter()
    peak_early = 0
    while done < 10_000:
        while submitted < 10_000 and len(waiting) < 40:
            prompt = tuple(draw.randrange(96) for _ in range(draw.randint(1, 8)))
            request = Request(
                RequestOptions(prompt, draw.randint(1, 4), draw.randint(1, 6), priority=draw.choice([0, 0, 1]), seed=submitted)
            )
            scheduler.add(request)
            waiting.append((request, scheduler.ran.ticks))
            submitted += 1
        if draw.random() < 0.05:
            draw.choice(waiting)[0].cancel()
        scheduler.tick()
        over = [(request, tick) for request, tick in waiting if request.done]
        longest = max([longest, *(scheduler.ran.ticks - tick for _, tick in over)])
        waiting = [(request, tick) for request, tick in waiting if not request.done]
        done += len(over)
        if done >= 2_000 and not peak_early:
            peak_early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"soak: {done} requests, {scheduler.ran.ticks} ticks, {time.perf_counter() - begun:.0f} s, longest wait {longest} ticks, "
          f"peak memory {peak_early // 1024} MiB after 2,000 and {peak // 1024} MiB after all")  # fmt: skip
    scheduler.prefixes.forget()
    assert len(scheduler.free_slots) == 8 and scheduler.pool.cells["core"].free == [(0, scheduler.pool.cells["core"].count)]
    assert longest < 40 * 8 * 6  # the queue before a request, one at a time at the greatest cost of each
    assert peak - peak_early < 32 * 1024
