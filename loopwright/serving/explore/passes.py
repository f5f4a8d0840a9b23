"""What the explorer reads of one pass over a prompt, as plain lists for JSON.

After every step: what it would say, how far the state moved, where it settles, the attention of one head, and the token into which
each head of its layer sinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from loopwright.analysis.trace.collect import View, attention_rows
from loopwright.analysis.trace.edit import EditChain, chain
from loopwright.generation.exit_rules import ExitRule, Memory
from loopwright.metrics.attention import SINK, sink_score
from loopwright.metrics.limits import LIMITS, SHORTEST, classify_limit
from loopwright.metrics.predictions import prediction_divergence, prediction_entropy
from loopwright.metrics.states import pca_path, token_cosines
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import STACKS, Answers, Pass
from loopwright.model.room import check_room
from loopwright.model.span import place_tokens
from loopwright.model.taps import OF_PARTS, Tap
from loopwright.untrusted import visible

REMEMBERED = 65_536  # texts of single tokens
TABLES = 6  # float32 tables of tokens × vocabulary that are held at once while a step is read


def rounded(values: Tensor, digits: int = 4) -> Any:
    """Returns a tensor as nested lists with so many decimals; None where a number is not finite."""
    scale = 10**digits
    wide = values.detach().double().cpu()
    plain = torch.round(wide * scale) / scale
    finite = wide.isfinite()
    return plain.tolist() if bool(finite.all()) else _without(plain.tolist(), finite.tolist())


def _without(values: Any, kept: Any) -> Any:
    if isinstance(values, list):
        return [_without(value, keep) for value, keep in zip(values, kept, strict=True)]
    return values if kept else None


class TokenTexts:
    """The text of single tokens as they stand inside a line: with the space before a word, where the tokenizer has one."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._text = lru_cache(REMEMBERED)(lambda token: visible(self._decode(token)))
        self._before = next((token for token in range(len(tokenizer)) if token not in self._special), 0)

    def __call__(self, token: int) -> str:
        """Returns the text of a token; what would mislead who reads it is written out."""
        return self._text(token)

    def _decode(self, token: int) -> str:
        alone = str(self.tokenizer.decode([token]))
        if token in self._special:
            return alone
        # some tokenizers drop the space before the first word of a text: read it behind another token
        first = str(self.tokenizer.decode([self._before]))
        both = str(self.tokenizer.decode([self._before, token]))
        return both[len(first) :] if both.startswith(first) and len(both) > len(first) else alone


@dataclass(frozen=True)
class UnrolledPass:
    """The states of one prompt: before the first step and after each, every one [1, T, D], with their input and pass."""

    e: Tensor
    start: Tensor
    states: tuple[Tensor, ...]
    p: Pass
    parts: dict[str, list[Tensor]] = field(default_factory=dict)

    def answers(self, model: LoopedForCausalLM) -> Answers:
        """Returns what each step says, for the steps to be taken in one after another."""
        return Answers.of_steps(model, self.e, self.p, self.start)


class PartSizes:
    """A tap that keeps, by step, how far the gate is open at each token and how large the diagonals of the core are there."""

    def __init__(self) -> None:
        self.seen: dict[str, dict[int, list[Tensor]]] = {}

    def __call__(self, name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if name in OF_PARTS and stack == "core" and isinstance(step, int):
            size = value[0].float()
            size = size.mean(-1) if name == "gate" else size.square().mean((-1, -2)).sqrt()
            self.seen.setdefault(name, {}).setdefault(step, []).append(size)
        return value

    def by_step(self) -> dict[str, list[Tensor]]:
        """Returns the numbers of every token, step by step, those of several layers as their mean."""
        return {name: [torch.stack(layers).mean(0) for layers in steps.values()] for name, steps in self.seen.items()}


@torch.no_grad()
def unrolled(model: LoopedForCausalLM, ids: Sequence[int], depth: int, *, edit: Tap | None = None) -> UnrolledPass:
    """Returns the states of a prompt through `depth` steps, under an edit where one is given."""
    config = model.config
    wanted = 4 * len(ids) * (depth * config.hidden_size + TABLES * config.vocab_size)
    check_room(f"prompt: {len(ids):,} tokens at {depth:,} steps", wanted, model.device, "take a shorter prompt or a lower depth")
    sizes = PartSizes()
    e, p = model.embed(torch.tensor([list(ids)], device=model.device), tap=sizes if edit is None else chain(edit, sizes))
    start = model.start_state(e, p)
    states = tuple(model.unroll(e, depth, p, state=start))
    return UnrolledPass(e, start, states, replace(p, tap=edit), sizes.by_step())


@torch.no_grad()
def read_steps(
    model: LoopedForCausalLM,
    ids: Sequence[int],
    through: UnrolledPass,
    *,
    top: int,
    rule: ExitRule | None = None,
    before: UnrolledPass | None = None,
) -> dict[str, Any]:
    """Returns the numbers of every step and token: lists by step, then by token.

    `top` likeliest tokens with their probabilities; the entropy and KL(this step ‖ last step) in nats; the probability of the token
    that follows in the prompt. Where a `rule` is given, after how many steps it would let each token leave. `before` are the
    states without an edit: `shift` is then KL(edited ‖ unedited), step by step.
    """
    end, said = through.answers(model), through.answers(model)
    unedited = None if before is None else before.answers(model)
    for s in through.states:
        end.take(s)
    last = end.logits()[0]
    follows = torch.tensor(list(ids)[1:], device=last.device)
    kept: dict[str, list[Tensor]] = {name: [] for name in ("tokens", "probabilities", "entropy", "divergence", "follows", "shift")}
    leaves, memory = torch.full((len(ids),), len(through.states), device=last.device), Memory()
    previous = through.start
    for t, s in enumerate(through.states, start=1):
        said.take(s)
        logits = last if t == len(through.states) else said.logits()[0]
        chances = logits.float().softmax(-1)
        best = chances.topk(min(top, chances.shape[-1]))
        kept["tokens"].append(best.indices)
        kept["probabilities"].append(best.values)
        kept["entropy"].append(prediction_entropy(logits))
        kept["divergence"].append(prediction_divergence(logits, last))
        kept["follows"].append(chances[:-1].gather(-1, follows[:, None])[:, 0])
        if before is not None and unedited is not None:
            unedited.take(before.states[t - 1])
            kept["shift"].append(prediction_divergence(logits, unedited.logits()[0]))
        if rule is not None and t < len(through.states):
            now = rule.leaves(model, previous[0], s[0], logits if rule.reads_out else None, memory)
            leaves = torch.where(now & (leaves == len(through.states)), t, leaves)
        previous = s
    numbers: dict[str, Any] = {name: rounded(torch.stack(values)) for name, values in kept.items() if values and name != "tokens"}
    numbers["tokens"] = torch.stack(kept["tokens"]).tolist()
    numbers["leaves"] = None if rule is None else leaves.tolist()
    return numbers


@torch.no_grad()
def exit_probabilities(model: LoopedForCausalLM, through: UnrolledPass) -> Any:
    """Returns the probability that a token leaves after each step, by step and token; None in a model without learned halting."""
    if model.halting.mixes is None:
        return None
    return rounded(model.halting(model.halting_values(through.start, through.states, through.e, through.p))[0].T)


def movement(through: UnrolledPass) -> dict[str, Any]:
    """Returns how far each step moved the state, ‖s_t − s_{t−1}‖, and how long the state is, by step and token; and how far the
    gate is open and how large the diagonals are, None where the model has none."""
    every = torch.cat([through.start, *through.states]).float()
    parts = {name: rounded(torch.stack(through.parts[name])) if name in through.parts else None for name in OF_PARTS}
    return {"change": rounded((every[1:] - every[:-1]).norm(dim=-1)), "size": rounded(every[1:].norm(dim=-1)), **parts}


def paths(through: UnrolledPass) -> dict[str, Any] | None:
    """Returns each token's path, the start included, in its own two principal directions: [T][S + 1][2], and what they explain.

    None where a state is not finite.
    """
    every = torch.cat([through.start, *through.states]).float().cpu()
    if not bool(every.isfinite().all()):
        return None
    pca = [pca_path(every[:, token]) for token in range(every.shape[1])]
    return {
        "coordinates": [rounded(path.coordinates) for path in pca],
        "explained": [rounded(path.explained) for path in pca],
    }


def settling(through: UnrolledPass) -> list[dict[str, Any]] | None:
    """Returns what each token's state settles into (`metrics.limits`); None where the steps are too few to say."""
    every = torch.cat(list(through.states)).float().cpu()
    if len(every) <= SHORTEST:
        return None
    series = torch.stack([token_cosines(s, every[-1]) for s in every[:-1]], dim=-1)
    limit = classify_limit(series)
    return [
        {
            "limit": LIMITS[int(label)],
            "period": rounded(1 / frequency, 2),
            "amplitude": rounded(amplitude),
            "slope": rounded(slope, 6),
        }
        for label, frequency, amplitude, slope in zip(limit.label, limit.frequency, limit.amplitude, limit.slope, strict=True)
    ]


class LayerRecorder:
    """A tap that keeps the queries and keys of one layer of one stack, by step."""

    def __init__(self, stack: str, layer: int) -> None:
        self.at = (stack, layer)
        self.queries: dict[int, Tensor] = {}
        self.keys: dict[int, Tensor] = {}

    def __call__(self, name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if name in ("query", "key") and (stack, layer) == self.at:
            assert isinstance(step, int)
            (self.queries if name == "query" else self.keys)[step] = value
        return value


@torch.no_grad()
def head_maps(
    model: LoopedForCausalLM, ids: Sequence[int], depth: int, *, stack: str, layer: int, head: int, edit: Tap | None = None
) -> dict[str, Any]:
    """Returns the maps of one head by step, row by row up to the row's own token; and of all heads of the layer the token that
    receives most, with its share. Prelude and coda run once: they have one step (the coda that of the last state)."""
    _check_place(model, stack, layer, head)
    recorder = LayerRecorder(stack, layer)
    through = unrolled(model, ids, depth, edit=recorder if edit is None else EditChain((edit, recorder)))
    model.features(through.states[-1], through.p)  # the coda, as the tap sees it
    view = View.of(place_tokens(1, len(ids), model.device), model.config.sliding_window)
    maps, sinks = [], []
    for step, query in sorted(recorder.queries.items()):
        whole = torch.cat([rows.attention for rows in attention_rows(query, recorder.keys[step], view)], dim=2)[0]
        shares = sink_score(whole).max(-1)
        sinks.append(
            [{"token": token, "share": share} for token, share in zip(shares.indices.tolist(), rounded(shares.values), strict=True)]
        )
        maps.append([row[: i + 1] for i, row in enumerate(rounded(whole[head], 3))])
    return {"maps": maps, "sinks": sinks, "sink_above": SINK}


def _check_place(model: LoopedForCausalLM, stack: str, layer: int, head: int) -> None:
    if stack not in STACKS:
        raise ValueError(f"stack: {stack[:40]!r}; allowed: {', '.join(STACKS)}")
    config = model.config
    layers = {"prelude": config.prelude_layers, "core": config.core_layers, "coda": config.coda_layers}[stack]
    if layer >= layers:
        raise ValueError(f"layer must be below {layers}, the layers of the {stack} (got {layer})")
    if head >= config.num_attention_heads:
        raise ValueError(f"head must be below {config.num_attention_heads}, the heads of a layer (got {head})")
