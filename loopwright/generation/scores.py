"""Log-probabilities in the model's own distribution: of the drawn tokens, of the likeliest ones, and of a prompt's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.generation.sampling import no_choice
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import choosable

if TYPE_CHECKING:
    from loopwright.generation.rows import Running

SCORED = 64  # prompt tokens whose logits are alive at a time, in float64
Ranked = tuple[tuple[int, float], ...]  # the likeliest tokens with their log-probabilities, likeliest first


@dataclass(frozen=True)
class TokenScore:
    """The log-probability of one token, and the likeliest tokens at its place."""

    logprob: float
    top: Ranked = ()


@dataclass(eq=False)
class Scores:
    """Scores of drawn tokens [R] as they lie on the device, with the likeliest tokens [R, k] where some were asked for."""

    logprobs: Tensor
    top: tuple[Tensor, Tensor] | None = None

    def read(self) -> list[TokenScore]:
        """Returns one score per row."""
        if self.top is None:
            return [TokenScore(logprob) for logprob in self.logprobs.tolist()]
        pairs = zip(self.top[1].tolist(), self.top[0].tolist(), strict=True)
        ranked = [tuple(zip(tokens, values, strict=True)) for tokens, values in pairs]
        return [TokenScore(logprob, top) for logprob, top in zip(self.logprobs.tolist(), ranked, strict=True)]


def score(logits: Tensor, tokens: Tensor, top: int = 0) -> Scores:
    """Returns the scores of tokens [R] in logits [R, V], with the `top` likeliest tokens of each row."""
    logs = logits.double().log_softmax(-1)
    best = logs.topk(min(top, logs.shape[-1])) if top else None
    return Scores(logs.gather(1, tokens[:, None])[:, 0], None if best is None else (best.values, best.indices))


def score_prompt(logits: Tensor, prompt: Sequence[int], first: int, top: int) -> list[TokenScore]:
    """Returns the scores of the prompt's tokens after positions `first`, `first` + 1, … whose logits [T, V] are given."""
    following = prompt[first + 1 : first + 1 + len(logits)]  # nothing follows the last one
    tokens = torch.tensor(following, dtype=torch.long, device=logits.device)
    return score(logits[: len(following)], tokens, top).read()


def score_prompts(model: LoopedForCausalLM, runs: Sequence[Running], features: Sequence[Tensor]) -> None:
    """Scores the prompt tokens that follow those of a chunk, whose features [T, D] are given, where that was asked for."""
    for run, states in zip(runs, features, strict=True):
        options = run.request.options
        if not options.prompt_logprobs:
            continue
        for first in range(0, len(states), SCORED):
            logits = model.lm_head(states[first : first + SCORED])
            place = run.prefilled + first
            run.request.prompt_scores += score_prompt(logits, options.prompt, place, options.top_logprobs)
            silent = (~choosable(logits)).nonzero()  # the device is waited for, as it was for the scores
            if len(silent):
                run.request.fail(no_choice(place + 1 + int(silent[0])))
                break


def ranked(logits: Tensor, top: int) -> Ranked:
    """Returns the likeliest tokens of logits [V]."""
    best = logits.double().log_softmax(-1).topk(min(top, len(logits)))
    return tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
