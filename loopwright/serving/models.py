"""A model as the server offers it: its engine, how deep and how long a request may be, and prompts as token ids.

Messages become tokens by the tokenizer's own chat template. A template of the client's is never taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from loopwright.confined import LimitError, LocalTokenizer
from loopwright.generation.constraints import Constraint
from loopwright.generation.detokenise import text_of
from loopwright.generation.engine import Engine
from loopwright.generation.exit_rules import EXITS, build_exit
from loopwright.generation.generation_config import new_tokens
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.schema import suggest
from loopwright.serving.schema import ParsedRequest, Refusal, ServerLimits

T = TypeVar("T")
READINGS = 2  # of the coda, that the pool is sized for: drafts take two
TIMES_DEEPER = 4  # than its own depth may a request ask of a model without a last step
CHAT_TOKENS, TEXT_TOKENS = 256, 16  # of an answer where the request gives none; 16 is what OpenAI's completions have
RECENT = 0.2  # how much the latest request counts in the mean of seconds


class ServedModel:
    """A model by its name. `depth` is that of a request that gives none; `words` make tokens of texts, here or apart."""

    def __init__(
        self,
        name: str,
        model: LoopedForCausalLM,
        tokenizer: Any,
        *,
        limits: ServerLimits,
        max_rows: int = 16,
        max_tokens: int = 8192,
        depth: int | None = None,
        words: LocalTokenizer | None = None,
    ) -> None:
        config = model.config
        self.words, self.reading = words or LocalTokenizer(tokenizer), asyncio.Lock()
        self.name, self.tokenizer, self.limits, self.rows = name, tokenizer, limits, max_rows
        self.depth = config.check_depth(depth)
        self.max_depth = self._deepest(config, limits)
        if self.depth > self.max_depth:
            raise ValueError(f"depth: {self.depth} is beyond max_depth={self.max_depth}; raise --max-depth, or lower --depth")
        readings = READINGS if config.is_looped and config.coda_layers else 1
        self.engine = Engine(
            model, tokenizer, max_rows=max_rows, max_tokens=max_tokens, depth=depth if config.is_looped else None, readings=readings
        )
        with contextlib.suppress(ValueError):  # it holds the interpreter for a second, so not later; why not is said to who asks
            self.engine.constrained_vocabulary()
        context = max_tokens if config.positions == "none" else config.max_position_embeddings
        self.max_model_len = min(context, max_tokens)
        self.created = int(time.time())
        decode, spell = text_of(tokenizer), text_of(tokenizer, skip=False)
        self._decode = decode
        self._text = cache(lambda token: decode([token]))  # every stream asks for those of single tokens again
        self.word = cache(lambda token: spell([token]))  # the text of one token, of a control word too
        self.seconds = 1.0  # that a request took of late

    def _deepest(self, config: Any, limits: ServerLimits) -> int:
        if not config.is_looped:
            return 1
        last = config.max_steps if config.max_steps is not None and config.beyond_max_steps == "refuse" else None
        if limits.depth is None:
            return last or max(TIMES_DEEPER * config.depth, self.depth)
        return limits.depth if last is None else min(limits.depth, last)

    def card(self) -> dict[str, Any]:
        """Returns the entry of /v1/models."""
        model = self.engine.model
        return {
            "id": self.name, "object": "model", "created": self.created, "owned_by": "loopwright",
            "max_model_len": self.max_model_len,
            "depths": {"default": self.depth, "min": 1, "max": self.max_depth},
            "exits": [kind for kind in EXITS if _offered(kind, model)],
        }  # fmt: skip

    def prompt_ids(self, parsed: ParsedRequest) -> list[list[int]]:
        """Returns the token ids of every prompt; refuses what is too long or unknown to the model."""
        if parsed.chat:
            prompts = [chat_ids(self.words, parsed.messages, opening=parsed.opening)]
        else:
            prompts = [one if isinstance(one, list) else self.encode(one) for one in parsed.prompts]
        field = "messages" if parsed.chat else "prompt"
        return [self.check_ids(field, ids) for ids in prompts]

    def constraints(self, parsed: ParsedRequest, answers: int) -> list[Constraint]:
        """Returns the form of each answer, compiled; none where none is asked for."""
        form, options = parsed.options.get("constrain"), {"ignore_eos": parsed.options.get("ignore_eos", False)}
        try:
            return [] if form is None else [self.engine.constraint(form, **options) for _ in range(answers)]
        except ValueError as error:  # it begins with the engine's name of the field
            field, (_, _, reason) = parsed.form_field, str(error).partition(":")
            raise Refusal(f"{field}:{reason}", param=field) from None

    def check_ids(self, field: str, ids: list[int]) -> list[int]:
        """Returns the token ids of one prompt; refuses none at all, too many, and tokens that the model does not know."""
        known = self.engine.model.config.vocab_size
        if not ids:
            raise Refusal(f"{field}: it has no tokens; give at least one", param=field)
        if len(ids) >= self.max_model_len:
            raise Refusal(
                f"{field}: {len(ids):,} tokens leave no room for an answer in {self.max_model_len:,} (max_model_len)",
                param=field, code="context_length_exceeded",
            )  # fmt: skip
        if not 0 <= min(ids) <= max(ids) < known:
            wrong = next(token for token in ids if not 0 <= token < known)
            raise Refusal(f"{field}: token {wrong}; the model knows tokens 0 to {known - 1}", param=field)
        return ids

    def decode(self, ids: list[int]) -> str:
        """Returns the text of tokens without control words."""
        return self._text(ids[0]) if len(ids) == 1 else self._decode(ids)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the token ids of a text; `special` adds those that open or close one."""
        try:
            return self.words.encode(text, special=special)
        except LimitError as error:
            raise Refusal(f"prompt: the model's tokenizer was stopped ({error})", param="prompt") from None
        except ValueError as error:
            raise Refusal(str(error), param="prompt") from None

    async def read(self, work: Callable[[], list[T]]) -> list[T]:
        """Returns what `work` makes of texts, in a thread: one of each model at a time, so that others find threads."""
        async with self.reading:
            return await asyncio.to_thread(work)

    def readable(self, *texts: str) -> str | None:
        """Returns the first of these texts that the model takes as a prompt, else its first tokens; None where it takes none."""
        for text in (*texts, self.decode([0, 1, 2])):
            with contextlib.suppress(Refusal):
                self.check_ids("prompt", self.encode(text))
                return text
        return None

    def options(self, parsed: ParsedRequest) -> dict[str, Any]:
        """Returns what to ask of the engine; where nothing is said, the temperature is 1, as clients expect."""
        config: Any = self.engine.model.generation_config
        if "temperature" in parsed.options or config.do_sample is not None:
            return parsed.options
        return {**parsed.options, "temperature": 1.0 if config.temperature is None else config.temperature}

    def new_tokens(self, parsed: ParsedRequest, prompt: list[int]) -> int:
        """Returns how many tokens an answer may have; refuses more than the limit, or than fit after the prompt."""
        room = self.max_model_len - len(prompt)
        if parsed.max_tokens is None:
            usual = new_tokens(self.engine.model, len(prompt), CHAT_TOKENS if parsed.chat else TEXT_TOKENS)
            length = min(usual, room, self.limits.new_tokens)
        else:
            self.limits.check_new_tokens(parsed.tokens_field, parsed.max_tokens)
            if parsed.max_tokens > room:
                raise Refusal(
                    f"{parsed.tokens_field}: {parsed.max_tokens:,} after a prompt of {len(prompt):,} is more than the "
                    f"{self.max_model_len:,} tokens that fit (max_model_len)",
                    param=parsed.tokens_field, code="context_length_exceeded",
                )  # fmt: skip
            length = max(parsed.max_tokens, 1)  # none at all is left out of the answer
        least = parsed.options.get("min_new_tokens", 0)
        if least > length:
            raise Refusal(f"min_tokens: {least:,} is more than the {length:,} of {parsed.tokens_field}", param="min_tokens")
        return length

    def took(self, seconds: float) -> None:
        """Remembers how long a request took, for those that are told to come again."""
        self.seconds += RECENT * (seconds - self.seconds)


def _offered(kind: str, model: LoopedForCausalLM) -> bool:
    try:
        build_exit(kind, model)
    except ValueError:
        return False
    return True


def find_model(models: Mapping[str, ServedModel], name: str | None) -> ServedModel:
    """Returns the model of a name; the only one where none is given."""
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name is None:
        raise Refusal(f"model: missing; {suggest('', models)}", param="model")
    if name not in models:
        raise Refusal(
            f"model: {name[:100]!r} is not served here; {suggest(name, models)}", status=404, param="model", code="model_not_found"
        )
    return models[name]


def chat_ids(words: LocalTokenizer, messages: list[dict[str, str]], *, opening: bool = True) -> list[int]:
    """Returns the ids of a conversation with, or without, the opening of the answer."""
    if words.tokenizer.chat_template is None:
        raise Refusal(
            "messages: this model's tokenizer has no chat template; use /v1/completions", param="messages", code="no_chat_template"
        )
    try:
        return words.chat(messages, opening=opening)
    except LimitError as error:
        raise Refusal(f"messages: the model's chat template was stopped ({error})", param="messages") from None
    except ValueError as error:
        raise Refusal(str(error), param="messages") from None
