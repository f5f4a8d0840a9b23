"""Random requests for a model, what each answers alone, and a scheduler that serves them together."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch

import loopwright as lw
from loopwright.generation.constraints import ConstrainedVocabulary
from loopwright.generation.exit_rules import ExitRule, build_exit, mean_state
from loopwright.generation.passes import mean_read
from loopwright.generation.request import Request, RequestOptions
from loopwright.generation.sampling import GrammarEnd, HashedDraws, Sampling, TokenCounts, sample
from loopwright.generation.scheduler import Scheduler
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


def random_options(model: lw.LoopedForCausalLM, draw: random.Random, *, longest: int = 10) -> RequestOptions:
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
def alone(model: lw.LoopedForCausalLM, options: RequestOptions) -> list[int]:
    """Returns the answer of transformers' `generate` to one request."""
    ids = torch.tensor([options.prompt])
    given: dict[str, Any] = {} if not model.config.is_looped else {"depth": options.depth}
    if options.state_seed is not None:
        given["state_seed"] = options.state_seed
    if options.sampling.changes_scores or options.constraint is not None:
        draws = HashedDraws(options.sampling, options.seed, ids.shape[1], options.constraint)
        given["logits_processor"] = [draws]
        given["stopping_criteria"] = [] if options.constraint is None else [GrammarEnd(draws)]
    ends = sorted(options.ends) or None
    if ends and options.min_new_tokens:
        given["min_new_tokens"] = options.min_new_tokens
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=options.max_new_tokens, do_sample=False, eos_token_id=ends,
        pad_token_id=0, **given,
    )  # fmt: skip
    return made[0, ids.shape[1] :].tolist()


@torch.no_grad()
def recomputed(model: lw.LoopedForCausalLM, options: RequestOptions) -> tuple[list[int], list[int]]:
    """Returns tokens and exit depths where every token is decided by a full pass over all tokens before it."""
    text, depths = list(options.prompt), []
    rule: ExitRule = options.exit  # type: ignore[assignment]
    grammar = None if options.constraint is None else options.constraint.begin()
    while len(text) - len(options.prompt) < options.max_new_tokens:
        out = model(torch.tensor([text]), depth=options.depth, output_steps=True, state_seed=options.state_seed)
        e, p = model.embed(torch.tensor([text]))
        before, memory = model.start_state(e, p, options.state_seed)[0, -1], {}
        for t, (s, logits) in enumerate(zip(out.states, out.step_logits, strict=True)):
            if t + 1 == options.depth or rule.leaves(model, before, s[0, -1], logits[0, -1], memory):
                break
            before = s[0, -1]
        if rule.averages_states:  # what is read out is the mean of the states so far
            logits = model.read_out(mean_state(model, out.states[: t + 1]), p)
        seen = TokenCounts(torch.tensor(options.prompt), model.config.vocab_size).after(text[len(options.prompt) :])
        text.append(int(sample(logits[:, -1], [options.draw(len(text) - len(options.prompt))], [seen], [grammar])))
        depths.append(t + 1)
        if grammar is not None:
            grammar.take(text[-1:])
        if text[-1] in options.ends or (grammar is not None and grammar.ended):
            break
    return text[len(options.prompt) :], depths


def answer(model: lw.LoopedForCausalLM, options: RequestOptions) -> tuple[list[int], list[int]]:
    """Returns tokens and depths of one request alone."""
    if options.exit is not None:
        return recomputed(model, options)
    tokens = alone(model, options)
    return tokens, [options.depth] * len(tokens)


def with_mixed_depth(model: lw.LoopedForCausalLM, options: RequestOptions, draw: random.Random) -> RequestOptions:
    """Returns a request with an exit rule or with drafts, where the model has steps to leave or to draft at."""
    if not model.config.is_looped or options.depth == 1 or mean_read(model):
        return options  # of the mean of states: tests/generation/test_engine.py
    if draw.random() < 0.5:
        return replace(options, draft_depth=draw.randint(1, options.depth - 1), draft_tokens=draw.randint(2, 5))
    learned: dict[str, list[Any]] = {"exit": [{"kind": "gate", "threshold": 0.6}], "act": ["act"], "none": []}
    rules = [*RULES, *learned[model.config.halting["kind"]]]
    return replace(options, exit=build_exit(draw.choice(rules), model))


def constrained(requested: list[RequestOptions], draw: random.Random) -> list[RequestOptions]:
    """Returns the requests, some with a form that their answers must have; needs llguidance."""
    vocabulary = ConstrainedVocabulary(letter_tokenizer(), 96)
    forms = [vocabulary.constraint(form, ends) for form in FORMS for ends in ((), (95,), (95, 3))]
    return [replace(options, constraint=draw.choice(forms)) if draw.random() < 0.7 else options for options in requested]


@torch.no_grad()
def serve(
    scheduler: Scheduler, requested: list[RequestOptions], draw: random.Random, *, cancels: float = 0.0, patience: int = 100_000
) -> tuple[list[Request], set[int]]:
    """Returns the requests, served to the end, and which of them were cancelled; arrivals and cancellations are drawn."""
    requests = [Request(options) for options in requested]
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
        ended = "stop" if tokens[-1] in request.options.ends or _form_ends(request.options, tokens) else "length"
        wrong += (result.tokens, result.depths, result.finish_reason) != (tokens, depths, ended)
        wrong += (result.logprobs is None) == request.options.logprobs
    return wrong


def _form_ends(options: RequestOptions, tokens: list[int]) -> bool:
    return options.constraint is not None and options.constraint.begin().after(tokens).ended
