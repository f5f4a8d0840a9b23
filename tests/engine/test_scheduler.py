"""Whatever its neighbours, arrival, depth and sampling: a request answers what `model.generate` answers to it alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from loopwright.engine.request import Request, RequestOptions
from loopwright.engine.scheduler import Scheduler
from loopwright.generate.sampling import Sampling
from tests.engine.mix import alone, answer, check, make, random_wish, serve, uneven
from tests.generate.tiny import DENSE

MODELS: list[tuple[str, dict[str, Any], int]] = [
    ("huginn-tiny", {}, 0),
    ("huginn-tiny", {}, 1),
    ("ouroboros-qwen2.5-3b-tiny", {"sliding_window": 5}, 0),
    ("ouroboros-qwen2.5-3b-tiny", DENSE, 1),
    ("asura-tiny", {}, 0),
]


@pytest.mark.parametrize(("name", "changes", "lag"), MODELS, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(MODELS)])
def test_requests_are_what_they_are_alone(name: str, changes: dict[str, Any], lag: int) -> None:
    model, draw = make(name, **changes), random.Random(f"{name}{lag}")
    scheduler = Scheduler(model, rows=3, tokens=60, chunk=4, lag=lag)
    wishes = [random_wish(model, draw) for _ in range(4)]
    requests, cancelled = serve(scheduler, wishes, draw, cancels=0.03)
    assert check(model, requests, cancelled, [answer(model, wish) for wish in wishes]) == 0
    assert sorted(scheduler.free_slots) == [0, 1, 2]
    assert all(len(cells.free) <= 1 for cells in scheduler.pool.cells.values())


@pytest.mark.long
def test_an_answer_of_so_many_tokens_ends_later() -> None:
    model, draw = make("huginn-tiny"), random.Random(1)
    half = frozenset(range(0, 96, 2))  # ends: an answer without a least length rarely has three tokens
    wishes = [replace(random_wish(model, draw), ends=half, max_new_tokens=8) for _ in range(6)]
    wishes = [
        replace(wish if i % 2 else uneven(model, wish, draw), min_new_tokens=draw.randint(0, 8)) for i, wish in enumerate(wishes)
    ]
    answers = [answer(model, wish) for wish in wishes]
    requests, cancelled = serve(Scheduler(model, rows=3, tokens=120, chunk=4), wishes, draw)
    assert check(model, requests, cancelled, answers) == 0
    assert all(len(tokens) >= wish.min_new_tokens for wish, (tokens, _) in zip(wishes, answers, strict=True))
    short = [answer(model, replace(wish, min_new_tokens=0))[0] for wish in wishes]
    assert sum(len(a) < len(b) for a, (b, _) in zip(short, answers, strict=True)) >= 3


def plain(prompt: int, depth: int, new: int, **options: Any) -> RequestOptions:
    return RequestOptions(tuple(range(2, 2 + prompt)), depth, new, **options)


def test_no_step_is_run_that_nobody_asked_for() -> None:
    model = make("huginn-tiny")
    scheduler = Scheduler(model, rows=4, tokens=200)
    wishes = [plain(3, depth, 5) for depth in (1, 2, 3, 6, 4, 1, 1, 5)]
    serve(scheduler, wishes, random.Random(0))
    # the first token of an answer comes out of the prefill
    assert scheduler.ran.row_steps == sum(wish.depth * (wish.max_new_tokens - 1) for wish in wishes)
    assert scheduler.ran.prefill_tokens == 3 * len(wishes)


@torch.no_grad()
def test_admission_by_what_fits_in_order() -> None:
    model = make("huginn-tiny")  # depth 4
    scheduler = Scheduler(model, rows=8, tokens=20)
    requests = [Request(wish) for wish in (plain(5, 4, 6), plain(10, 4, 6), plain(1, 1, 2))]
    for request in requests:
        scheduler.add(request)
    scheduler.tick()
    # the second does not fit beside the first; the third would, and waits in line
    assert [run.request for run in scheduler.running] == requests[:1]
    while scheduler.busy:
        scheduler.tick()
    assert [request.finish_reason for request in requests] == ["length"] * 3


def admitted(scheduler: Scheduler, requests: list[Request]) -> list[int]:
    """Returns the numbers of the requests in the order of their admission, through one row."""
    order: list[int] = []
    with torch.no_grad():
        while scheduler.busy:
            scheduler.tick()
            order += [n for n, request in enumerate(requests) if request.tokens and n not in order]
    return order


def test_priority_overtakes_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.engine.scheduler.OVERTAKES", 8)
    scheduler = Scheduler(make("huginn-tiny"), rows=1, tokens=20)
    requests = [Request(plain(1, 1, 1)) for _ in range(2)] + [Request(plain(1, 1, 1, priority=1))]
    for request in requests:
        scheduler.add(request)
    assert admitted(scheduler, requests) == [2, 0, 1]
    low = Request(plain(1, 1, 1))
    scheduler.add(low)
    later = [Request(plain(1, 1, 1, priority=1)) for _ in range(12)]
    for request in later:
        scheduler.add(request)
    assert admitted(scheduler, [*later, low]).index(len(later)) == 7


def test_logits_that_are_not_finite_fail_their_request_alone() -> None:
    model = make("relaxed-tiny")  # its head has weights of its own
    with torch.no_grad():
        model.embed_tokens.weight[7] = torch.nan
    good, bad = plain(3, 2, 4), RequestOptions((2, 7), 2, 4)
    scheduler = Scheduler(model, rows=3, tokens=60)
    requests, _ = serve(scheduler, [good, bad, good], random.Random(0))
    with pytest.raises(ValueError, match="request: logits are not finite after 2 tokens"):
        requests[1].result(0)
    assert requests[0].result(0).tokens == requests[2].result(0).tokens == alone(model, good)


@pytest.mark.parametrize(
    ("name", "options"),
    [("TokenCounts", {"sampling": Sampling(presence_penalty=1.0)}), ("Trail", {"draft_depth": 1, "draft_tokens": 2})],
)
def test_a_request_that_cannot_be_seated_fails_alone(monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]) -> None:
    def full(*args: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError

    model = make("huginn-tiny")
    monkeypatch.setattr(f"loopwright.engine.scheduler.{name}", full)
    scheduler = Scheduler(model, rows=2, tokens=60)
    good, bad = plain(3, 2, 4), plain(3, 2, 4, **options)
    requests, _ = serve(scheduler, [good, bad, good], random.Random(0))
    with pytest.raises(torch.OutOfMemoryError):
        requests[1].result(0)
    assert requests[0].result(0).tokens == requests[2].result(0).tokens == alone(model, good)
    assert sorted(scheduler.free_slots) == [0, 1] and scheduler.pool.cells["core"].free == [(0, 240)]


def test_log_probabilities_are_the_models_own() -> None:
    model = make("huginn-tiny")
    wish = plain(4, 3, 4, logprobs=True)
    (request,), _ = serve(Scheduler(model, rows=1, tokens=20), [wish], random.Random(0))
    text = torch.tensor([[*wish.prompt, *request.tokens]])
    full = model(text, depth=3).logits.log_softmax(-1)[0, 3:-1]
    assert torch.allclose(torch.tensor(request.result().logprobs).double(), full.gather(1, text[0, 4:, None])[:, 0], atol=1e-9)


@pytest.mark.long
def test_a_planted_neighbour_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, draw = make("huginn-tiny"), random.Random(5)
    wishes = [random_wish(model, draw) for _ in range(5)]
    answers = [answer(model, wish) for wish in wishes]
    monkeypatch.setattr("loopwright.model.cache.pool.Row.cell", lambda self, stack, group: self.starts[stack])  # one step for all
    scheduler = Scheduler(model, rows=3, tokens=60, chunk=4)
    assert check(model, *serve(scheduler, wishes, draw), answers) > 0
