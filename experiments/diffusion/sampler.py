"""The diffusion-forcing sampler for models with input injection (arXiv 2510.14961): several positions are refined at once.

A round runs the prelude on the tokens that are not settled (the wavefront), mixes their inputs with those of the round before
(share `average`) and their states with fresh noise (share `noise` / (1 + rounds of the position)), runs `inner` core steps on all
of them, and reads all of them out: what position i says is the next guess of token i + 1. Then positions at the left end settle
whose states moved by less than `threshold` of their length, or that have had all their rounds. The wavefront grows by one position.

The keys of a settled position are those of its last round: step t of a later round attends to step t of that round. So keys do not
grow with the rounds, and the sampler is an approximation. With one position at a time and one round of all steps it is plain greedy
decoding. Two details are ours: settled positions are a prefix of the wavefront, and a position whose token was just replaced waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import torch

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.keys.cache import LoopCache


@dataclass(frozen=True)
class Forcing:
    """Core steps of a round, the most rounds of a position, what settles it, how much is mixed in, and how far it looks ahead."""

    inner: int = 4
    rounds: int = 4
    threshold: float = 0.03
    noise: float = 0.5
    average: float = 0.1
    wavefront: int = 128


@dataclass(frozen=True)
class Forced:
    """The tokens, the core steps that ran one after the other, and those of single positions; the prompt's are not counted."""

    tokens: list[int]
    steps: int
    position_steps: int


@torch.no_grad()
def force(model: LoopedForCausalLM, prompt: list[int], new_tokens: int, how: Forcing, *, state_seed: int = 0) -> Forced:
    """Returns the greedy continuation of one prompt."""
    cache, text, last = LoopCache(model.config), list(prompt), len(prompt) + new_tokens - 1  # the last token is never run
    front = Front(model, cache, how, state_seed)
    guesses = front.read_prompt(text)
    tokens, steps, position_steps = guesses[-1:], 0, 0
    while len(text) < last:
        guesses = front.run(tokens, len(text))
        steps, position_steps = steps + how.inner, position_steps + how.inner * len(tokens)
        before, tokens = tokens, [tokens[0], *guesses[:-1]]
        # a token that was replaced in this round has the state of the one before it
        count = front.settle([old == new for old, new in zip(before, tokens, strict=True)])
        text += tokens[:count]
        tokens = tokens[count:]
        if len(tokens) < how.wavefront and len(text) + len(tokens) < last:
            tokens.append(guesses[-1])
    return Forced([*text, guesses[-1]][len(prompt) :], steps, position_steps)


class Front:
    """Inputs and states [1, W, D] of the positions that are not settled, and how many rounds each has had."""

    def __init__(self, model: LoopedForCausalLM, cache: LoopCache, how: Forcing, seed: int) -> None:
        self.model, self.cache, self.how, self.seed = model, cache, how, seed
        self.rounds, self.ages = 0, [0] * 0
        nothing = model.lm_head.weight.new_zeros(1, 0, model.config.hidden_size)
        self.e, self.s, self.moved = nothing, nothing, nothing[0, :, 0]

    def read_prompt(self, prompt: list[int]) -> list[int]:
        """Runs all rounds of the prompt without noise; it settles as a whole. Returns what each position says."""
        for _ in range(self.how.rounds):
            self.cache.reset()
            guesses = self._round(prompt, noise=0.0, average=0.0)
        self._keep(len(prompt))
        return guesses

    def run(self, tokens: list[int], first: int) -> list[int]:
        """Runs one round of the tokens from position `first` on; returns what each position says."""
        self.cache.crop(first)
        return self._round(tokens, noise=self.how.noise, average=self.how.average)

    def _round(self, tokens: list[int], *, noise: float, average: float) -> list[int]:
        model, old = self.model, len(self.ages)
        e, p = model.embed(torch.tensor([tokens]), depth=self.how.inner, cache=self.cache)
        self.cache.make_room((self.how.inner,))
        e = torch.cat([(1 - average) * e[:, :old] + average * self.e, e[:, old:]], 1)
        start = model.start_state(e, p, self.seed)
        fresh = model.start_state(e, p, self.seed + 1 + self.rounds)
        share = e.new_tensor([noise / (1 + age) for age in self.ages])[None, :, None]
        before = torch.cat([self.s, start[:, old:]], 1)
        mixed = torch.cat([(1 - share) * self.s + share * fresh[:, :old], start[:, old:]], 1)
        *_, s = model.unroll(e, self.how.inner, p, state=mixed)
        logits = model.read_out(s, p, reading=self.how.inner)
        self.cache.advance(p.batch_span)
        self.moved = ((s - before).norm(dim=-1) / s.norm(dim=-1))[0]
        self.e, self.s, self.rounds = e, s, self.rounds + 1
        self.ages = [age + 1 for age in (*self.ages, *[0] * (len(tokens) - old))]
        return logits[0].float().argmax(-1).tolist()

    def settle(self, unchanged: list[bool]) -> int:
        """Returns how many positions at the left end settle, and forgets them."""
        still = [
            moved < self.how.threshold or age >= self.how.rounds for moved, age in zip(self.moved.tolist(), self.ages, strict=True)
        ]
        count = sum(1 for _ in takewhile(bool, (a and b for a, b in zip(still, unchanged, strict=True))))
        self._keep(count)
        return count

    def _keep(self, settled: int) -> None:
        self.e, self.s, self.ages = self.e[:, settled:], self.s[:, settled:], self.ages[settled:]
