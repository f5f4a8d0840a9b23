"""Sampling as a pure function of (seed, request, position, token): the Gumbel-max trick with hashed noise.

    token = argmax over v of  z_v + g_v
    z = (logits + bias, penalised) / temperature,  g_v = −log(−log u(seed, request, position, v))

u comes from a counter-based integer hash, so a draw depends neither on the batch it is drawn in nor on how many draws came
before. Batched decoding, speculation and a repeated request then give the same tokens at any temperature. top-k, top-p and
min-p each exclude the scores below a threshold, and apply together. A grammar excludes tokens before all of this.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria

from loopwright.generation.constraints import Constraint, ConstraintError, GrammarState
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.state import STATES, mix, signed
from loopwright.schema import is_whole

COLDEST = 1e-6  # below it every draw is the largest logit, and scores outgrow their dtype
LIMITS: dict[str, tuple[float, float, str]] = {
    "temperature": (COLDEST, math.inf, f"0 (greedy), or at least {COLDEST}"),
    "top_p": (0, 1, "from 0 to 1"),
    "top_k": (0, math.inf, "a whole number of at least 1 (0: none)"),
    "min_p": (0, 1, "from 0 to 1"),
    "repetition_penalty": (COLDEST, math.inf, "a number above 0 (1: none)"),
    "presence_penalty": (-1e6, 1e6, "a finite number (0: none)"),
    "frequency_penalty": (-1e6, 1e6, "a finite number (0: none)"),
}
SEED_STRIDE, POSITION_STRIDE, TOKEN_STRIDE = (signed(x) for x in (0x9E3779B97F4A7C15, 0xA0761D6478BD642F, 0xD1342543DE82EF95))


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn: greedily unless something is given; a temperature of 0 is greedy too.

    `repetition_penalty` divides the positive logits of every token of prompt and answer, and multiplies the negative ones;
    `presence_penalty` and `frequency_penalty` are subtracted from the logits of the answer's tokens, once and per occurrence.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in LIMITS or value is None:
                continue
            low, high, allowed = LIMITS[field.name]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{field.name}: {value!r}; allowed: {allowed}")
            if not low <= value <= high and (field.name, value) != ("temperature", 0):
                raise ValueError(f"{field.name}: {value}; allowed: {allowed}")
        if self.top_k is not None and not isinstance(self.top_k, int):
            raise ValueError(f"top_k: {self.top_k}; allowed: {LIMITS['top_k'][2]}")
        if not isinstance(self.logit_bias, Mapping | None):
            raise ValueError(f"logit_bias: {self.logit_bias!r}; give a mapping of token ids to finite numbers")
        for token, bias in (self.logit_bias or {}).items():
            if (
                isinstance(token, bool)
                or not isinstance(token, int)
                or not isinstance(bias, int | float)
                or not math.isfinite(bias)
            ):
                raise ValueError(f"logit_bias: {token!r}: {bias!r}; allowed: token ids with finite numbers")

    @property
    def draws(self) -> bool:
        """Whether chance has a part: a temperature above 0, or a cut of the distribution without a temperature."""
        if self.temperature is not None:
            return self.temperature > 0
        return bool(self.top_k) or self.top_p is not None or self.min_p is not None

    @property
    def counts_tokens(self) -> bool:
        """Whether earlier tokens change the scores."""
        return any(value is not None for value in (self.repetition_penalty, self.presence_penalty, self.frequency_penalty))

    @property
    def changes_scores(self) -> bool:
        """Whether the largest logit may not be the answer."""
        return self.draws or self.counts_tokens or bool(self.logit_bias)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises a ValueError where a bias is given to a token that the model does not know."""
        wrong = [token for token in self.logit_bias or {} if not 0 <= token < vocab_size]
        if wrong:
            raise ValueError(f"logit_bias: token {wrong[0]}; the model knows tokens 0 to {vocab_size - 1}")


@dataclass(frozen=True)
class Draw:
    """One draw: how, and the numbers that its noise is a function of. `position` is where the token will stand in its sequence.

    `excluded` are tokens that may not be drawn there.
    """

    sampling: Sampling
    seed: int
    position: int
    request: int = 0
    excluded: frozenset[int] = frozenset()


def sample(
    logits: Tensor,
    draws: Sequence[Draw],
    seen: Sequence[TokenCounts | None] | None = None,
    grammars: Sequence[GrammarState | None] | None = None,
) -> Tensor:
    """Returns one token per row [R] of logits [R, V].

    `seen` holds the earlier tokens of the rows whose sampling counts them, `grammars` what may follow in rows that are constrained.
    """
    tokens = logits.float().argmax(-1)  # in float32, as transformers' generate compares them
    allowed = [None if grammar is None else grammar.allowed for grammar in grammars or [None] * len(draws)]
    for row, draw in enumerate(draws):
        if draw.excluded:
            mask = torch.ones(logits.shape[-1], dtype=torch.bool) if (given := allowed[row]) is None else given.clone()
            mask[list(draw.excluded)] = False
            allowed[row] = mask
    rows = [row for row, draw in enumerate(draws) if draw.sampling.changes_scores or allowed[row] is not None]
    if not rows:
        return tokens
    chosen = [draws[row] for row in rows]
    picked = logits if len(rows) == len(draws) else logits[rows]
    counts = None if seen is None else [seen[row] for row in rows]
    scores = adjusted(picked, [draw.sampling for draw in chosen], counts, [allowed[row] for row in rows])
    drawn = [row for row, draw in enumerate(chosen) if draw.sampling.draws]
    if drawn:
        scores[drawn] += gumbel([chosen[row] for row in drawn], scores.shape[-1], scores.device)
    tokens[rows] = scores.argmax(-1)
    return tokens


def no_choice(tokens: int, step: int | None = None) -> ValueError:
    """Returns the error of a request whose logits say nothing after so many tokens; `step`: where every step is read out."""
    after = f"{tokens} tokens" if step is None else f"step {step} behind {tokens} tokens"
    return ValueError(
        f"request: logits are not finite after {after}, or all the same (a norm overflowed), so no token can be chosen"
    )


class TokenCounts:
    """How often each token stands in a prompt [V] and in the answer so far [V]; both stay on the device."""

    def __init__(self, prompt: Tensor, vocab_size: int) -> None:
        self.prompt = torch.bincount(prompt.flatten(), minlength=vocab_size)
        self.answer = torch.zeros_like(self.prompt)

    def after(self, tokens: Sequence[int]) -> TokenCounts:
        """Returns the counts with further tokens of the answer, leaving these as they are."""
        later = copy.copy(self)
        later.answer = self.answer.clone()
        later.add(torch.tensor(tokens, dtype=torch.long, device=self.answer.device))
        return later

    def add(self, tokens: Tensor) -> None:
        """Counts tokens of the answer."""
        self.answer.index_add_(0, tokens.flatten(), torch.ones_like(tokens.flatten()))


def adjusted(
    logits: Tensor,
    settings: Sequence[Sampling],
    seen: Sequence[TokenCounts | None] | None = None,
    allowed: Sequence[Tensor | None] | None = None,
) -> Tensor:
    """Returns the scores [R, V] whose softmax is the distribution that is drawn from; −inf where a token is excluded."""
    scores = logits.float().double()
    for row, sampling in enumerate(settings):
        mask = None if allowed is None else allowed[row]
        if mask is not None:  # first, so that cuts are those of the tokens that may follow
            scores[row].masked_fill_(~mask.to(scores.device), -math.inf)
        if sampling.logit_bias:
            tokens = torch.tensor(list(sampling.logit_bias), device=scores.device)
            scores[row, tokens] += torch.tensor(list(sampling.logit_bias.values()), dtype=scores.dtype, device=scores.device)
        counts = None if seen is None else seen[row]
        if sampling.counts_tokens and counts is not None:
            scores[row] = _penalised(scores[row], sampling, counts)

    def per_row(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=scores.dtype, device=scores.device)[:, None]

    if any(sampling.temperature for sampling in settings):
        scores = scores / per_row([s.temperature or 1.0 for s in settings])
    threshold = torch.full_like(scores[:, :1], -math.inf)
    if any(s.top_k or (s.top_p is not None and s.top_p < 1) for s in settings):
        ordered = scores.sort(-1, descending=True).values
        last = scores.shape[-1] - 1
        at = torch.tensor([[min(s.top_k - 1 if s.top_k else last, last)] for s in settings], device=scores.device)
        threshold = ordered.gather(1, at)
        if any(s.top_p is not None and s.top_p < 1 for s in settings):
            kept = ordered.masked_fill(ordered < threshold, -math.inf).softmax(-1)
            # the most likely token is always kept, and each further one until those before it hold top_p
            limit = per_row([2.0 if s.top_p is None or s.top_p >= 1 else s.top_p for s in settings])
            count = ((kept.cumsum(-1) - kept) < limit).sum(-1, keepdim=True).clamp(min=1)
            threshold = torch.maximum(threshold, ordered.gather(1, count - 1))
    if any(s.min_p for s in settings):
        limit = per_row([math.log(s.min_p) if s.min_p else -math.inf for s in settings])
        threshold = torch.maximum(threshold, scores.amax(-1, keepdim=True) + limit)
    return scores.masked_fill(scores < threshold, -math.inf)


def _penalised(scores: Tensor, sampling: Sampling, counts: TokenCounts) -> Tensor:
    if sampling.repetition_penalty is not None:
        factor = sampling.repetition_penalty
        scores = torch.where(counts.prompt + counts.answer > 0, torch.where(scores > 0, scores / factor, scores * factor), scores)
    present = (counts.answer > 0) * (sampling.presence_penalty or 0.0)
    return scores - present - counts.answer * (sampling.frequency_penalty or 0.0)


def gumbel(draws: Sequence[Draw], vocab_size: int, device: torch.device) -> Tensor:
    """Returns hashed Gumbel noise [R, V] in float64."""
    seeds, requests, positions = (
        torch.tensor([[signed(getattr(draw, name))] for draw in draws], device=device) for name in ("seed", "request", "position")
    )
    key = mix(mix(seeds * SEED_STRIDE + requests) + positions * POSITION_STRIDE)
    bits = mix(key + torch.arange(1, vocab_size + 1, device=device) * TOKEN_STRIDE)
    uniform = ((bits >> 12) & ((1 << 52) - 1)).double().add(0.5) / 2**52  # neither 0 nor 1
    return -torch.log(-torch.log(uniform))


def checked_whole(seed: int) -> int:
    """Returns a seed; raises where it does not fit into 64 bits."""
    if not is_whole(seed, -(2**63), 2**64 - 1):
        raise ValueError(f"seed must be a whole number from -2**63 to 2**64 - 1 (got {seed!r})")
    return seed


def checked_seed(model: LoopedForCausalLM, state_seed: int) -> int:
    """Returns the seed of the state; raises where the model's state starts without noise."""
    if not model.state.seeded:  # which may be a kind of the user's own, put there after the model was built
        check_seeded(model.config, "state_seed", state_seed)
    return state_seed


def check_seeded(config: LoopedConfig, name: str, value: int) -> None:
    """Raises a ValueError where the state of a model starts without noise, so that a seed of it says nothing."""
    kind = config.state["kind"]
    if not STATES[kind].seeded:
        raise ValueError(f"{name}: {value} would change nothing; this model's state starts as {kind!r}, not as noise")


class HashedDraws(LogitsProcessor):
    """The same draws inside transformers' `generate`, for rows without padding: greedy search then finds the drawn token."""

    def __init__(self, sampling: Sampling, seed: int, prompt_tokens: int, constraint: Constraint | None = None) -> None:
        self.sampling, self.seed, self.prompt_tokens, self.constraint = sampling, checked_whole(seed), prompt_tokens, constraint
        self._grammars: list[GrammarState] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Returns 0 for the drawn token of each row and −inf for all others."""
        rows, length = input_ids.shape
        seen = None
        if self.sampling.counts_tokens:
            seen = [TokenCounts(row[: self.prompt_tokens], scores.shape[-1]) for row in input_ids]
            for counts, row in zip(seen, input_ids, strict=True):
                counts.add(row[self.prompt_tokens :])
        draws = [Draw(self.sampling, self.seed, length, request) for request in range(rows)]
        tokens = sample(scores, draws, seen, self.grammars(input_ids))
        scores = torch.full_like(scores, -math.inf)  # type: ignore[assignment]
        scores[torch.arange(rows, device=tokens.device), tokens] = 0.0
        return scores

    def grammars(self, input_ids: Tensor) -> list[GrammarState] | None:
        """Returns the grammar of each row after its answer so far, None where nothing is constrained."""
        if self.constraint is None:
            return None
        self._grammars = self._grammars or [self.constraint.begin() for _ in input_ids]
        for grammar, row in zip(self._grammars, input_ids, strict=True):
            grammar.take(row[self.prompt_tokens + grammar.taken :].tolist())
            if grammar.error is not None:
                raise ConstraintError(f"constrain: {grammar.error}")
        return self._grammars


class GrammarEnd(StoppingCriteria):
    """Ends the rows of `generate` whose grammar has ended."""

    def __init__(self, draws: HashedDraws) -> None:
        self.draws = draws

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs: Any) -> torch.BoolTensor:  # type: ignore[override]
        """Returns which rows [R] are done."""
        grammars = self.draws.grammars(input_ids) or []
        return torch.tensor([grammar.ended for grammar in grammars], device=input_ids.device)  # type: ignore[return-value]
