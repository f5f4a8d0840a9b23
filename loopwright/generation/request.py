"""A request as the engine sees it, and the handle its caller holds: tokens as they come, the result, cancellation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from loopwright.generation.constraints import Constraint
from loopwright.generation.detokenise import GrowingText
from loopwright.generation.exit_rules import ExitRule
from loopwright.generation.sampling import Draw, Sampling
from loopwright.generation.scores import Ranked, TokenScore
from loopwright.generation.speculation import AUTO, draft_depths
from loopwright.plot import Shown

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class RequestOptions:
    """What was asked for, checked. `ends` are the tokens, `stop` the strings that end an answer."""

    prompt: tuple[int, ...]
    depth: int
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    state_seed: int | None = None
    ends: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    priority: int = 0
    on_token: Callable[[int], object] | None = None
    exit: ExitRule | None = None
    exit_keys: str = "backfill"
    draft_depth: int | str | None = None  # "auto": chosen while running
    draft_tokens: int = 1  # that one verification covers; the most of them where the depth is chosen
    top_logprobs: int = 0  # likeliest tokens beside each
    prompt_logprobs: bool = False
    step_tokens: int = 0  # likeliest tokens after each step
    on_done: Callable[[], object] | None = None
    constraint: Constraint | None = None
    min_new_tokens: int = 0  # before which no token of `ends` is drawn, and no string ends the answer
    min_before_eos: int = 0  # before which no token of `eos` is drawn: the generation config's own least
    eos: frozenset[int] = frozenset()

    @property
    def mixed_depth(self) -> bool:
        """Whether the tokens of this request are not all equally deep at all times."""
        return self.exit is not None or self.draft_depth is not None

    @property
    def reads_every_step(self) -> bool:
        """Whether the tokens of this request are read out after every step: its rule asks for it, or the caller."""
        return self.exit is not None and (self.exit.reads_out or bool(self.step_tokens))

    @property
    def readings(self) -> tuple[int, ...]:
        """The depths at which the coda reads tokens of this request."""
        if self.exit is not None:
            return tuple(range(1, self.depth + 1))
        if self.draft_depth == AUTO:
            return (*draft_depths(self.depth), self.depth)
        return (self.depth,) if self.draft_depth is None else (int(self.draft_depth), self.depth)

    @property
    def capacity(self) -> int:
        """The tokens that are run: the last one drawn never is."""
        return len(self.prompt) + self.max_new_tokens - 1

    def draw(self, place: int) -> Draw:
        """Returns how the answer's token at a place, from 0, is drawn."""
        excluded = self.ends if place < self.min_new_tokens else self.eos if place < self.min_before_eos else frozenset[int]()
        return Draw(self.sampling, self.seed, len(self.prompt) + place, excluded=excluded)


class NewTokens(NamedTuple):
    """What came of a request after a number of tokens; `done` where nothing will follow."""

    tokens: list[int]
    depths: list[int]
    scores: list[TokenScore]
    step_tokens: list[list[Ranked]]
    done: bool


@dataclass(frozen=True)
class Result(Shown):
    """What came of a request. `depths` are the steps that each token took; `logprobs` those of the model's own distribution.

    `top_logprobs` are the likeliest tokens at the place of each, `prompt_logprobs` the scores of the prompt's tokens after the
    first, and `step_tokens` the likeliest tokens as each step would have read them out.
    """

    tokens: list[int]
    text: str | None
    depths: list[int]
    finish_reason: str  # "stop", "length" or "cancelled"
    logprobs: list[float] | None
    seed: int
    top_logprobs: list[Ranked] | None = None
    prompt_logprobs: list[TokenScore] | None = None
    step_tokens: list[list[Ranked]] | None = None

    def __repr__(self) -> str:
        """How it ended and what it says: scores and depths of every token would fill a notebook."""
        return f"Result({', '.join(f'{name} {value}' for name, value in self._told().items())})"

    def table(self) -> Table:
        """Returns how it ended and what it says as a rich table."""
        from rich.markup import escape
        from rich.table import Table

        table = Table(show_header=False)
        for name, value in self._told().items():
            table.add_row(name, escape(value))
        return table

    def _told(self) -> dict[str, str]:
        depths = f"{sum(self.depths) / len(self.depths):.3g} in the mean" if self.depths else "none"
        facts = {"tokens": f"{len(self.tokens)}", "depth": depths, "finish reason": self.finish_reason, "seed": f"{self.seed}"}
        return facts if self.text is None else {**facts, "text": repr(self.text)}


class Request:
    """The handle of a submitted request. Iterating gives each token when it is there; every method may be called by any thread."""

    def __init__(
        self,
        options: RequestOptions,
        decode: Callable[[list[int]], str] | None = None,
        *,
        on_done: Callable[[], object] | None = None,
        in_worker: Callable[[], bool] = lambda: False,
    ) -> None:
        self.options = options
        self.tokens: list[int] = []
        self.depths: list[int] = []
        self.scores: list[TokenScore] = []
        self.prompt_scores: list[TokenScore] = []
        self.step_tokens: list[list[Ranked]] = []
        self.text: str | None = None
        self.finish_reason: str | None = None
        self.error: BaseException | None = None
        self.cancelled = False
        self.decode, self._on_done, self._in_worker = decode, on_done, in_worker
        self._text = None if decode is None or not options.stop else GrowingText(decode)
        self._end = ""  # of the text so far: as much as a stop string may reach back
        self._free = 0  # characters in which none is looked for
        self._changed = threading.Condition()

    def __repr__(self) -> str:
        return f"Request({len(self.tokens)} tokens, {self.finish_reason or 'not done'})"

    def __iter__(self) -> Iterator[int]:
        sent = 0
        while fresh := self._after(sent):
            yield from fresh
            sent += len(fresh)

    def _after(self, sent: int) -> list[int]:
        """Waits for tokens beyond the first `sent` and returns them; none where the request is done."""
        with self._changed:
            self._wait_for(lambda: len(self.tokens) > sent or self.done)
            fresh = self.tokens[sent:]
        if not fresh and self.error is not None:
            raise self.error
        return fresh

    def since(self, sent: int) -> NewTokens:
        """Returns what came after the first `sent` tokens, without waiting."""
        with self._changed:
            parts = self.tokens[sent:], self.depths[sent:], self.scores[sent:], self.step_tokens[sent:]
            return NewTokens(*parts, self.done)

    def _wait_for(self, reached: Callable[[], bool], timeout: float | None = None) -> bool:
        if not reached() and self._in_worker():
            raise RuntimeError(
                "request: waiting for it inside on_token would never end, because the engine's thread makes the tokens"
            )
        return self._changed.wait_for(reached, timeout)

    @property
    def done(self) -> bool:
        """Whether no further token will come."""
        return self.finish_reason is not None

    def result(self, timeout: float | None = None) -> Result:
        """Waits for the end and returns what came of it; raises what went wrong with this request."""
        with self._changed:
            if not self._wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"request: not done after {timeout} seconds ({len(self.tokens)} tokens so far)")
        if self.error is not None:
            raise self.error
        assert self.finish_reason is not None
        options = self.options
        return Result(
            list(self.tokens), self.text, list(self.depths), self.finish_reason,
            [one.logprob for one in self.scores] if options.logprobs else None, options.seed,
            [one.top for one in self.scores] if options.top_logprobs else None,
            list(self.prompt_scores) if options.prompt_logprobs else None, list(self.step_tokens) if options.step_tokens else None,
        )  # fmt: skip

    def cancel(self) -> bool:
        """Asks the engine to stop; what came so far stays. Returns False where the request was done or cancelled already."""
        with self._changed:
            if self.done or self.cancelled:
                return False
            self.cancelled = True
            return True

    # called by the engine

    def push(
        self, token: int, depth: int, score: TokenScore | None = None, steps: list[Ranked] | None = None, *, last: bool = False
    ) -> None:
        """Hands over one token; ends the request where the token does, or where its grammar ends with it (`last`)."""
        options = self.options
        with self._changed:
            self.tokens.append(token)
            self.depths.append(depth)
            if score is not None and options.logprobs:
                self.scores.append(TokenScore(score.logprob, score.top[: options.top_logprobs]))
            if steps:
                self.step_tokens.append(steps)
            self._changed.notify_all()
        try:
            if options.on_token is not None:
                options.on_token(token)
            stopped = token in options.ends or self._stopped_by_text() or last
        except BaseException as error:  # of the caller's function or tokenizer, SystemExit too: the other requests go on
            self.fail(error)
            return
        if stopped or len(self.tokens) == options.max_new_tokens:
            self.finish("stop" if stopped else "length")

    def finish(self, reason: str) -> None:
        """Ends the request, once."""
        with self._changed:
            if self.done:
                return
            if self.decode is not None and self.error is None:
                try:
                    self.text = self._cut(self.decode(self.tokens))
                except BaseException as error:
                    reason, self.error = "error", error
            if self._on_done is not None:
                self._on_done()  # before anybody can see the end: who was answered may ask again, and is not one more
            self.finish_reason = reason
            self._changed.notify_all()
        if self.options.on_done is not None:
            try:
                self.options.on_done()
            except BaseException as error:  # of the caller's function: the other requests go on
                self.error = self.error or error

    def fail(self, error: BaseException) -> None:
        """Ends the request with an error that its caller will see."""
        with self._changed:
            if not self.done:
                self.error = error
        self.finish("error")

    def _stopped_by_text(self) -> bool:
        if self._text is None:
            return False
        self._end += self._text.more(self.tokens)
        if len(self.tokens) <= self.options.min_new_tokens:
            self._free, self._end = self._free + len(self._end), ""
            return False
        stopped = any(stop in self._end + self._text.waiting for stop in self.options.stop)
        longest = max(map(len, self.options.stop))
        self._end = self._end[len(self._end) - min(longest - 1, len(self._end)) :]
        return stopped

    def _cut(self, text: str) -> str:
        """Returns the text up to the stop string that comes first."""
        places = [text.find(stop, self._free) for stop in self.options.stop]
        return text[: min((place for place in places if place >= 0), default=len(text))]
