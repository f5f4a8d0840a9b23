"""From the engine's thread into the event loop: the sequences of one HTTP request, and what is new of each."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from loopwright.generation.constraints import Constraint, ConstraintError
from loopwright.generation.detokenise import AnswerPieces
from loopwright.generation.request import Request
from loopwright.generation.scores import Ranked, TokenScore
from loopwright.serving.models import ServedModel
from loopwright.serving.schema import ParsedRequest, Refusal, engine_refusal
from loopwright.untrusted import first_line

SEED_RANGE = 2**63
SHAPED = 512  # words of scores that are told in one turn of the event loop: each may have to be decoded


class LoopNotifier:
    """Calls into the event loop from the engine's thread: one hand-over for all that a tick has changed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._scheduled = loop, False
        self._changed: deque[Callable[[], object]] = deque()

    def notify(self, call: Callable[[], object]) -> None:
        """Has the loop call something that raises nothing; any thread may ask for that."""
        self._changed.append(call)
        if not self._scheduled:
            self._scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False  # first, so that what is appended from now on is delivered too
        while self._changed:
            self._changed.popleft()()


class IdleTimer:
    """Sets an event whenever it was not reset for so many seconds. One timer serves a stream: one per token costs as its JSON."""

    def __init__(self, event: asyncio.Event, seconds: float) -> None:
        self._event, self._seconds, self._loop = event, seconds, asyncio.get_running_loop()
        self.expired = False  # it was not reset for the whole time
        self.reset()
        self._timer = self._loop.call_at(self._last + seconds, self._look)

    def reset(self) -> None:
        """Starts the wait anew."""
        self._last = self._loop.time()

    def _look(self) -> None:
        if self._loop.time() >= self._last + self._seconds:
            self.expired = True
            self.reset()
            self._event.set()
        self._timer = self._loop.call_at(self._last + self._seconds, self._look)

    def end(self) -> None:
        """Stops the timer."""
        self._timer.cancel()


class Delta(NamedTuple):
    """What is new of an answer. `prompt` are tokens of the prompt, where it is echoed: they come first, with their own text."""

    text: str
    tokens: list[int]
    depths: list[int]
    scores: list[TokenScore]
    step_tokens: list[list[Ranked]]
    finish_reason: str | None
    prompt: list[int] | None = None
    prompt_scores: list[TokenScore | None] | None = None  # the first token of all has none


class Answer:
    """One sequence: a request of the engine, read piece by piece."""

    def __init__(self, request: Request, index: int, model: ServedModel, parsed: ParsedRequest) -> None:
        self.request, self.index, self.parsed = request, index, parsed
        self._sent, self._echoed = 0, 0
        self._before = list(request.options.prompt) if parsed.echo else []
        decode = model.decode if parsed.options.get("skip_special_tokens", True) else request.decode
        assert decode is not None  # a served engine has a tokenizer
        self._decode = decode
        self._pieces = AnswerPieces(self._decode, request.options.stop, before=len(self._before))
        self.ended = False

    def take(self, most: int = sys.maxsize, *, ending: bool = True) -> Delta | None:
        """Returns what came since the last call, of at most so many tokens; None where there is nothing; raises where it failed.

        Without `ending`, what came with the end stays for a later call.
        """
        fresh = self.request.since(self._sent)
        if self.ended or not (fresh.tokens or fresh.done):
            return None
        reason = self._reason() if fresh.done else None
        if self._echoed < len(self._before):
            return self._echo(most)
        last = fresh.done and len(fresh.tokens) <= most
        if last and not ending:
            return None
        if self.parsed.max_tokens == 0:  # the engine drew one token, which nobody asked for
            self.ended = last
            return Delta("", [], [], [], [], "length") if last else None
        self._sent += min(len(fresh.tokens), most)
        tokens = self._before + self.request.tokens[: self._sent]
        text = self._pieces.more(tokens)
        if last:
            text += self._pieces.end(self._whole(tokens))
            self.ended = True
        part = fresh.tokens[:most], fresh.depths[:most], fresh.scores[:most], fresh.step_tokens[:most]
        return Delta(text, *part, reason if last else None)

    def _echo(self, most: int) -> Delta:
        """Returns the next tokens of the prompt, the first with the text of all."""
        first, end = self._echoed, min(self._echoed + most, len(self._before))
        scores: list[TokenScore | None] | None = None
        if self.request.options.prompt_logprobs:
            scores = [self.request.prompt_scores[place - 1] if place else None for place in range(first, end)]
        self._echoed = end
        return Delta("" if first else self._decode(self._before), [], [], [], [], None, self._before[first:end], scores)

    def _whole(self, tokens: list[int]) -> str:
        """Returns the text of the answer, cut where a stop string cut it; after an echoed prompt, as it reads there."""
        text = self.request.text or ""
        if not self._before:
            return text
        cut = len(self._decode(self.request.tokens)) - len(text)
        after = self._decode(tokens)[len(self._decode(self._before)) :]
        return after[: len(after) - cut]

    def _reason(self) -> str:
        request = self.request
        if isinstance(request.error, ConstraintError):
            raise Refusal(str(request.error), code="constraint_failed")
        if request.error is not None:
            raise Refusal(f"the model failed on this request ({first_line(request.error)})", status=500, code="model_failed")
        if request.finish_reason == "cancelled":
            raise Refusal("the server is shutting down", status=503, code="shutting_down", headers={"retry-after": "10"})
        return str(request.finish_reason)


class ServedRequest:
    """All sequences of one HTTP request: prompts times n, submitted together. `constraints` are those of the sequences, where they
    are compiled already."""

    def __init__(
        self,
        model: ServedModel,
        parsed: ParsedRequest,
        prompts: list[list[int]],
        notifier: LoopNotifier,
        constraints: Sequence[Constraint] = (),
    ) -> None:
        self.model, self.parsed, self.prompts = model, parsed, prompts
        self.changed, self.begun = asyncio.Event(), time.perf_counter()
        self.on_news: Callable[[], object] = self.changed.set  # called in the event loop
        self._idle: IdleTimer | None = None
        self.first_token: float | None = None  # seconds after the start
        self.gone = False  # the client has disconnected
        self.failure: Exception | None = None  # of what was done outside of the task that reads the news, and raised there

        def begin(token: int) -> None:
            if self.first_token is None:
                self.first_token = time.perf_counter() - self.begun
            if parsed.stream:
                notifier.notify(self.on_news)

        def end() -> None:
            notifier.notify(self.changed.set)

        self.answers: list[Answer] = []
        lengths = [model.new_tokens(parsed, prompt) for prompt in prompts]  # every refusal comes before any work
        tokens = sum(lengths) + (sum(map(len, prompts)) if parsed.echo else 0)
        model.limits.check_reported(tokens * parsed.n, parsed.reported, "step_tokens" if parsed.logprobs is None else "logprobs")
        self._turn = max(1, SHAPED // parsed.reported) if parsed.reported else sys.maxsize
        try:
            for prompt, length in zip(prompts, lengths, strict=True):
                for choice in range(parsed.n):
                    constraint = {"constrain": constraints[len(self.answers)]} if constraints else {}
                    request = model.engine.submit(
                        prompt,
                        **{**model.options(parsed), **constraint},
                        max_new_tokens=length,
                        seed=_seed(parsed.seed, choice),
                        on_token=begin,
                        on_done=end,
                    )
                    self.answers.append(Answer(request, len(self.answers), model, parsed))
        except ValueError as error:
            self.cancel()
            raise engine_refusal(error) from None
        except RuntimeError as error:  # closed
            self.cancel()
            raise Refusal(first_line(error), status=503, code="shutting_down", headers={"retry-after": "10"}) from None

    async def news(self, patience: float | None = None) -> AsyncIterator[list[tuple[Answer, Delta]]]:
        """Yields what is new of all answers until they have ended; nothing at all where none came for `patience` seconds."""
        idle = self._idle = None if patience is None else IdleTimer(self.changed, patience)
        try:
            while not self.over and not self.gone:
                await self.changed.wait()
                self.changed.clear()
                if self.gone:  # what was cancelled for that is no news
                    break
                if self.failure is not None:
                    raise self.failure
                fresh: list[tuple[Answer, Delta]] = []
                try:
                    self.take(fresh)
                except Refusal:
                    if fresh:
                        yield fresh
                    raise
                if fresh:
                    yield fresh
                elif idle is not None and idle.expired:
                    idle.expired = False
                    yield []
        finally:
            if idle is not None:
                idle.end()
        if not self.gone:
            self.model.took(time.perf_counter() - self.begun)

    def take(self, into: list[tuple[Answer, Delta]], *, ending: bool = True) -> None:
        """Adds what is new of each answer, up to one that failed: that raises. Without `ending`, what came with an end stays.

        Of much that is scored, a part is added in each turn of the event loop, which goes on with the others in between.
        """
        room = self._turn
        for answer in self.answers:
            while room > 0 and (delta := answer.take(room, ending=ending)) is not None:
                into.append((answer, delta))
                room -= len(delta.tokens) + len(delta.prompt or ())
                if delta.prompt is None:  # after an echo comes the answer
                    break
        if room <= 0:
            asyncio.get_running_loop().call_soon(self.on_news)
        elif not ending and any(answer.request.done and not answer.ended for answer in self.answers):
            self.changed.set()
        if into and self._idle is not None:
            self._idle.reset()

    @property
    def over(self) -> bool:
        """Whether all answers have ended."""
        return all(answer.ended for answer in self.answers)

    def leave(self) -> None:
        """The client disconnected: nothing more is made for it."""
        self.gone = True
        self.changed.set()
        self.cancel()

    def cancel(self) -> None:
        """Stops all sequences that are not done."""
        for answer in self.answers:
            answer.request.cancel()

    @property
    def usage(self) -> dict[str, int]:
        """The tokens of prompts and answers, and the steps that the answers' tokens took."""
        none = self.parsed.max_tokens == 0
        tokens = 0 if none else sum(len(answer.request.tokens) for answer in self.answers)
        steps = 0 if none else sum(sum(answer.request.depths) for answer in self.answers)
        prompt_tokens = sum(len(prompt) for prompt in self.prompts)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": prompt_tokens + tokens,
            "completion_steps": steps,
        }


def _seed(seed: int | None, choice: int) -> int | None:
    """Returns the seed of one of n answers: each its own, and the first that of a request for one."""
    return None if seed is None else (seed + choice + SEED_RANGE) % (2 * SEED_RANGE) - SEED_RANGE
