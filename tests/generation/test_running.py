"""Where a request in flight stands, in tokens and steps."""

from __future__ import annotations

import torch

from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.rows import DrawnTokens, Fetched, Running
from loopwright.model.keys.pool import Row


def running(wish: RequestOptions, **options: object) -> Running:
    return Running(Request(wish), Row(20, wish.depth, wish.readings, {}, ("core",)), 0, wish.depth, None, **options)  # type: ignore[arg-type]


def test_a_plain_request_prefills_its_prompt_and_runs_to_its_depth() -> None:
    run = running(RequestOptions((1, 2, 3), 4, 5), drawn=2)
    assert (run.to_prefill, run.base, run.offset, run.limit, run.drafting) == (3, 4, 4, 4, False)


def test_drafts_stand_after_what_is_verified() -> None:
    wish = RequestOptions((1, 2, 3), 4, 6, draft_depth=2, draft_tokens=3)
    now = {"draft_depth": 2, "draft_tokens": 3}  # of the round, as the scheduler sets them
    assert (running(wish, drawn=1, **now).limit, running(wish, drawn=1, **now).drafting) == (2, True)
    assert (running(wish, drawn=1).limit, running(wish, drawn=1).drafting) == (4, False)  # a round without drafts
    second = running(wish, drawn=1, drafts=[7], **now)
    assert (second.base, second.offset, second.drafting) == (3, 4, True)
    third = running(wish, drawn=1, drafts=[7, 8], **now)  # the third token verifies all three
    assert (third.offset, third.limit, third.drafting) == (5, 4, False)
    assert not running(wish, drawn=5, **now).drafting  # one token is left: nothing to draft


def test_inside_a_prompt_the_present_token_is_one_of_it() -> None:
    run = running(RequestOptions((1, 2, 3), 4, 5))
    assert [(run.in_prompt, run.offset) for run.prefilled in range(4)] == [(True, 0), (True, 1), (True, 2), (False, 2)]


def test_what_was_fetched_is_what_it_was() -> None:
    numbers = torch.arange(3)
    drawn = DrawnTokens([], Fetched(numbers, numbers > 1), None, [], places=[2, 0])
    numbers.zero_()  # the next tick writes to the same place
    assert drawn.read() == [[2, 0], [True, False]]
