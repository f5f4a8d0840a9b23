"""The formula gives the published numbers; the choice follows the drafts that held; what is chosen changes no token."""

from __future__ import annotations

import random

import pytest
import torch

import loopwright as lw
from loopwright.generation.request import RequestOptions
from loopwright.generation.scheduler import Scheduler
from loopwright.generation.speculation import DraftChoice, draft_depths, edge_cost, speed_up
from tests.generation.mix import alone, make, serve

MODEL = lw.build("ouro-1.4b-tiny")


@pytest.mark.parametrize(
    ("depth", "shallow", "cost", "gains"),
    [(4, 1, 0.1, [1.26, 1.40, 1.61, 1.98]), (32, 4, 1.1, [1.46, 1.69, 2.05, 2.70])],
)
def test_the_formula(depth: int, shallow: int, cost: float, gains: list[float]) -> None:
    for acceptance, gain in zip([0.6, 0.7, 0.8, 0.9], gains, strict=True):
        best = max(speed_up(acceptance, shallow, k, depth, cost) for k in range(2, 12))
        assert best == pytest.approx(gain, abs=0.006)
    assert speed_up(1.0, 1, 4, 4, 0.0) == pytest.approx(speed_up(1 - 1e-9, 1, 4, 4, 0.0)) == pytest.approx(16 / 7)


def test_edges_are_counted_in_core_passes() -> None:
    model = lw.build("huginn-tiny")
    sizes = {name: sum(p.numel() for p in getattr(model, name).parameters()) for name in ("prelude", "core", "coda")}
    head = model.lm_head.weight.numel()
    assert edge_cost(model) == (sizes["prelude"] + sizes["coda"] + head) / sizes["core"]
    assert [draft_depths(d) for d in (1, 2, 3, 8, 9)] == [(), (1,), (1, 2), (1, 2, 4), (1, 2, 4, 8)]


def rounds(choice: DraftChoice, true: dict[int, float], count: int, draw: random.Random) -> list[tuple[int | None, int]]:
    """Returns what is chosen when a draft at a depth holds with a given probability."""
    chosen = []
    for _ in range(count):
        shallow, tokens = choice.choose()
        chosen.append((shallow, tokens))
        accepted = 0
        while shallow is not None and accepted < tokens - 1 and draw.random() < true[shallow]:
            accepted += 1
        choice.learn(shallow, tokens - 1 if shallow is not None else 0, accepted)
    return chosen


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_comes_close_to_the_best(seed: int) -> None:
    true = {1: 0.2, 2: 0.85, 4: 0.9}
    choice = DraftChoice(MODEL, 8)
    choice.cost = 0.2
    chosen = rounds(choice, true, 300, random.Random(seed))[50:]
    best = max(speed_up(true[r], r, k, 8, 0.2) for r in true for k in range(2, 9))
    # by tokens over passes, not by a mean of ratios
    gains = [speed_up(true[r], r, k, 8, 0.2) if r is not None else 1.0 for r, k in chosen]
    assert sum(gains) / len(gains) > 0.85 * best


def test_drafts_that_never_hold_are_given_up_and_tried_again() -> None:
    choice = DraftChoice(MODEL, 4)
    chosen = rounds(choice, {1: 0.0, 2: 0.0}, 400, random.Random(0))
    late = [shallow for shallow, _ in chosen[40:]]
    assert late.count(None) > 0.8 * len(late)
    assert any(shallow is not None for shallow in late)
    rounds(choice, {1: 1.0, 2: 1.0}, 200, random.Random(0))
    assert choice.choose() == (1, 8)  # the text has changed


def test_drafts_that_always_hold_are_long() -> None:
    model = make("ouro-1.4b-tiny")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()
        model.end_norm.weight.fill_(1.0)  # every depth says the same
    options = RequestOptions((5, 6), 4, 24, draft_depth="auto", draft_tokens=6)
    scheduler = Scheduler(model, rows=1, tokens=60)
    (request,), _ = serve(scheduler, [options], random.Random(0))
    assert request.tokens == alone(model, options)
    assert scheduler.ran.rounds == {(1, 6): 4} and scheduler.ran.accepted == scheduler.ran.drafted == 20
