"""Huginn's exits, written again from its public code: what is measured, the first step, the defaults; and what answers give."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest
import torch

from loopwright.generation.exit_rules import EXITS, build_exit
from loopwright.generation.request import RequestOptions
from loopwright.generation.scheduler import Scheduler
from loopwright.schema import options_of
from tests.cases import noisy
from tests.generation.mix import make, recomputed, serve
from tests.systems.items import differs, same

HUGINN = "Huginn"
MODEL = noisy("huginn-tiny")
V = 7


def entropy(p: np.ndarray) -> float:
    return float(-(p * np.log(p + 1e-10)).sum())


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return float((p * (np.log(p) - np.log(q))).sum())


def cut(p: np.ndarray) -> np.ndarray:
    """Tokens below a tenth of the likeliest count as 1/V, and all of them are scaled to sum to 1."""
    p = np.where(p < 0.1 * p.max(), 1 / len(p), p)
    return p / p.sum()


def original(kind: str, states: np.ndarray, logits: np.ndarray) -> list[float]:
    """What Huginn's evaluator of a criterion holds after each step of one token; its states begin with s0."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    uniform = np.full(V, 1 / V)
    if kind == "latent-diff":
        return [float(np.linalg.norm(b - a) / np.linalg.norm(b)) for a, b in pairwise(states)]
    if kind == "cosine":
        return [float(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in pairwise(states)]
    if kind == "kl":
        return [kl(a, b) for a, b in pairwise([uniform, *p])]
    if kind == "minp-kl":
        return [kl(a, b) for a, b in pairwise([uniform, *map(cut, p)])]
    if kind == "entropy-diff":
        return [abs(b - a) for a, b in pairwise([100.0, *map(entropy, p)])]
    repeats, found, last = 0, [], -1
    for token in logits.argmax(-1):
        repeats = repeats + 1 if token == last else 0
        last = token
        found.append(float(repeats))
    return found


# criterion of the public code: our name, its default
CRITERIA = {
    "latent-diff": ("change", 0.03), "kl": ("kl", 1e-3), "minp-kl": ("minp-kl", 1e-5), "entropy-diff": ("entropy-diff", 1e-3),
    "argmax-stability": ("argmax-stability", 5), "cosine": ("cosine", 1e-3),
}  # fmt: skip


@pytest.mark.parametrize("criterion", CRITERIA)
@same(HUGINN, "exits latent-diff (`change`), kl, minp-kl, entropy-diff, argmax-stability and cosine, with their defaults")
def test_exits(criterion: str) -> None:
    kind, default = CRITERIA[criterion]
    assert next(iter(options_of(EXITS[kind]).values())).default == default
    rng, left = np.random.default_rng(5), set()
    for limit in (default, 0.02, 0.3, 3) if kind != "argmax-stability" else (1, 2, 5):
        for _ in range(30):
            calm = rng.uniform(0.3, 0.9) ** np.arange(13)  # states and read-outs that come to rest
            states = rng.normal(size=8) + calm[:, None] * rng.normal(size=(13, 8))
            logits = 2 * rng.normal(size=V) + calm[1:, None] * rng.normal(size=(12, V))
            told = original(criterion, states, logits)
            rule, memory = build_exit({"kind": kind, next(iter(options_of(EXITS[kind]))): limit}, MODEL), {}
            s, read = torch.tensor(states), torch.tensor(logits)
            found = [rule.measure(MODEL, s[t], s[t + 1], read[t], memory) for t in range(12)]
            if kind != "argmax-stability":  # ours counts steps that agree, theirs repeats
                assert torch.stack(found).tolist() == pytest.approx(told, rel=1e-4, abs=2e-6)
            exits = [bool(rule.reached(MODEL, x)) for x in found]
            if kind == "argmax-stability":
                assert exits == [x >= limit for x in told]
            else:  # float32 may put what is as good as at the limit on its other side
                assert all(a == (x < limit) or abs(x - limit) < 2e-6 for a, x in zip(exits, told, strict=True))
            left.add(exits.index(True) if True in exits else 12)
    assert len(left) > 2


@same(HUGINN, "exits after the first step by kl, minp-kl, cosine and latent-diff")
def test_the_first_step_may_leave() -> None:
    flat, s = torch.zeros(V), torch.ones(8)
    for kind in ("kl", "minp-kl", "cosine", "change"):
        assert bool(build_exit(kind, MODEL).leaves(MODEL, s, s, flat, {})), kind
    for kind in ("entropy-diff", "argmax-stability"):
        assert not bool(build_exit(kind, MODEL).leaves(MODEL, s, s, flat, {})), kind


RULES = [
    {"kind": "kl", "threshold": 1.5}, {"kind": "minp-kl", "threshold": 0.5}, {"kind": "entropy-diff", "threshold": 0.5},
    {"kind": "argmax-stability", "count": 1}, {"kind": "cosine", "threshold": 0.5},
]  # fmt: skip


def test_answers_are_those_of_full_passes() -> None:
    """The engine's tokens and exit depths, on cached keys, are those of a pass over all tokens for each new one."""
    model, draw, depths = make("huginn-tiny", intermediate_size=16), random.Random(3), set()
    wishes = [RequestOptions((5, 6, 7), 6, 4, exit=build_exit(rule, model)) for rule in RULES]
    requests, _ = serve(Scheduler(model, rows=3, tokens=120, chunk=2), wishes, draw)
    for wish, request in zip(wishes, requests, strict=True):
        assert (request.tokens, request.depths) == recomputed(model, wish), wish.exit
        depths |= set(request.depths)
    assert len(depths) > 2


@differs(HUGINN, "exit rules `divergence`, `stable` and `entropy`")
def test_our_own_rules_keep_their_names() -> None:
    p, q = torch.tensor([2.0, 0, 0]), torch.tensor([0.0, 0, 1])
    ours, theirs = build_exit("divergence", MODEL), build_exit("kl", MODEL)
    memories: list[dict] = [{}, {}]
    first = [rule.measure(MODEL, p, p, p, memory) for rule, memory in zip((ours, theirs), memories, strict=True)]
    second = [rule.measure(MODEL, p, p, q, memory) for rule, memory in zip((ours, theirs), memories, strict=True)]
    a, b = p.softmax(-1), q.softmax(-1)
    assert math.isnan(first[0]) and float(second[0]) == pytest.approx(float((b * (b / a).log()).sum()), abs=1e-6)
    assert float(second[1]) == pytest.approx(float((a * (a / b).log()).sum()), abs=1e-6)
    assert (build_exit("divergence", MODEL).threshold, build_exit("stable", MODEL).count) == (0.01, 2)


@differs(HUGINN, "exits of a prompt")
def test_a_prompt_runs_at_full_depth_but_for_its_last_token() -> None:
    model = make("huginn-tiny", intermediate_size=16)
    wish = RequestOptions((5, 6, 7, 8), 6, 1, exit=build_exit({"kind": "change", "threshold": 1e9}, model))
    scheduler = Scheduler(model, rows=1, tokens=40)
    (request,), _ = serve(scheduler, [wish], random.Random(0))
    assert request.depths == [1] and scheduler.ran.prefill_tokens == 3
