"""Each rule on numbers made by hand, and on a model whose own exit rule it repeats."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from loopwright.generation.exit_rules import EXITS, build_exit, parse_exit, usual_exits, write_exit
from loopwright.model.parts.halting import HaltingHead
from tests.cases import noisy
from tests.generation.tiny import DENSE

MODEL = noisy("huginn-tiny")


def asked(spec: Any, states: list[float], logits: list[list[float]] | None = None, model: Any = MODEL) -> list[bool]:
    """Returns what a rule says after each step of a token whose state is one number everywhere."""
    rule, memory = build_exit(spec, model), {}
    s = [torch.full((model.config.hidden_size,), x) for x in states]
    read = [None] * len(states) if logits is None else [torch.tensor(row) for row in logits]
    return [bool(rule.leaves(model, s[t], s[t + 1], read[t], memory)) for t in range(len(states) - 1)]


def test_never() -> None:
    assert asked("never", [0.0, 0.0, 0.0]) == [False, False]


def test_change_is_relative() -> None:
    assert asked({"kind": "change", "threshold": 0.1}, [1.0, 2.0, 2.1, 2.0]) == [False, True, True]
    assert asked({"kind": "change", "threshold": 0.1}, [10.0, 20.0, 21.0, 20.0]) == [False, True, True]


def test_read_outs() -> None:
    sure, other, unsure = [9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.1, 0.0, 0.0]
    steps = [unsure, unsure, sure, other, other]
    states = [1.0] * 6
    assert asked({"kind": "entropy", "threshold": 0.5}, states, [*steps, sure]) == [False, False, True, True, True]
    assert asked({"kind": "divergence", "threshold": 0.01}, states, [*steps, sure]) == [False, True, False, False, True]
    assert asked({"kind": "stable", "count": 2}, states, [*steps, sure]) == [False, True, True, False, True]
    assert asked({"kind": "stable", "count": 3}, states, [*steps, sure]) == [False, False, True, False, False]


@torch.no_grad()
def test_learned_halting_leaves_where_the_model_says() -> None:
    states = torch.randn(5, 1, 32)
    gate = noisy("huginn-tiny", halting={"kind": "exit", "threshold": 0.7})
    wanted = int(gate.halting.exit_step(gate.halting(gate.halting.values(states[1:].split(1))[:, 0][None]))[0, 0])
    rule, memory = build_exit("gate", gate), {}
    left = [bool(rule.leaves(gate, states[t, 0], states[t + 1, 0], None, memory)) for t in range(4)]
    assert (left.index(True) if True in left else 3) == wanted
    act = noisy("huginn-tiny", halting={"kind": "act"})
    halt = act.halting.values(states[1:].split(1))
    rule, memory = build_exit("act", act), {}
    left = [bool(rule.leaves(act, states[t, 0], states[t + 1, 0], None, memory)) for t in range(4)]
    assert (left.index(True) if True in left else 3) == int(act.halting._stop(halt)[1].flatten()[0])


@pytest.mark.parametrize("kind", ["gate", "act", "change", "divergence", "entropy", "kl", "minp-kl", "entropy-diff", "cosine"])
def test_limits_below_zero_are_refused(kind: str) -> None:
    name = "eps" if kind == "act" else "threshold"
    with pytest.raises(ValueError, match=rf"exit \({kind}\): {name} must be a number >= 0 \(got -0.1\)"):
        build_exit({"kind": kind, name: -0.1}, MODEL)


class SecondStep(HaltingHead):
    """A kind of the user's own: every token leaves after its second step, whatever its values are."""

    def __init__(self, mixes: str) -> None:
        super().__init__()
        self.mixes = mixes  # type: ignore[misc]

    def value(self, s: torch.Tensor) -> torch.Tensor:
        return torch.full_like(s[..., :1], 0.5)

    def forward(self, halt: torch.Tensor) -> torch.Tensor:
        probabilities = torch.zeros_like(halt)
        probabilities[..., min(1, halt.shape[-1] - 1)] = 1.0
        return probabilities


@pytest.mark.parametrize(("kind", "mixes"), [("gate", "logits"), ("act", "states")])
def test_a_halting_kind_of_the_users_own_is_asked(kind: str, mixes: str) -> None:
    model = noisy("huginn-tiny")
    model.halting = SecondStep(mixes)
    assert asked(kind, [1.0, 2.0, 3.0, 4.0], model=model) == [False, True, True]


def test_what_a_model_cannot_do_is_refused() -> None:
    for kind in ("gate", "act"):
        with pytest.raises(ValueError, match=f"exit: '{kind}' needs a model"):
            build_exit(kind, MODEL)
    with pytest.raises(ValueError, match="a dense model has no loop to leave"):
        build_exit("never", noisy("ouroboros-qwen2.5-3b-tiny", **DENSE))
    with pytest.raises(ValueError, match="unknown kind 'ever'; did you mean 'never'"):
        build_exit("ever", MODEL)
    for kind in ("stable", "argmax-stability"):
        with pytest.raises(ValueError, match=rf"exit \({kind}\): count must be a whole number >= 1 \(got 0\)"):
            build_exit({"kind": kind, "count": 0}, MODEL)
    with pytest.raises(ValueError, match="exit \\(change\\)"):
        build_exit({"kind": "change", "limit": 1}, MODEL)
    huginn = {"kl", "minp-kl", "entropy-diff", "argmax-stability", "cosine"}
    assert set(EXITS) == {"never", "gate", "act", "change", "divergence", "entropy", "stable", "lookahead"} | huginn


def test_a_lookahead_leaves_a_step_later() -> None:
    sure, unsure = [9.0, 0.0, 0.0], [0.1, 0.0, 0.0]
    rule = {"kind": "entropy", "threshold": 0.5}
    steps, states = [sure, unsure, sure, unsure], [1.0] * 5
    assert asked(rule, states, steps) == [True, False, True, False]
    assert asked({"kind": "lookahead", "rule": rule}, states, steps) == [False, True, False, True]
    with pytest.raises(ValueError, match="rule is a lookahead itself"):
        build_exit({"kind": "lookahead", "rule": "lookahead"}, MODEL)
    with pytest.raises(ValueError, match="'gate' needs a model"):
        build_exit({"kind": "lookahead", "rule": "gate"}, MODEL)


def test_words_of_the_command_line() -> None:
    for word in ("never", "change:0.05", "stable:3", "minp-kl:0.01", "argmax-stability:4", "lookahead:kl:0.05", "lookahead"):
        assert write_exit(parse_exit(word)) == word
    usual = [write_exit(spec) for spec in usual_exits(parse_exit("lookahead:stable"))]
    assert usual == ["lookahead:stable:2", "lookahead:stable:3", "lookahead:stable:4", "lookahead:stable:5"]
    assert usual_exits(parse_exit("change:0.05")) == [{"kind": "change", "threshold": 0.05}]
    assert usual_exits({"kind": "never"}) == [{"kind": "never"}]


@pytest.mark.parametrize("spec", [*sorted(set(EXITS) - {"never", "gate", "act"}), {"kind": "lookahead", "rule": "stable"}])
def test_many_tokens_are_asked_as_one(spec: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    states, logits = torch.randn(5, 2, 3, 32, generator=generator), 0.3 * torch.randn(4, 2, 3, 7, generator=generator)
    rule, memory = build_exit(spec, MODEL), {}
    together = torch.stack([rule.measure(MODEL, states[t], states[t + 1], logits[t], memory) for t in range(4)])
    for row, place in itertools.product(range(2), range(3)):
        memory = {}
        alone = [
            rule.measure(MODEL, states[t, row, place], states[t + 1, row, place], logits[t, row, place], memory) for t in range(4)
        ]
        torch.testing.assert_close(together[:, row, place], torch.stack(alone), equal_nan=True)
