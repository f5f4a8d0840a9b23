"""Scores are those of one full pass: of drawn tokens, of the likeliest ones, of a prompt, and of each step."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from loopwright.generation.engine import Engine
from loopwright.generation.readings import next_token_by_depth
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.scheduler import Scheduler
from loopwright.generation.scores import ranked, score
from tests.generation.mix import make, serve
from tests.generation.test_scheduler import plain


def test_the_likeliest_come_first_and_a_small_vocabulary_gives_all_it_has() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0]])
    first, second = score(logits, torch.tensor([0, 0]), top=9).read()
    logs = logits.double().log_softmax(-1)
    assert first.logprob == logs[0, 0] and [token for token, _ in first.top] == [1, 2, 0]
    assert second.top[0] == (0, float(logs[1, 0])) and len(second.top) == 3
    assert ranked(logits[0], 2) == first.top[:2]
    assert score(logits, torch.tensor([0, 0])).read()[0].top == ()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("huginn-tiny", {}),
        ("huginn-tiny", {"draft_depth": 1, "draft_tokens": 3}),
        ("ouroboros-qwen2.5-3b-tiny", {"draft_depth": 2, "draft_tokens": 2}),
    ],
)
def test_scores_of_prompt_and_answer_are_those_of_one_pass(name: str, options: dict[str, Any]) -> None:
    model = make(name)
    asked = plain(12, 3, 4, logprobs=True, top_logprobs=2, prompt_logprobs=True, **options)
    other = plain(12, 3, 4, logprobs=True)  # a neighbour with the same prompt, from which nothing may be copied
    (beside, request, alike), _ = serve(Scheduler(model, rows=1, tokens=80, chunk=5), [other, asked, other], random.Random(0))
    assert beside.tokens == request.tokens == alike.tokens
    text = torch.tensor([[*asked.prompt, *request.tokens]])
    full = model(text, depth=3).logits[0, :-1].double().log_softmax(-1)
    result = request.result(0)
    assert result.prompt_logprobs is not None and result.logprobs is not None and result.top_logprobs is not None
    scores = [one.logprob for one in result.prompt_logprobs] + result.logprobs
    assert torch.allclose(torch.tensor(scores).double(), full.gather(1, text[0, 1:, None])[:, 0], atol=1e-9)
    top = [one.top for one in result.prompt_logprobs] + result.top_logprobs
    assert [[token for token, _ in one] for one in top] == full.topk(2).indices.tolist()
    assert beside.result(0).top_logprobs is None and beside.result(0).prompt_logprobs is None


@pytest.mark.parametrize("name", ["huginn-tiny", "ouroboros-qwen2.5-3b-tiny"])
def test_each_step_says_what_a_pass_of_that_many_steps_says(name: str) -> None:
    model = make(name)
    with Engine(model, max_rows=2, max_tokens=80) as engine:
        plain_result = engine.generate([[5, 6, 7]], depth=3, max_new_tokens=4, ignore_eos=True)
        asked = engine.submit([5, 6, 7], depth=3, max_new_tokens=4, step_tokens=2, ignore_eos=True).result()
    assert asked.tokens == plain_result[0].tokens and asked.step_tokens is not None and len(asked.step_tokens) == 4
    for place, steps in enumerate(asked.step_tokens):
        text = torch.tensor([5, 6, 7, *asked.tokens[:place]])
        guesses = next_token_by_depth(model, text, 3, top=2)
        assert [[token for token, _ in one] for one in steps] == [list(guess.tokens) for guess in guesses]
        said = torch.tensor([[value for _, value in one] for one in steps]).exp()
        assert torch.allclose(said, torch.tensor([guess.probabilities for guess in guesses]), atol=1e-6)


def test_a_token_that_leaves_early_has_as_many_steps_as_it_took() -> None:
    model = make("huginn-tiny")
    with Engine(model, max_rows=1, max_tokens=80) as engine:
        result = engine.submit(
            [5, 6, 7], depth=4, max_new_tokens=6, step_tokens=1, exit={"kind": "change", "threshold": 1.2}, ignore_eos=True
        ).result()
    assert result.step_tokens is not None and [len(steps) for steps in result.step_tokens] == result.depths
    assert len(set(result.depths)) > 1


@torch.no_grad()
def test_a_prompt_is_scored_in_chunks_beside_the_others() -> None:
    model = make("huginn-tiny")
    scheduler = Scheduler(model, rows=2, tokens=200, chunk=8)
    scored = Request(RequestOptions(tuple(range(2, 52)), 2, 1, prompt_logprobs=True, logprobs=True, top_logprobs=3))
    other = Request(RequestOptions((3, 4), 2, 30))
    scheduler.add(other)
    scheduler.tick()
    scheduler.add(scored)
    ticks = 0
    while not scored.done:
        before, steps = len(scored.prompt_scores), scheduler.ran.row_steps
        scheduler.tick()
        ticks += 1
        assert len(scored.prompt_scores) - before <= 8 and scheduler.ran.row_steps == steps + 1
    assert ticks == 7 and len(scored.prompt_scores) == 49
