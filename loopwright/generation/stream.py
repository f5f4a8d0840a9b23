"""A prompt in, text out as it comes. Draws are the engine's: a function of seed, position and token.

The text of a growing list of tokens, decoded a few tokens at a time. Joined, what is new is the text of all tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, TextStreamer

from loopwright.confined import token_ids
from loopwright.generation.constraints import Constraint
from loopwright.generation.generation_config import PLAIN, end_tokens, least_tokens, new_tokens, settled, stop_strings
from loopwright.generation.sampling import GrammarEnd, HashedDraws, Sampling, checked_whole
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.state import STATES

LONGEST_REASON = 200  # characters of what a chat template raised
NEW_TOKENS = 64  # of an answer, where nothing is said
SHOWN_WORDS = 40  # of a vocabulary, where a prompt is refused


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


class TextPieces(TextStreamer):
    """Hands finished pieces of text to a function instead of printing them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, write: Callable[[str], object]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.write = write

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Hands one piece over."""
        self.write(text)


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
    if max_new_tokens is None:
        max_new_tokens = new_tokens(model, input_ids.shape[1], NEW_TOKENS)
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: {max_new_tokens}; allowed: at least 1")
    room = context_left(model, input_ids.shape[1])
    allowed = max_new_tokens if room is None else min(max_new_tokens, room)
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
    ended = count == allowed < max_new_tokens
    context = model.config.max_position_embeddings if ended else None
    return Statistics(ids.shape[1], count, time.perf_counter() - begin, steps, context)


def context_left(model: LoopedForCausalLM, prompt_tokens: int) -> int | None:
    """Returns how many tokens fit after a prompt into the model's context, None where positions have no end; raises where none."""
    context = model.config.max_position_embeddings
    if model.config.positions == "none":
        return None
    if prompt_tokens >= context:
        raise ValueError(
            f"prompt: {prompt_tokens} tokens leave no room in the model's context of {context} (max_position_embeddings); "
            "shorten it, or take a model with a longer context"
        )
    return context - prompt_tokens


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


def _endings(model: LoopedForCausalLM, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Returns the end and padding tokens that the model's own generation config does not name but its tokenizer does."""
    generation, ends = model.generation_config, end_tokens(model, tokenizer)
    pad = generation.pad_token_id if generation.pad_token_id is not None else tokenizer.pad_token_id
    endings = {"eos_token_id": ends or None, "pad_token_id": next(iter(ends), 0) if pad is None else pad}
    return {name: value for name, value in endings.items() if value is not None}


HALF_LETTER = "�"  # what a tokenizer decodes the first bytes of a letter to


class GrowingText:
    """Decodes new tokens after those right before them: a tokenizer may write a token otherwise where a text begins."""

    def __init__(self, decode: Callable[[list[int]], str], *, before: int = 0) -> None:
        """`before` tokens of every list are not new, but are what the others are decoded after."""
        self._decode = decode
        self._first, self._read = 0, before  # tokens from `first` to `read` are the context in which later ones are decoded
        self._context: str | None = None  # their text, once it is known
        self.waiting = ""  # the text of tokens that end within a letter, up to that letter

    def more(self, tokens: list[int]) -> str:
        """Returns what is new of a list that has come to `tokens`; nothing while its last letter is not whole."""
        if self._read >= len(tokens):
            return ""
        if self._context is None:
            self._context = self._decode(tokens[self._first : self._read])
        now = self._decode(tokens[self._first :])
        fresh = now[len(self._context) :]
        if now.endswith(HALF_LETTER):
            self.waiting = fresh.rstrip(HALF_LETTER)
            return ""
        own = self._decode(tokens[self._read :])
        # a token without text of its own, such as a control word, would be no context for the next
        if own:
            self._first = self._read
        self._context, self._read, self.waiting = own or now, len(tokens), ""
        return fresh


def text_of(tokenizer: Any, *, skip: bool = True, silent: Collection[int] = ()) -> Callable[[list[int]], str]:
    """Returns how tokens become text, without control words where these are to be skipped, and without those that are `silent`.

    The library below transformers is asked where transformers would pass its answer on as it is: that takes a tenth of the time.
    """
    if silent:
        whole = text_of(tokenizer, skip=skip)
        return lambda ids: whole([one for one in ids if one not in silent])
    kind, fast = type(tokenizer), PreTrainedTokenizerFast
    passed_on = issubclass(kind, fast) and kind.decode is fast.decode and kind._decode is fast._decode  # type: ignore[attr-defined]
    if passed_on and not tokenizer.clean_up_tokenization_spaces:
        below = tokenizer.backend_tokenizer
        return lambda ids: str(below.decode(ids, skip_special_tokens=skip))
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=skip))
