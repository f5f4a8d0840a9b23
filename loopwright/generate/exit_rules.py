"""When a token may leave the loop before its last step: small rules, one table.

A rule is asked after each step of a token but the last, and answers whether the token leaves there; the state of that step is then
read out. What a rule must remember of earlier steps of the token stands in `memory`, so a rule is a function of the token's own
states and read-outs, and the same rule serves decoding and a pass over stored text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from loopwright.model.looped import LoopedForCausalLM
from loopwright.settings import build_kind, check_kind, options_of

Memory = dict[str, Any]


class ExitRule:
    """Decides by what is there after a step. Abstract: `reads_out` says whether the rule needs the logits of every step."""

    reads_out: ClassVar[bool] = False

    def check(self, model: LoopedForCausalLM) -> None:
        """Raises a ValueError where the model has not what the rule reads."""

    def leaves(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> bool:
        """Whether the token whose state went from `before` [D] to `after` [D], read out as `logits` [V], leaves now."""
        raise NotImplementedError


class Never(ExitRule):
    """Every token runs all steps."""

    def leaves(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> bool:
        return False


class Gate(ExitRule):
    """Ouro's rule: the exit gate's cumulative probability reaches `threshold` (the model's own where none is given)."""

    def __init__(self, threshold: float | None = None) -> None:
        self.threshold = None if threshold is None else _from_zero("gate", "threshold", threshold)

    def check(self, model: LoopedForCausalLM) -> None:
        if model.halting.mixes != "logits":
            raise ValueError("exit: 'gate' needs a model with an exit gate (halting kind 'exit')")

    def leaves(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> bool:
        values = memory.setdefault("values", [])
        values.append(model.halting.value(after))
        # the last step takes what is left, so one more stands behind those that were run
        probabilities = model.halting(torch.cat([*values, torch.zeros_like(values[0])])[None, None])[0, 0, :-1]
        return bool(probabilities.cumsum(-1)[-1] >= (model.halting.threshold if self.threshold is None else self.threshold))


class Act(ExitRule):
    """ACT's rule for when to stop: the halting values sum to 1 − `eps` (the model's own where none is given).

    The state of the last step is read out, not the mean of all states.
    """

    def __init__(self, eps: float | None = None) -> None:
        self.eps = None if eps is None else _from_zero("act", "eps", eps)

    def check(self, model: LoopedForCausalLM) -> None:
        if model.halting.mixes != "states":
            raise ValueError("exit: 'act' needs a model that halts by ACT (halting kind 'act')")

    def leaves(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> bool:
        memory["sum"] = memory.get("sum", 0) + model.halting.value(after)[0]
        return bool(memory["sum"] >= 1 - (model.halting.eps if self.eps is None else self.eps))


class Change(ExitRule):
    """The state moved by less than `threshold` of its length: ‖s′ − s‖ < threshold · ‖s′‖."""

    def __init__(self, threshold: float = 0.03) -> None:
        self.threshold = _from_zero("change", "threshold", threshold)

    def leaves(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> bool:
        return bool((after - before).float().norm() < self.threshold * after.float().norm())


class Divergence(ExitRule):
    """The read-out moved by less than `threshold` nats: KL(p_t ‖ p_{t−1}). The first step never leaves."""

    reads_out = True

    def __init__(self, threshold: float = 0.01) -> None:
        self.threshold = _from_zero("divergence", "threshold", threshold)

    def leaves(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> bool:
        assert logits is not None
        now, last = logits.float().log_softmax(-1), memory.get("last")
        memory["last"] = now
        return last is not None and bool((now.exp() * (now - last)).sum() < self.threshold)


class Entropy(ExitRule):
    """The read-out is sure: its entropy is below `threshold` nats."""

    reads_out = True

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = _from_zero("entropy", "threshold", threshold)

    def leaves(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> bool:
        assert logits is not None
        logs = logits.float().log_softmax(-1)
        return bool(-(logs.exp() * logs).sum() < self.threshold)


class Stable(ExitRule):
    """The most likely token was the same after `count` steps in a row."""

    reads_out = True

    def __init__(self, count: int = 2) -> None:
        if count < 1:
            raise ValueError(f"exit (stable): count must be a whole number >= 1 (got {count})")
        self.count = count

    def leaves(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> bool:
        assert logits is not None
        token = int(logits.argmax())
        memory["run"] = memory["run"] + 1 if memory.get("token") == token else 1
        memory["token"] = token
        return memory["run"] >= self.count


def _from_zero(kind: str, name: str, value: float) -> float:
    if value < 0:
        raise ValueError(f"exit ({kind}): {name} must be a number >= 0 (got {value})")
    return value


EXITS: dict[str, type] = {
    "never": Never,
    "gate": Gate,
    "act": Act,
    "change": Change,
    "divergence": Divergence,
    "entropy": Entropy,
    "stable": Stable,
}


def parse_exit(word: str) -> dict[str, Any]:
    """Returns the mapping of a rule as the command line writes it: a kind, or a kind and its number (`change:0.05`)."""
    kind, _, number = word.partition(":")
    check_kind("exit", {"kind": kind}, EXITS)
    if not number:
        return {"kind": kind}
    options = list(options_of(EXITS[kind]))
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"exit: {number!r} is not a number; write KIND or KIND:NUMBER, such as change:0.05") from None
    if not options:
        raise ValueError(f"exit: {kind!r} takes no number; write {kind} alone")
    return {"kind": kind, options[0]: int(value) if value.is_integer() and options[0] == "count" else value}


def build_exit(spec: str | Mapping[str, Any], model: LoopedForCausalLM) -> ExitRule:
    """Returns the rule that a kind, or a mapping with a kind and its options, describes; raises where the model lacks its input."""
    given = {"kind": spec} if isinstance(spec, str) else spec
    check_kind("exit", given, EXITS)
    rule: ExitRule = build_kind(given, EXITS)
    if not model.config.is_looped:
        raise ValueError("exit: a dense model has no loop to leave; leave exit out")
    rule.check(model)
    return rule
