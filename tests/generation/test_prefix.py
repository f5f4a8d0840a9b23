"""A prompt that begins like an earlier one is run from there on, where its keys would be the same, and answers the same."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import loopwright as lw
from loopwright.generation import prefix
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.scheduler import Scheduler
from tests.generation.mix import alone, make, serve

LONG = tuple(random.Random(0).sample(range(96), 12))


@torch.no_grad()
def served(scheduler: Scheduler, options: RequestOptions) -> list[int]:
    request = Request(options)
    scheduler.add(request)
    while scheduler.busy:
        scheduler.tick()
    return request.result(0).tokens


@pytest.mark.long
@pytest.mark.parametrize("name", ["huginn-tiny", "ouroboros-qwen2.5-3b-tiny"])
def test_a_shared_beginning_is_run_once(name: str) -> None:
    model = make(name)
    scheduler = Scheduler(model, rows=2, tokens=100)
    first = RequestOptions(LONG, 3, 4)
    assert served(scheduler, first) == alone(model, first)
    for options, copied in (
        (RequestOptions((*LONG, 5, 6), 3, 4), 12),  # the whole prompt
        (RequestOptions((*LONG[:9], 5), 3, 4), 9),
        (first, 11),  # the last token is always run
        (RequestOptions((*LONG, 5), 2, 4), 0),  # another depth has other keys
        (RequestOptions(LONG[:4], 3, 4), 0),  # too short
    ):
        before = scheduler.prefixes.tokens
        assert served(scheduler, options) == alone(model, options)
        assert scheduler.prefixes.tokens - before == copied


def test_another_state_seed_has_other_keys() -> None:
    model = make("huginn-tiny")
    scheduler = Scheduler(model, rows=1, tokens=100)
    for seed in (None, 3, 4, 3):
        options = RequestOptions(LONG, 3, 3, state_seed=seed)
        assert served(scheduler, options) == alone(model, options)
    assert scheduler.prefixes.tokens == 11


def replaced(model: lw.LoopedForCausalLM) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight * 0.5)
    first = next(model.parameters())
    first.data = first.data * 1.5


CHANGES: dict[str, Callable[[lw.LoopedForCausalLM], object]] = {
    "step": lambda model: [x.mul_(1.5) for x in model.parameters()],
    "load": lambda model: model.load_state_dict({name: x * 1.5 for name, x in model.state_dict().items()}),
    "replaced": replaced,
}


@pytest.mark.long
@pytest.mark.parametrize("how", CHANGES)
@torch.no_grad()
def test_changed_weights_have_other_keys(how: str) -> None:
    model = make("huginn-tiny")
    scheduler = Scheduler(model, rows=1, tokens=100)
    options = RequestOptions(LONG, 3, 6)
    before = served(scheduler, options)
    CHANGES[how](model)
    assert served(scheduler, options) == alone(model, options) != before
    assert scheduler.prefixes.tokens == 0
    assert served(scheduler, options) == alone(model, options) and scheduler.prefixes.tokens == 11


def test_a_running_request_shares_its_prompt() -> None:
    model = make("huginn-tiny")
    scheduler = Scheduler(model, rows=2, tokens=100)
    requested = [RequestOptions(LONG, 3, 8), RequestOptions((*LONG, 7), 3, 4)]
    (one, two), _ = serve(scheduler, requested, random.Random(5))
    assert [one.tokens, two.tokens] == [alone(model, options) for options in requested]
    assert scheduler.prefixes.tokens == 12


@pytest.mark.long
def test_kept_rows_go_when_their_cells_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "SHORTEST", 2)
    model = make("huginn-tiny")  # depth 4
    scheduler = Scheduler(model, rows=2, tokens=20)
    for number in range(5):
        options = RequestOptions((number, *LONG[:5]), 4, 4)
        assert served(scheduler, options) == alone(model, options)
        assert len(scheduler.prefixes.kept) <= 2
    scheduler.prefixes.forget()
    assert scheduler.pool.cells["core"].free == [(0, 80)]


def test_a_planted_key_without_depth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("huginn-tiny")
    blind = property(lambda run: prefix.KeptPrefix(0, run.request.options.prompt, run.row))
    monkeypatch.setattr("loopwright.generation.rows.Running.held", blind)
    scheduler = Scheduler(model, rows=1, tokens=100)
    served(scheduler, RequestOptions(LONG, 3, 2))
    options = RequestOptions(LONG, 2, 6)
    assert served(scheduler, options) != alone(model, options)


def test_a_module_that_came_later_is_looked_at_too() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2)))
    weights = prefix.Weights(model)
    seen = [weights.read()]
    model[1][0] = torch.nn.Linear(2, 2)
    seen.append(weights.read())
    with torch.no_grad():
        model[1][0].weight.add_(1)
    seen.append(weights.read())
    model[1][0].bias = torch.nn.Parameter(torch.ones(2))
    seen.append(weights.read())
    assert len({version for _, version in seen}) == 4 and seen[1][0] == seen[2][0] != seen[3][0]
