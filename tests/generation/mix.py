"""Random requests for a model, what each answers alone, and a scheduler that serves them together."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch

import loopwright as lw
from loopwright.generation.constraints import ConstrainedVocabulary
from loopwright.generation.exit_rules import ExitRule, build_exit, mean_state
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.sampling import GrammarEnd, HashedDraws, Sampling, TokenCounts, sample
from loopwright.generation.scheduler import Scheduler
from loopwright.generation.trail import mean_read
from tests.cases import noisy
from tests.generation.tiny import letter_tokenizer

FORMS: list[Any] = [
    {"regex": "[0-9]{2,3}(-[a-z]+)?"},
    {"regex": "(ab|a|b)*c"},
    {"choice": ["yes", "no", "no, never"]},
    {"json": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}},
]
RULES: list[Any] = [
    {"kind": "change", "threshold": 1.2},
    {"kind": "divergence", "threshold": 3.0},
    {"kind": "entropy", "threshold": 3.0},
    {"kind": "stable", "count": 1},
    {"kind": "stable", "count": 2},
    {"kind": "lookahead", "rule": {"kind": "entropy", "threshold": 3.0}},
]


def make(name: str, **changes: Any) -> lw.LoopedForCausalLM:
    """Returns a tiny preset whose tokens depend on every key; in float64, because such weights amplify round-off."""
    return noisy(name, **changes).double().eval()


def deepest(model: lw.LoopedForCausalLM) -> int:
    config = model.config
    if not config.is_looped:
        return 1
    return config.max_steps if config.max_steps is not None and config.beyond_max_steps == "refuse" else 6


def random_sampling(draw: random.Random, known: int) -> Sampling:
    if draw.random() < 0.4:
        return Sampling()

    def maybe(value: Any) -> Any:
        return value if draw.random() < 0.4 else None

    return Sampling(
        temperature=draw.choice([0, 0.5, 1.0, 3.0]),
        top_p=maybe(draw.random()),
        top_k=maybe(draw.randint(1, 20)),
        min_p=maybe(draw.random() / 4),
        repetition_penalty=maybe(0.7 + draw.random()),
        presence_penalty=maybe(draw.random() * 2 - 1),
        frequency_penalty=maybe(draw.random() * 2 - 1),
        logit_bias=maybe({draw.randrange(known): draw.random() * 4 - 2 for _ in range(3)}),
    )


def random_wish(model: lw.LoopedForCausalLM, draw: random.Random, *, longest: int = 10) -> RequestOptions:
    known = model.config.vocab_size
    return RequestOptions(
        prompt=tuple(draw.randrange(known) for _ in range(draw.randint(1, longest))),
        depth=draw.randint(1, deepest(model)),
        max_new_tokens=draw.randint(1, 8),
        sampling=random_sampling(draw, known),
        seed=draw.randrange(-(2**63), 2**64),
        state_seed=draw.choice([None, draw.randrange(2**64)]) if model.config.state["kind"] == "noise" else None,
        ends=frozenset(draw.sample(range(known), min(known // 2, 6))) if draw.random() < 0.3 else frozenset(),
        logprobs=draw.random() < 0.3,
        priority=draw.choice([0, 0, 0, 1, -1]),
    )


@torch.no_grad()
def alone(model: lw.LoopedForCausalLM, wish: RequestOptions) -> list[int]:
    """Returns the answer of transformers' `generate` to one request."""
    ids = torch.tensor([wish.prompt])
    given: dict[str, Any] = {} if not model.config.is_looped else {"depth": wish.depth}
    if wish.state_seed is not None:
        given["state_seed"] = wish.state_seed
    if wish.sampling.changes_scores or wish.constraint is not None:
        draws = HashedDraws(wish.sampling, wish.seed, ids.shape[1], wish.constraint)
        given["logits_processor"] = [draws]
        given["stopping_criteria"] = [] if wish.constraint is None else [GrammarEnd(draws)]
    ends = sorted(wish.ends) or None
    if ends and wish.min_new_tokens:
        given["min_new_tokens"] = wish.min_new_tokens
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=wish.max_new_tokens, do_sample=False, eos_token_id=ends,
        pad_token_id=0, **given,
    )  # fmt: skip
    return made[0, ids.shape[1] :].tolist()


@torch.no_grad()
def recomputed(model: lw.LoopedForCausalLM, wish: RequestOptions) -> tuple[list[int], list[int]]:
    """Returns tokens and exit depths where every token is decided by a full pass over all tokens before it."""
    text, depths = list(wish.prompt), []
    rule: ExitRule = wish.exit  # type: ignore[assignment]
    grammar = None if wish.constraint is None else wish.constraint.begin()
    while len(text) - len(wish.prompt) < wish.max_new_tokens:
        out = model(torch.tensor([text]), depth=wish.depth, output_steps=True, state_seed=wish.state_seed)
        e, p = model.embed(torch.tensor([text]))
        before, memory = model.start_state(e, p, wish.state_seed)[0, -1], {}
        for t, (s, logits) in enumerate(zip(out.states, out.step_logits, strict=True)):
            if t + 1 == wish.depth or rule.leaves(model, before, s[0, -1], logits[0, -1], memory):
                break
            before = s[0, -1]
        if rule.mixes:  # what is read out is the mean of the states so far
            logits = model.read_out(mean_state(model, out.states[: t + 1]), p)
        seen = TokenCounts(torch.tensor(wish.prompt), model.config.vocab_size).after(text[len(wish.prompt) :])
        text.append(int(sample(logits[:, -1], [wish.draw(len(text) - len(wish.prompt))], [seen], [grammar])))
        depths.append(t + 1)
        if grammar is not None:
            grammar.take(text[-1:])
        if text[-1] in wish.ends or (grammar is not None and grammar.ended):
            break
    return text[len(wish.prompt) :], depths


def answer(model: lw.LoopedForCausalLM, wish: RequestOptions) -> tuple[list[int], list[int]]:
    """Returns tokens and depths of one request alone."""
    if wish.exit is not None:
        return recomputed(model, wish)
    tokens = alone(model, wish)
    return tokens, [wish.depth] * len(tokens)


def uneven(model: lw.LoopedForCausalLM, wish: RequestOptions, draw: random.Random) -> RequestOptions:
    """Returns a request with an exit rule or with drafts, where the model has steps to leave or to draft at."""
    if not model.config.is_looped or wish.depth == 1 or mean_read(model):
        return wish  # of the mean of states: tests/generation/test_engine.py
    if draw.random() < 0.5:
        return replace(wish, draft_depth=draw.randint(1, wish.depth - 1), draft_tokens=draw.randint(2, 5))
    learned: dict[str, list[Any]] = {"exit": [{"kind": "gate", "threshold": 0.6}], "act": ["act"], "none": []}
    rules = [*RULES, *learned[model.config.halting["kind"]]]
    return replace(wish, exit=build_exit(draw.choice(rules), model))


def constrained(wishes: list[RequestOptions], draw: random.Random) -> list[RequestOptions]:
    """Returns the requests, some with a form that their answers must have; needs llguidance."""
    vocabulary = ConstrainedVocabulary(letter_tokenizer(), 96)
    forms = [vocabulary.constraint(form, ends) for form in FORMS for ends in ((), (95,), (95, 3))]
    return [replace(wish, constraint=draw.choice(forms)) if draw.random() < 0.7 else wish for wish in wishes]


@torch.no_grad()
def serve(
    scheduler: Scheduler, wishes: list[RequestOptions], draw: random.Random, *, cancels: float = 0.0, patience: int = 100_000
) -> tuple[list[Request], set[int]]:
    """Returns the requests, served to the end, and which of them were cancelled; arrivals and cancellations are drawn."""
    requests = [Request(wish) for wish in wishes]
    coming, cancelled = list(range(len(requests))), set()
    while coming or scheduler.busy:
        while coming and draw.random() < 0.4:
            scheduler.add(requests[coming.pop(0)])
        if draw.random() < cancels:
            number = draw.randrange(len(requests))
            if requests[number].cancel():
                cancelled.add(number)
        scheduler.tick()
        assert scheduler.ran.ticks < patience, "no end in sight"
    scheduler.prefixes.forget()
    return requests, cancelled


def check(
    model: lw.LoopedForCausalLM, requests: list[Request], cancelled: set[int], answers: list[tuple[list[int], list[int]]]
) -> int:
    """Returns how many requests are not what they are alone; a cancelled one is to be the beginning of it."""
    wrong = 0
    for number, (request, (tokens, depths)) in enumerate(zip(requests, answers, strict=True)):
        result = request.result(0)
        if number in cancelled:
            wrong += result.tokens != tokens[: len(result.tokens)] or (len(result.tokens) < len(tokens)) != (
                result.finish_reason == "cancelled"
            )
            continue
        ended = "stop" if tokens[-1] in request.wish.ends or _form_ends(request.wish, tokens) else "length"
        wrong += (result.tokens, result.depths, result.finish_reason) != (tokens, depths, ended)
        wrong += (result.logprobs is None) == request.wish.logprobs
    return wrong


def _form_ends(wish: RequestOptions, tokens: list[int]) -> bool:
    return wish.constraint is not None and wish.constraint.begin().after(tokens).ended
