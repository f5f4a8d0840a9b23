"""When a token may leave the loop before its last step: small rules, one table.

A rule measures one number after each step of a token, from the token's own states and read-outs, and lets the token leave where the
number reaches the rule's limit; the state of that step is then read out. What a rule must remember of earlier steps stands in
`memory`, as tensors. All of it works on tokens of any shape [...], so the same rule serves decoding, token by token, and a pass
over stored text, where one pass gives what any limit would have done. After the last step nobody is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import weighted_sum
from loopwright.schema import build_kind, check_kind, options_of

Memory = dict[str, Any]


class ExitRule:
    """Decides by what is there after a step. Abstract.

    `reads_out` says whether the rule needs the logits of every step; `averages_states`, whether a token that leaves is read out by
    the mean of its states so far, weighted by the model's halting, instead of by its last state; `usual` are limits that cover most
    models, from those at which tokens leave early to those at which they leave late.
    """

    reads_out: bool = False
    averages_states: bool = False
    usual: tuple[float, ...] = ()

    def __eq__(self, other: object) -> bool:
        """Equal rules with equal options decide alike: the engine asks them for several rows at once."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def check(self, model: LoopedForCausalLM) -> None:
        """Raises a ValueError where the model has not what the rule reads."""

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        """Returns a number per token [...] whose state went from `before` [..., D] to `after`, read out as `logits` [..., V].

        It is NaN where nothing can be said yet: no limit is reached by it.
        """
        raise NotImplementedError

    def reached(self, model: LoopedForCausalLM, measured: Tensor) -> Tensor:
        """Returns where the measured numbers reach the limit, in the same shape."""
        raise NotImplementedError

    def leaves(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        """Returns which tokens [...] leave now."""
        return self.reached(model, self.measure(model, before, after, logits, memory))


class BelowThreshold(ExitRule):
    """Leaves where the measured number falls below `threshold`. Abstract."""

    threshold: float

    def reached(self, model: LoopedForCausalLM, measured: Tensor) -> Tensor:
        return measured < self.threshold


class Never(ExitRule):
    """Every token runs all steps."""

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        return torch.full(after.shape[:-1], math.nan, device=after.device)

    def reached(self, model: LoopedForCausalLM, measured: Tensor) -> Tensor:
        return torch.zeros_like(measured, dtype=torch.bool)


class GateExit(ExitRule):
    """Ouro's rule: the exit gate's cumulative probability reaches `threshold` (the model's own where none is given)."""

    usual = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)

    def __init__(self, threshold: float | None = None) -> None:
        self.threshold = None if threshold is None else _from_zero("gate", "threshold", threshold)

    def check(self, model: LoopedForCausalLM) -> None:
        if model.halting.mixes != "logits":
            raise ValueError("exit: 'gate' needs a model with an exit gate (halting kind 'exit')")

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        values = memory.setdefault("values", [])
        values.append(model.halting.value(after))
        # the last step takes what is left, so one more stands behind those that were run
        every = torch.cat([*values, torch.zeros_like(values[0])], -1)
        probabilities = model.halting(every.reshape(1, -1, every.shape[-1])).reshape(every.shape)
        return probabilities[..., :-1].sum(-1)

    def reached(self, model: LoopedForCausalLM, measured: Tensor) -> Tensor:
        return measured >= (model.halting.threshold if self.threshold is None else self.threshold)


class Act(ExitRule):
    """ACT's rule for when to stop: the halting values sum to 1 − `eps` (the model's own where none is given).

    What is read out is the mean of the states by halting weight, as in training. A model with a coda is read at its last state,
    because the coda's keys of earlier tokens are those of last states.
    """

    usual = (0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.01)

    def __init__(self, eps: float | None = None) -> None:
        self.eps = None if eps is None else _from_zero("act", "eps", eps)

    def check(self, model: LoopedForCausalLM) -> None:
        if model.halting.mixes != "states":
            raise ValueError("exit: 'act' needs a model that halts by ACT (halting kind 'act' or 'halter')")
        if model.halting.reads == "before":
            kind = model.config.halting["kind"]
            raise ValueError(f"exit: 'act' reads states after their step, and halting {kind!r} before it; allowed: another rule")
        self.averages_states = model.config.coda_layers == 0

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        memory["sum"] = memory.get("sum", 0) + model.halting.value(after)[..., 0]
        return memory["sum"]

    def reached(self, model: LoopedForCausalLM, measured: Tensor) -> Tensor:
        return measured >= 1 - (model.halting.eps if self.eps is None else self.eps)


class Change(BelowThreshold):
    """The state moved by less than `threshold` of its length: ‖s′ − s‖ < threshold · ‖s′‖, one of Huginn's criteria."""

    usual: tuple[float, ...] = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.01)

    def __init__(self, threshold: float = 0.03) -> None:
        self.threshold = _from_zero("change", "threshold", threshold)

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        return (after - before).float().norm(dim=-1) / after.float().norm(dim=-1)


class Divergence(BelowThreshold):
    """The read-out moved by less than `threshold` nats: KL(p_t ‖ p_{t−1}). The first step never leaves."""

    reads_out = True
    usual: tuple[float, ...] = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)

    def __init__(self, threshold: float = 0.01) -> None:
        self.threshold = _from_zero("divergence", "threshold", threshold)

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        assert logits is not None
        now, last = logits.float().log_softmax(-1), memory.get("last")
        memory["last"] = now
        return now.new_full(now.shape[:-1], math.nan) if last is None else (now.exp() * (now - last)).sum(-1)


class Entropy(BelowThreshold):
    """The read-out is sure: its entropy is below `threshold` nats."""

    reads_out = True
    usual: tuple[float, ...] = (4.0, 3.0, 2.5, 2.0, 1.5, 1.0, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01)

    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = _from_zero("entropy", "threshold", threshold)

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        assert logits is not None
        logs = logits.float().log_softmax(-1)
        return -(logs.exp() * logs).sum(-1)


class Stable(ExitRule):
    """The most likely token was the same after `count` steps in a row."""

    reads_out = True
    usual: tuple[float, ...] = (2, 3, 4, 5)

    def __init__(self, count: int = 2) -> None:
        self.count = _from_one("stable", "count", count)

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        assert logits is not None
        token = logits.argmax(-1)
        same = token == memory["token"] if "token" in memory else torch.zeros_like(token, dtype=torch.bool)
        memory["run"] = torch.where(same, memory.get("run", 0) + 1, 1)
        memory["token"] = token
        return memory["run"].float()

    def reached(self, model: LoopedForCausalLM, measured: Tensor) -> Tensor:
        return measured >= self.count


class Kl(BelowThreshold):
    """Huginn's `kl` (arXiv 2502.05171, public code): KL(p_{t−1} ‖ p_t) is below `threshold` nats, the other way round than
    `divergence`. Before the first step p is uniform, so that a token may leave after it."""

    reads_out = True
    usual: tuple[float, ...] = Divergence.usual

    def __init__(self, threshold: float = 0.001) -> None:
        self.threshold = _from_zero("kl", "threshold", threshold)

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        assert logits is not None
        now, uniform = self.log_probabilities(logits.float()), -math.log(logits.shape[-1])
        last = memory.get("last", torch.full_like(now, uniform))
        memory["last"] = now
        return (last.exp() * (last - now)).sum(-1)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Returns log p [..., V] of a read-out."""
        return logits.log_softmax(-1)


class MinPKl(Kl):
    """Huginn's `minp-kl`: `kl` of read-outs in which every token below a tenth of the likeliest counts as 1/V."""

    usual = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)

    def __init__(self, threshold: float = 1e-5) -> None:
        self.threshold = _from_zero("minp-kl", "threshold", threshold)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        p = logits.softmax(-1)
        p = torch.where(p < 0.1 * p.amax(-1, keepdim=True), 1 / p.shape[-1], p)
        return (p / p.sum(-1, keepdim=True)).log()


class EntropyDiff(Entropy):
    """Huginn's `entropy-diff`: the entropy of the read-out moved by less than `threshold` nats; 100 stands before the first step,
    so that no token leaves after it."""

    usual = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)

    def __init__(self, threshold: float = 0.001) -> None:
        self.threshold = _from_zero("entropy-diff", "threshold", threshold)

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        now = super().measure(model, before, after, logits, memory)
        last = memory.get("last", torch.full_like(now, 100.0))
        memory["last"] = now
        return (now - last).abs()


class ArgmaxStability(Stable):
    """Huginn's `argmax-stability`: the most likely token was repeated `count` times in a row, so that count + 1 steps agree."""

    usual = (1, 2, 3, 4, 5)

    def __init__(self, count: int = 5) -> None:
        self.count = _from_one("argmax-stability", "count", count)

    def reached(self, model: LoopedForCausalLM, measured: Tensor) -> Tensor:
        return measured - 1 >= self.count


class Cosine(Change):
    """Huginn's `cosine`: the direction of the state turned by less than `threshold`, 1 − cos(s′, s)."""

    usual = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)

    def __init__(self, threshold: float = 0.001) -> None:
        self.threshold = _from_zero("cosine", "threshold", threshold)

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        s, last = after.float(), before.float()
        return 1 - (s * last).sum(-1) / s.norm(dim=-1) / last.norm(dim=-1)


class Lookahead(ExitRule):
    """Another rule, one step ahead: a token leaves after the step that follows the one where `rule` would let it leave.

    Who leaves is then known a step before it happens, as in continuous depth batching (arXiv 2608.09444); a token takes two steps
    at least.
    """

    def __init__(self, rule: str | dict[str, Any] = "change") -> None:
        spec = {"kind": rule} if isinstance(rule, str) else rule
        check_kind("exit (lookahead): rule", spec, EXITS)
        if spec["kind"] == "lookahead":
            raise ValueError("exit (lookahead): rule is a lookahead itself; give one of the other kinds")
        self.rule: ExitRule = build_kind(spec, EXITS)
        self.reads_out, self.usual = self.rule.reads_out, self.rule.usual

    def check(self, model: LoopedForCausalLM) -> None:
        self.rule.check(model)
        self.averages_states = self.rule.averages_states

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        now, last = self.rule.measure(model, before, after, logits, memory.setdefault("rule", {})), memory.get("last")
        memory["last"] = now
        return torch.full_like(now, math.nan) if last is None else last

    def reached(self, model: LoopedForCausalLM, measured: Tensor) -> Tensor:
        return self.rule.reached(model, measured)


def _from_zero(kind: str, name: str, value: float) -> float:
    if value < 0:
        raise ValueError(f"exit ({kind}): {name} must be a number >= 0 (got {value})")
    return value


def _from_one(kind: str, name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"exit ({kind}): {name} must be a whole number >= 1 (got {value})")
    return value


EXITS: dict[str, type] = {
    "never": Never,
    "gate": GateExit,
    "act": Act,
    "change": Change,
    "divergence": Divergence,
    "entropy": Entropy,
    "stable": Stable,
    "kl": Kl,
    "minp-kl": MinPKl,
    "entropy-diff": EntropyDiff,
    "argmax-stability": ArgmaxStability,
    "cosine": Cosine,
    "lookahead": Lookahead,
}


def parse_exit(word: str) -> dict[str, Any]:
    """Returns the mapping of a rule as the command line writes it: a kind, or a kind and its number (`change:0.05`).

    What follows `lookahead:` is the rule that is asked a step ahead (`lookahead:change:0.05`).
    """
    kind, _, number = word.partition(":")
    check_kind("exit", {"kind": kind}, EXITS)
    if not number:
        return {"kind": kind}
    if EXITS[kind] is Lookahead:
        return {"kind": kind, "rule": parse_exit(number)}
    options = list(options_of(EXITS[kind]))
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"exit: {number!r} is not a number; write KIND or KIND:NUMBER, such as change:0.05") from None
    if not options:
        raise ValueError(f"exit: {kind!r} takes no number; write {kind} alone")
    return {"kind": kind, options[0]: int(value) if value.is_integer() and options[0] == "count" else value}


def write_exit(spec: Mapping[str, Any]) -> str:
    """Returns a rule as the command line writes it: what `parse_exit` reads."""
    kind, options = spec["kind"], [value for name, value in spec.items() if name != "kind"]
    if not options:
        return str(kind)
    return f"{kind}:{write_exit(options[0]) if isinstance(options[0], Mapping) else f'{options[0]:g}'}"


def exit_family(spec: Mapping[str, Any]) -> str:
    """Returns what a rule measures, whatever its limit: rules of one family share their measurements."""
    if spec["kind"] == "lookahead":
        return f"lookahead:{exit_family(_mapping(spec.get('rule', 'change')))}"
    return str(spec["kind"])


def usual_exits(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the rules that a kind without a number stands for where a trade-off is drawn: one for each of its usual limits."""
    if spec["kind"] == "lookahead":
        return [{"kind": "lookahead", "rule": rule} for rule in usual_exits(_mapping(spec.get("rule", "change")))]
    if len(spec) > 1:
        return [dict(spec)]
    kind: type[ExitRule] = EXITS[spec["kind"]]
    name = next(iter(options_of(kind)), "")
    return [{"kind": spec["kind"], name: limit} for limit in kind.usual] or [dict(spec)]


def build_exit(spec: str | Mapping[str, Any], model: LoopedForCausalLM) -> ExitRule:
    """Returns the rule that a kind, or a mapping with a kind and its options, describes; raises where the model lacks its input."""
    options = _mapping(spec)
    check_kind("exit", options, EXITS)
    rule: ExitRule = build_kind(options, EXITS)
    if not model.config.is_looped:
        raise ValueError("exit: a dense model has no loop to leave; leave exit out")
    rule.check(model)
    return rule


def mean_state(model: LoopedForCausalLM, states: Sequence[Tensor]) -> Tensor:
    """Returns the mean [..., D] of the states [..., D] after each step so far, by the weights of the model's halting."""
    flat = [s.reshape(1, -1, s.shape[-1]) for s in states]
    return weighted_sum(model.halting(model.halting.values(flat)), flat).reshape(states[-1].shape)


def _mapping(spec: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"kind": spec} if isinstance(spec, str) else spec
