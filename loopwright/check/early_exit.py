"""Equalities of early exit: a rule that never lets a token leave changes nothing, and tokens that leave early cost no exactness."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loopwright.check.probes import Probe
from loopwright.check.verdict import NotOfferedError, Verdict
from loopwright.engine.request import Request, RequestOptions, Result
from loopwright.engine.scheduler import Scheduler
from loopwright.engine.trail import check_mean_read, mean_read
from loopwright.generate.exit_rules import ExitRule, Memory, Never
from loopwright.model.looped import LoopedForCausalLM

DEEPEST = 3
PROMPT, PLAN = 4, (1, 3, 2, 3, 1)  # deep tokens after shallow ones need keys that these have not made


class Planned(ExitRule):
    """Tokens leave after the numbers of steps of a plan, in their order: exits of all sizes, whatever the weights are."""

    def __init__(self, depths: Sequence[int]) -> None:
        self.depths, self.token = depths, -1

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        if not memory:  # the first step of a token
            self.token += 1
        memory["steps"] = memory.get("steps", after.new_zeros(after.shape[:-1])) + 1
        return memory["steps"]

    def reached(self, model: LoopedForCausalLM, measured: Tensor) -> Tensor:
        return measured >= self.depths[self.token]


def early_exits(probe: Probe) -> Verdict:
    """Decoding with a rule that never leaves = plain decoding, bit for bit; with exits = a full pass at each token's exit depth."""
    model = probe.own
    if model is None:
        raise NotOfferedError("not a loopwright model")
    probe.need_core()
    config = model.config
    deepest = DEEPEST if config.max_steps is None or config.beyond_max_steps != "refuse" else min(DEEPEST, config.max_steps)
    if deepest < 2:
        raise NotOfferedError("the model has parameters for one step alone")
    if model.leaks_future:
        raise NotOfferedError("the model reads future tokens, so it has no cache")
    try:
        check_mean_read(model, "exit")
    except ValueError as error:
        raise NotOfferedError(str(error)) from None
    tally, prompt = probe.tally(), tuple(probe.ids(1, seed=5)[0, :PROMPT].tolist())
    plain, never = (_answer(model, prompt, deepest, rule) for rule in (None, Never()))
    tally.hold(f"never leaving draws {never.tokens}, plain decoding {plain.tokens}", never.tokens == plain.tokens)
    tally.same("never leaving", torch.tensor(never.logprobs), torch.tensor(plain.logprobs))
    plan = [min(steps, deepest) for steps in PLAN]
    exits = _answer(model, prompt, deepest, Planned(plan))
    tally.hold(f"tokens left after {exits.depths} steps, planned were {plan}", exits.depths == plan)
    for place, (token, depth, logprob) in enumerate(zip(exits.tokens, exits.depths, exits.logprobs or [], strict=True)):
        ids = torch.tensor([[*prompt, *exits.tokens[:place]]], device=model.device)
        select = "expected" if mean_read(model) else "last"
        logits = probe.logits(ids, options={"depth": depth, "select": select})[0, -1].double()
        size = logits.abs().max()  # rounding is as large as the logits allow, however sure the token is
        tally.close(f"token {place} after {depth} steps", size + logprob, size + logits.log_softmax(-1)[token])
    return tally.verdict()


def _answer(model: LoopedForCausalLM, prompt: tuple[int, ...], depth: int, rule: ExitRule | None) -> Result:
    """Returns a greedy answer under a rule; the last prompt token is run alone, as a rule needs it."""
    scheduler = Scheduler(model, rows=1, tokens=PROMPT + len(PLAN), depth=depth, readings=depth, chunk=PROMPT - 1, lag=0)
    request = Request(RequestOptions(prompt, depth, len(PLAN), logprobs=True, exit=rule))
    scheduler.add(request)
    while scheduler.busy:
        scheduler.tick()
    return request.result(0)
