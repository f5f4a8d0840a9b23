"""`loopwright chat`: a conversation with a model. Answers go to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from loopwright.checkpoints.source import Source
from loopwright.cli.opening import find_device, find_dtype, open_model, open_tokenizer, probed, tell_wait
from loopwright.confined import token_ids
from loopwright.errors import one_line
from loopwright.generation.engine import Engine
from loopwright.generation.exit_rules import parse_exit
from loopwright.generation.generation_config import new_tokens
from loopwright.generation.sampling import Sampling, checked_seed
from loopwright.generation.stream import Statistics, TextPieces, encode_chat
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.process import fitting_threads, say, second_ends_at_once, stream_out
from loopwright.schema import check_whole, suggest

CONTEXT = 4096  # tokens of a conversation, where nothing is said and the model has as many positions: their keys are held at once
NEW_TOKENS = 256  # of an answer, where nothing is said
COMMANDS = {
    "depth": "/depth 8: answer with 8 steps; /depth alone: with the model's own",
    "temperature": "/temperature 0.7: sample; /temperature 0: the likeliest token each time",
    "reset": "/reset: forget the conversation",
    "help": "/help: print this",
    "quit": "/quit, or Ctrl-D: end. Ctrl-C stops an answer; a second one ends",
}


class Conversation(Protocol):
    """What was said so far, in the tokens that the model reads."""

    def prompt(self, line: str) -> list[int]:
        """Returns the tokens to continue once the user has said this line."""

    def keep(self, line: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Adds a line and its answer to the conversation."""


@dataclass
class ChatTurns:
    """A conversation in the tokenizer's chat template."""

    tokenizer: Any
    vocab_size: int
    turns: list[dict[str, str]] = field(default_factory=list)

    def prompt(self, line: str) -> list[int]:
        """Returns all turns in the template, with the opening of the next answer; none for an empty line."""
        turns = [*self.turns, {"role": "user", "content": line}]
        return encode_chat(self.tokenizer, turns, self.vocab_size)[0].tolist() if line else []

    def keep(self, line: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Adds the two turns."""
        text = str(self.tokenizer.decode(answer, skip_special_tokens=True))
        self.turns += [{"role": "user", "content": line}, {"role": "assistant", "content": text}]


@dataclass
class RunningText:
    """A conversation without a template: each line is appended to the text so far. An empty line lets the model write on."""

    tokenizer: Any
    tokens: list[int] = field(default_factory=list)

    def prompt(self, line: str) -> list[int]:
        """Returns the text so far and the line; a token that opens a text stands at the beginning alone."""
        return self.tokens + (token_ids(self.tokenizer, line, special=not self.tokens) if line else [])

    def keep(self, line: str, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Adds line and answer, without the token that ended it: the text goes on."""
        special = set(self.tokenizer.all_special_ids)
        self.tokens = [*prompt, *(answer[:-1] if answer and answer[-1] in special else answer)]


@dataclass(frozen=True)
class ChatOptions:
    """How to answer. The commands change depth and sampling."""

    depth: int | None
    sampling: Sampling
    max_new_tokens: int | None
    seed: int | None
    state_seed: int | None
    exit: dict[str, Any] | None


class ChatSession:
    """A model, a conversation with it, and the engine that answers, which keeps the keys of what was said."""

    def __init__(self, model: LoopedForCausalLM, tokenizer: Any, options: ChatOptions, context: int | None = None) -> None:
        room = None if model.config.positions == "none" else model.config.max_position_embeddings
        if context is not None and (context < 2 or (room is not None and context > room)):
            raise ValueError(f"context must be >= 2 and at most {room}, the positions of the model (got {context})")
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.context = min(CONTEXT, room or CONTEXT) if context is None else context
        self.engine: Engine | None = None
        self.reset()

    def reset(self) -> None:
        """Forgets what was said."""
        self.conversation: Conversation = RunningText(self.tokenizer)
        if self.tokenizer.chat_template is not None:
            self.conversation = ChatTurns(self.tokenizer, self.model.config.vocab_size)

    def close(self) -> None:
        """Ends the engine and frees its keys."""
        if self.engine is not None:
            self.engine.close()
        self.engine = None

    def command(self, words: str) -> bool:
        """Does what a line after its `/` asks for; returns False where the conversation is to end."""
        name, _, value = words.partition(" ")
        value = value.strip()
        if name == "quit":
            return False
        if name == "reset":
            self.reset()
        elif name == "depth":
            depth = _number(name, value, int) if value else None
            self.model.config.check_depth(depth)
            self.close()  # its keys are sized for a depth
            self.options = replace(self.options, depth=depth)
            tell_wait(self.model, depth)
        elif name == "temperature":
            sampling = replace(self.options.sampling, temperature=_number(name, value, float))
            self.options = replace(self.options, sampling=sampling)
        elif name == "help":
            say("\n".join(COMMANDS.values()))
        else:
            raise ValueError(f"unknown /{name}; {suggest(name, COMMANDS)}")
        return True

    def answer(self, line: str) -> None:
        """Streams the answer to a line, then says what it cost. Ctrl-C stops it; what came until then is kept."""
        prompt = self.conversation.prompt(line)
        if not prompt:
            return
        wanted = self.options.max_new_tokens
        if wanted is None:
            wanted = new_tokens(self.model, len(prompt), NEW_TOKENS)
        allowed = min(wanted, self.context - len(prompt))
        if allowed < 1:
            raise ValueError(f"the conversation has {len(prompt)} tokens and its context {self.context}; /reset starts anew")
        steps, rule, begin = self.model.config.check_depth(self.options.depth), self.options.exit, time.perf_counter()
        if self.engine is None:
            readings = 1 if rule is None else steps
            self.engine = Engine(
                self.model, self.tokenizer, max_rows=1, max_tokens=self.context, depth=self.options.depth, readings=readings
            )
        request = self.engine.submit(
            prompt, depth=self.options.depth, max_new_tokens=allowed, seed=self.options.seed, state_seed=self.options.state_seed,
            exit=rule, **vars(self.options.sampling),
        )  # fmt: skip
        pieces = TextPieces(self.tokenizer, stream_out)
        pieces.put(torch.tensor([prompt]))
        tokens, stopped = [], ""
        try:
            with second_ends_at_once():
                for token in request:
                    tokens.append(token)
                    pieces.put(torch.tensor([token]))
        except KeyboardInterrupt:
            request.cancel()
            stopped = "; stopped"
        pieces.end()
        print(flush=True)
        self.conversation.keep(line, prompt, tokens)
        ended = self.context if len(tokens) == allowed < wanted else None
        depth = steps if self.model.config.is_looped else None
        cost = Statistics(len(prompt), len(tokens), time.perf_counter() - begin, depth, ended)
        taken = "" if rule is None else f"; {sum(request.depths) / max(1, len(request.depths)):.2f} steps a token"
        say(f"[{cost}{taken}{stopped}]")


def chat(
    source: str,
    lines: Iterable[str] | None = None,
    *,
    depth: int | None = None,
    max_new_tokens: int | None = None,
    sampling: Sampling | None = None,
    seed: int | None = None,
    state_seed: int | None = None,
    exit: str | None = None,
    context: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    tokenizer: str | None = None,
) -> None:
    """Answers lines (those of stdin where none are given) until one says /quit. A mistake costs one line, and the talk goes on."""
    if max_new_tokens is not None:
        check_whole("max_new_tokens", max_new_tokens, 1)
    where, kind = find_device(device), find_dtype(dtype)
    opened = Source(source)
    opened.need_weights("chat")
    opened.config.check_depth(depth)
    rule = None if exit is None else parse_exit(exit)
    words = open_tokenizer(opened, tokenizer)
    probed(source, words).close()
    model = open_model(opened, kind, where)
    if state_seed is not None:
        checked_seed(model, state_seed)
    session = ChatSession(model, words, ChatOptions(depth, sampling or Sampling(), max_new_tokens, seed, state_seed, rule), context)
    if lines is None and sys.stdin.isatty():
        say("/help lists the commands; Ctrl-D ends")
    with fitting_threads(model), contextlib.closing(session):
        for line in _typed() if lines is None else lines:
            try:
                if line.startswith("/"):
                    if not session.command(line[1:]):
                        return
                else:
                    session.answer(line)
            except ValueError as error:
                say(f"loopwright: {one_line(str(error))}")


def _typed() -> Iterator[str]:
    """The lines of stdin; on a terminal after a prompt, with the editing of readline where Python has it."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\r\n") for line in sys.stdin)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (input() uses it once it is imported)
    with contextlib.suppress(EOFError):
        while True:
            yield input("> ")


def _number(name: str, value: str, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"/{name} needs a number (got {value!r}); such as {COMMANDS[name].split(':')[0]}") from None
