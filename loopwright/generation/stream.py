"""A prompt in, text out as it comes: by transformers' `generate`, or by an engine of one row where there are exits or drafts.

Draws are the same in both: a function of seed, position and token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.generation import BaseStreamer

from loopwright.confined import token_ids
from loopwright.generation.constraints import Constraint
from loopwright.generation.detokenise import AnswerPieces, text_of
from loopwright.generation.engine import Engine
from loopwright.generation.generation_config import PLAIN, end_tokens, least_tokens, new_tokens, settled, stop_strings
from loopwright.generation.sampling import GrammarEnd, HashedDraws, Sampling, checked_seed, checked_whole
from loopwright.generation.speculation import AUTO, draft_depths
from loopwright.model.causal_lm import LoopedForCausalLM

LONGEST_REASON = 200  # characters of what a chat template raised
NEW_TOKENS = 64  # of an answer, where nothing is said


@dataclass(frozen=True)
class Statistics:
    """What a generation cost. `seconds` covers reading the prompt too; `context` is the model's, where it ended the text."""

    prompt_tokens: int
    tokens: int
    seconds: float
    depth: int | None  # None: a dense model
    context: int | None = None

    def __str__(self) -> str:
        rate = self.tokens / self.seconds if self.seconds else 0.0
        depth = "dense" if self.depth is None else f"depth {self.depth}"
        said = f"{self.tokens} tokens, {rate:.1f} tokens/s, {depth}, after a prompt of {self.prompt_tokens}"
        if self.context is None:
            return said
        return f"{said}; stopped at the end of the model's context of {self.context} tokens (max_position_embeddings)"


class TextPieces(BaseStreamer):
    """Hands text to a function as it comes, in the way that `generate` streams: what is put first is the prompt, and skipped."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, write: Callable[[str], object]) -> None:
        self.write, self._decode = write, text_of(tokenizer)
        self._text, self._tokens = AnswerPieces(self._decode), list[int]()
        self._prompt = True

    def put(self, value: Tensor) -> None:
        """Hands over the text of further tokens, as far as its letters are whole."""
        if not self._prompt:
            self._tokens += value.flatten().tolist()
            self.write(self._text.more(self._tokens))
        self._prompt = False

    def end(self) -> None:
        """Hands over the rest."""
        self.write(self._text.end(self._decode(self._tokens)))
        self._prompt = True


def encode(tokenizer: PreTrainedTokenizerBase, prompt: str, vocab_size: int) -> Tensor:
    """Returns the ids of a prompt [1, T]; raises where there are none or where the model does not know them."""
    return _checked(torch.tensor([token_ids(tokenizer, prompt)], dtype=torch.long), vocab_size)


def encode_chat(tokenizer: PreTrainedTokenizerBase, prompt: str | list[dict[str, str]], vocab_size: int) -> Tensor:
    """Returns the ids of a chat [1, T], given by its turns or by the user's first one, in the tokenizer's chat template."""
    if tokenizer.chat_template is None:
        raise ValueError("chat: the tokenizer has no chat template; leave --chat out, or use an instruct model's folder")
    turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    try:
        encoded: Any = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    except Exception as error:  # a template is a program of the folder: it raises what it likes
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"chat: the tokenizer's chat template fails on a user's turn ({reason[:LONGEST_REASON]}); mend the template, or leave "
            "--chat out"
        ) from None
    return _checked(encoded["input_ids"], vocab_size)


def _checked(ids: Tensor, vocab_size: int) -> Tensor:
    if not ids.shape[-1]:
        raise ValueError("prompt: it has no tokens; give at least one word")
    if int(ids.max()) >= vocab_size:
        raise ValueError(f"prompt: token id {int(ids.max())}; the model knows {vocab_size} tokens, so this is not its tokenizer")
    return ids.long()


def stream(
    model: LoopedForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    input_ids: Tensor,
    *,
    write: Callable[[str], object],
    max_new_tokens: int | None = None,
    depth: int | None = None,
    sampling: Sampling | None = None,
    seed: int | None = None,
    state_seed: int | None = None,
    constraint: Constraint | None = None,
) -> Statistics:
    """Generates after `input_ids` [1, T], handing text to `write` as it comes, and returns the statistics.

    What is left open is as the model's generation config says. The text ends with the model's context: positions beyond it were
    never trained. The statistics say so where it happens.
    """
    asked, allowed = _lengths(model, input_ids.shape[1], max_new_tokens)
    steps = model.config.check_depth(depth) if model.config.is_looped or depth is not None else None
    sampling, stops = settled(model, sampling or Sampling()), stop_strings(model)
    arguments: dict[str, Any] = PLAIN | _endings(model, tokenizer)
    if constraint is None:  # which says itself where an answer ends
        arguments["min_new_tokens"] = min(least_tokens(model, input_ids.shape[1]), allowed) or None
    if stops:
        arguments |= {"stop_strings": stops, "tokenizer": tokenizer}
    if sampling.changes_scores or constraint is not None:
        seed = int(torch.randint(2**62, ())) if seed is None else checked_whole(seed)
        draws = HashedDraws(sampling, seed, input_ids.shape[1], constraint)
        arguments["logits_processor"] = [draws]
        if constraint is not None:
            arguments["stopping_criteria"] = [GrammarEnd(draws)]
    if depth is not None:
        arguments["depth"] = depth
    if state_seed is not None:
        arguments["state_seed"] = checked_seed(model, state_seed)
    ids = input_ids.to(model.device)
    begin = time.perf_counter()
    output: Any = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=allowed, streamer=TextPieces(tokenizer, write), **arguments
    )
    count = output.shape[1] - ids.shape[1]
    context = model.config.max_position_embeddings if count == allowed < asked else None
    return Statistics(ids.shape[1], count, time.perf_counter() - begin, steps, context)


def stream_mixed(
    model: LoopedForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    input_ids: Tensor,
    *,
    write: Callable[[str], object],
    max_new_tokens: int | None = None,
    depth: int | None = None,
    sampling: Sampling | None = None,
    seed: int | None = None,
    state_seed: int | None = None,
    exit: Mapping[str, Any] | None = None,
    draft_depth: int | str | None = None,
    constrain: Mapping[str, Any] | None = None,
) -> tuple[Statistics, str]:
    """Generates after `input_ids` [1, T] with an exit rule or drafts; returns the statistics, and what was saved in words."""
    asked, allowed = _lengths(model, input_ids.shape[1], max_new_tokens)
    steps = model.config.check_depth(depth)
    pieces = TextPieces(tokenizer, write)
    pieces.put(input_ids)
    readings = steps if exit is not None else 1 + len(draft_depths(steps)) if draft_depth == AUTO else 2
    tokens = input_ids.shape[1] + allowed
    begin = time.perf_counter()
    with Engine(model, tokenizer, max_rows=1, max_tokens=tokens, depth=steps, readings=readings) as engine:
        request = engine.submit(
            input_ids, depth=depth, max_new_tokens=allowed, seed=seed, state_seed=state_seed, exit=exit, draft_depth=draft_depth,
            constrain=constrain, **vars(sampling or Sampling()),
        )  # fmt: skip
        for token in request:
            pieces.put(torch.tensor([token]))
        pieces.end()
        result, ran = request.result(), engine.ran
    seconds = time.perf_counter() - begin
    count = len(result.tokens)
    context = model.config.max_position_embeddings if count == allowed < asked else None
    if exit is None:
        depths = draft_depth if draft_depth != AUTO else ", ".join(map(str, sorted({r for r, _ in ran.rounds}))) or "none"
        saved = f"drafts at depth {depths}: {ran.accepted} of {ran.drafted} held"
    else:
        saved = f"exit by {exit['kind']}: {sum(result.depths) / count:.2f} of {steps} steps a token on average"
    return Statistics(input_ids.shape[1], count, seconds, steps, context), saved


def _lengths(model: LoopedForCausalLM, prompt_tokens: int, max_new_tokens: int | None) -> tuple[int, int]:
    """Returns how many tokens an answer may have, and how many of them fit into the model's context after the prompt."""
    asked = new_tokens(model, prompt_tokens, NEW_TOKENS) if max_new_tokens is None else max_new_tokens
    if asked < 1:
        raise ValueError(f"max_new_tokens: {asked}; allowed: at least 1")
    context = model.config.max_position_embeddings
    if model.config.positions == "none":
        return asked, asked
    if prompt_tokens >= context:
        raise ValueError(
            f"prompt: {prompt_tokens} tokens leave no room in the model's context of {context} (max_position_embeddings); "
            "shorten it, or take a model with a longer context"
        )
    return asked, min(asked, context - prompt_tokens)


def _endings(model: LoopedForCausalLM, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Returns the end and padding tokens that the model's own generation config does not name but its tokenizer does."""
    generation, ends = model.generation_config, end_tokens(model, tokenizer)
    pad = generation.pad_token_id if generation.pad_token_id is not None else tokenizer.pad_token_id
    endings = {"eos_token_id": ends or None, "pad_token_id": next(iter(ends), 0) if pad is None else pad}
    return {name: value for name, value in endings.items() if value is not None}
