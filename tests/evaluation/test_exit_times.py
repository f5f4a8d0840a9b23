"""Times of exit rules: what is decoded, what is divided by what, and how prompts are cut from rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from loopwright.data.batch import Batch
from loopwright.evaluation import throughput as module
from loopwright.evaluation.throughput import clock_of, exit_times, prompts_of
from loopwright.generation.exit_rules import build_exit
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.scheduler import Scheduler
from tests.generation.mix import make

SMALL = {"hidden_size": 16, "intermediate_size": 16, "prelude_layers": 1, "core_layers": 1, "coda_layers": 1}
CHANGE = {"kind": "change", "threshold": 1.2}


@torch.no_grad()
def test_what_is_timed_is_the_engines_decoding() -> None:
    model, prompts = make("huginn-tiny", **SMALL), [(5, 6), (7, 8), (9, 4)]
    times = exit_times(model, prompts, 4, [CHANGE], 3, batches=(3,), rounds=1)
    assert [(one.rule, one.batch) for one in times] == [(rule, 3) for rule in ("depth:1", "depth:2", "change:1.2")]
    scheduler = Scheduler(model, rows=3, tokens=40, depth=3, readings=3)
    requests = [Request(RequestOptions(prompt, 3, 4, exit=build_exit(CHANGE, model))) for prompt in prompts]
    for request in requests:
        scheduler.add(request)
    while scheduler.busy:
        scheduler.tick()
    expected = sum(sum(request.depths) for request in requests) / 12
    assert 1 < expected < 3 and times[-1].mean_steps == expected
    assert times[0].mean_steps == 1 and all(one.ratio > 0 for one in times)


def test_each_rule_is_divided_by_the_full_depth_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1, 1000))  # every run takes longer than the last
    runs: list[tuple[str, float]] = []

    def decode(model: Any, prompts: Any, rows: int, new: int, options: Any, deepest: int) -> tuple[float, float]:
        plain = "exit" not in options
        runs.append((f"depth:{options['depth']}" if plain else "rule", float(next(clock))))
        return runs[-1][1], 1.0

    monkeypatch.setattr(module, "_decode", decode)
    model = make("huginn-tiny", **SMALL)
    times = exit_times(model, [(1,)], 4, [CHANGE], 5, batches=(1,), rounds=2)
    order = ["depth:5", "depth:1", "depth:2", "depth:3", "depth:4", "depth:5", "rule"]
    assert [name for name, _ in runs] == order * 3
    # rounds begin at 8 and 15: the first warms up; the fifth run is divided by the second full depth
    fifth = sorted([14 / 13, 21 / 20])
    rule = next(one for one in times if one.rule == "change:1.2")
    assert rule.ratio == pytest.approx(sum(fifth) / 2) and fifth[0] < rule.low < rule.ratio < rule.high < fifth[1]


def test_prompts_are_questions_or_the_beginnings_of_texts() -> None:
    ids = torch.arange(60).view(2, 30)
    labels = ids.clone()
    assert prompts_of(Batch(ids, labels), answers=False) == ([tuple(range(15)), tuple(range(30, 45))], 15)
    labels[0, :3], labels[1, :4] = -100, -100
    labels[0, 5:], labels[1, 8:] = -100, -100
    assert prompts_of(Batch(ids, labels), answers=True) == ([(0, 1, 2), (30, 31, 32, 33)], 2)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0  # the shortest row decides
    prompts, new = prompts_of(Batch(ids, labels, mask), answers=False)
    assert (prompts[1], new) == ((30, 31, 32, 33), 4)


def test_the_clock_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("huginn-tiny", **SMALL)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert clock_of(model) == "wall"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert clock_of(model) == "processor"
