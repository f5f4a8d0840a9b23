"""Engine: requests in, tokens out as they come. One thread works while there is something to do, and none afterwards."""

from __future__ import annotations

import atexit
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from loopwright.confined import token_ids
from loopwright.generation.constraints import ConstrainedVocabulary, Constraint
from loopwright.generation.detokenise import text_of
from loopwright.generation.exit_rules import ExitRule, build_exit
from loopwright.generation.generation_config import check_offered, end_tokens, least_tokens, new_tokens, settled, stop_strings
from loopwright.generation.mixed_depth import check_mean_read
from loopwright.generation.readings import sees_future
from loopwright.generation.request import Request, RequestOptions, Result
from loopwright.generation.sampling import Sampling, checked_seed, checked_whole
from loopwright.generation.scheduler import EngineStats, Scheduler
from loopwright.generation.speculation import AUTO, MOST_TOKENS
from loopwright.model.causal_lm import READS_FUTURE, LoopedForCausalLM
from loopwright.schema import check_whole, is_whole, shown

DRAFT_TOKENS = 4  # that one verification covers, where nothing is said
PROBED = 16  # tokens by which a model is asked whether it reads the future
ENGINE_NEW_TOKENS = 128  # of an answer, where nothing is said
LINGER = 0.5  # seconds that the idle worker waits for more before it ends

Prompt = str | Sequence[int] | Tensor | np.ndarray

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Closes what is open when the interpreter ends: a thread inside torch must not outlive it."""
    for engine in list(_engines):
        engine.close()


class Engine:
    """Serves a model: `max_rows` requests at a time, with keys for `max_tokens` tokens in all.

    These are tokens at `depth` steps (the model's own by default) that the coda reads `readings` times: a plain request reads once,
    one with drafts twice, one with an exit rule after every step.

    Each request runs at its own depth. What it answers does not depend on the others: it is `model.generate` of it alone.
    """

    def __init__(
        self,
        model: LoopedForCausalLM,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        max_rows: int = 16,
        max_tokens: int = 8192,
        chunk_tokens: int = 256,
        depth: int | None = None,
        readings: int = 1,
    ) -> None:
        numbers = {"max_rows": max_rows, "max_tokens": max_tokens, "chunk_tokens": chunk_tokens, "readings": readings}
        if not isinstance(model, LoopedForCausalLM):
            raise ValueError(f"engine: model is {shown(model)}; give a loaded one, such as lw.load(...) returns")
        if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise ValueError(f"engine: tokenizer is {shown(tokenizer)}; give a loaded one, such as lw.tokenizer(...) returns")
        for name, value in numbers.items():
            check_whole(name, value, 1)
        ids = torch.arange(min(PROBED, model.config.max_position_embeddings), device=model.device) % model.config.vocab_size
        if sees_future(model, ids[None], depth):
            raise ValueError(f"engine: {READS_FUTURE}")
        config: Any = model.generation_config
        check_offered(config, draws=config.do_sample is True)
        self.model, self.tokenizer = model, tokenizer
        self._own_exit = own_exit(model)
        self._scheduler = Scheduler(
            model, rows=max_rows, tokens=max_tokens, depth=model.config.check_depth(depth), readings=readings, chunk=chunk_tokens
        )
        self._vocabulary: ConstrainedVocabulary | None = None
        self._spelling = threading.Lock()  # so that two threads do not both make it
        self._inbox: list[Request] = []
        self._open = 0  # requests that are submitted and not done
        self._wake = threading.Condition()
        self._worker: threading.Thread | None = None
        self._closed = False
        _engines.add(self)

    def __repr__(self) -> str:
        word = "closed" if self._closed else f"{self._open} open requests"
        return f"Engine({type(self.model).__name__}, {word})"

    @property
    def ran(self) -> EngineStats:
        """What was run so far: ticks, row-steps, passes."""
        return self._scheduler.ran

    @property
    def open_requests(self) -> int:
        """How many requests are submitted and not done: in rows and waiting."""
        return self._open

    def submit(
        self,
        prompt: Prompt,
        *,
        depth: int | None = None,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        state_seed: int | None = None,
        stop: str | Iterable[str | int] = (),
        logprobs: bool = False,
        priority: int = 0,
        on_token: Callable[[int], object] | None = None,
        exit: str | Mapping[str, Any] | None = None,
        exit_keys: str = "backfill",
        draft_depth: int | str | None = None,
        draft_tokens: int | None = None,
        top_logprobs: int = 0,
        prompt_logprobs: bool = False,
        step_tokens: int = 0,
        ignore_eos: bool = False,
        on_done: Callable[[], object] | None = None,
        constrain: Mapping[str, Any] | Constraint | None = None,
        min_new_tokens: int | None = None,
        skip_special_tokens: bool = True,
    ) -> Request:
        """Queues a prompt (text or token ids) and returns its handle; raises at once where the request can never be served.

        What is left open is as `model.generation_config` says, which is read now: temperature and cuts (where it says `do_sample`,
        or the request draws), `repetition_penalty`, end tokens, stop strings, `max_new_tokens` (else 128) and `min_new_tokens` (for
        its end tokens alone).
        `stop` are strings, or token ids beside the model's own end token, that end the answer. `priority` moves a request ahead
        of earlier ones. `on_token` is called with each token by the engine's thread, `on_done` once at the end.

        `top_logprobs` gives the likeliest tokens beside each one, `prompt_logprobs` the scores of the prompt's tokens too, and
        `step_tokens` the likeliest tokens after each step. `ignore_eos` goes on after the model's own end token.
        Before `min_new_tokens` no end token is drawn and no stop string is looked for. Without `skip_special_tokens` the text has
        control words, other than the one that ended it.
        `constrain` gives the answer a form: {"json": schema}, {"regex": pattern}, {"choice": [texts]}, or one of `constraint`.

        `exit` is a rule by which tokens leave the loop early (see exit_rules.py); left out, a model that answers where its exit
        gate says leaves there ("never": at full depth). The keys they then lack are run when a later token needs them ("backfill":
        exact) or copied from their last step ("copy": an approximation). `draft_depth` drafts `draft_tokens` − 1 tokens (3) at a
        lower depth and verifies them together at `depth`: the same tokens, sooner. "auto" picks both for each round, by the drafts
        that held so far; `draft_tokens` is then the most that a round verifies (8).
        """
        asked = Sampling(temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias)
        sampling, ids = settled(self.model, asked), self._token_ids(prompt)
        sampling.check_vocabulary(self.model.config.vocab_size)
        length = self._length(max_new_tokens, len(ids))
        _check_least(min_new_tokens, length, constrained=constrain is not None)
        _check_counts(self.model, priority, top_logprobs=top_logprobs, step_tokens=step_tokens)
        eos = frozenset(() if ignore_eos else end_tokens(self.model, self.tokenizer))
        strings, tokens = self._endings(stop, eos)
        # a form says itself where an answer ends
        least = least_tokens(self.model, len(ids)) if min_new_tokens is None and constrain is None else 0
        options = RequestOptions(
            ids, self.model.config.check_depth(depth), length, sampling,
            _fresh_seed(sampling) if seed is None else checked_whole(seed),
            None if state_seed is None else checked_whole(checked_seed(self.model, state_seed)),
            tokens, strings, logprobs or top_logprobs > 0, priority, on_token,
            self._rule(exit, step_tokens),
            exit_keys, draft_depth,
            (MOST_TOKENS if draft_depth == AUTO else DRAFT_TOKENS) if draft_tokens is None else draft_tokens,
            top_logprobs, prompt_logprobs, step_tokens, on_done,
            constrain if isinstance(constrain, Constraint | None) else self.constraint(constrain, ignore_eos=ignore_eos),
            min_new_tokens or 0, least, eos,
        )  # fmt: skip
        self._check_mixed(options, own=exit is None and self._own_exit is not None)
        self._check_fits(options)
        request = Request(options, self._text_of(tokens, skip_special_tokens), on_done=self._count_done, in_worker=self._in_worker)
        self._queue(request)
        return request

    def generate(self, prompts: Sequence[Prompt | Mapping[str, Any]], **options: Any) -> list[Result]:
        """Returns the results of many requests in their order. A mapping holds the options of `submit` for its own request.

        A request that cannot be served raises, with its number, and the others are cancelled.
        """
        if isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable):
            raise ValueError(f"generate: {shown(prompts)} is not a list of prompts; put it into one, or use submit")
        requests: list[Request] = []
        try:
            for number, prompt in enumerate(prompts):
                fields = dict(prompt) if isinstance(prompt, Mapping) else {"prompt": prompt}
                try:
                    requests.append(self.submit(**{**options, **fields}))
                except ValueError as error:
                    raise ValueError(f"request {number}: {error}") from None
            return [request.result() for request in requests]
        except BaseException:
            for request in requests:
                request.cancel()
            raise

    def constraint(self, spec: Mapping[str, Any], *, ignore_eos: bool = False) -> Constraint:
        """Returns the form of one answer, checked and compiled, for a caller that must not wait for that in `submit`."""
        vocabulary = self.constrained_vocabulary()
        assert self.tokenizer is not None
        return vocabulary.constraint(spec, () if ignore_eos else end_tokens(self.model, self.tokenizer))

    def constrained_vocabulary(self) -> ConstrainedVocabulary:
        """Returns the tokens as grammars know them; made with the first call, which takes a second for a large vocabulary."""
        if self.tokenizer is None:
            raise ValueError("constrain: it needs a tokenizer; build the engine with one")
        with self._spelling:
            if self._vocabulary is None:
                self._vocabulary = ConstrainedVocabulary(self.tokenizer, self.model.config.vocab_size)
            return self._vocabulary

    def close(self) -> None:
        """Cancels what is left and ends the worker. Closing twice is allowed."""
        with self._wake:
            self._closed = True
            worker = self._worker
            self._wake.notify_all()
        if worker is not None and worker is not threading.current_thread():
            worker.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:  # what was asked for is still answered
                with self._wake:
                    self._wake.wait_for(lambda: not self._open)
        finally:
            self.close()

    # the worker

    def _queue(self, request: Request) -> None:
        with self._wake:
            if self._closed:
                raise RuntimeError("engine: closed; build a new one")
            if self._worker is None:
                worker = threading.Thread(target=self._work, name="loopwright-engine", daemon=True)
                worker.start()  # it waits for the lock; where no thread can be started, nothing is queued
                self._worker = worker
            self._inbox.append(request)
            self._open += 1
            self._wake.notify_all()

    @torch.no_grad()
    def _work(self) -> None:
        scheduler = self._scheduler
        while True:
            with self._wake:
                for request in self._inbox:
                    scheduler.add(request)
                self._inbox.clear()
                if self._closed:
                    scheduler.cancel_all()
                if not scheduler.busy:
                    if self._closed or not self._wake.wait_for(lambda: self._inbox or self._closed, timeout=LINGER):
                        self._worker = None
                        return
                    continue
            try:
                scheduler.tick()
            except BaseException as error:  # of the model, so of every row: nobody waits for ever
                scheduler.fail_all(error)

    def _in_worker(self) -> bool:
        return threading.current_thread() is self._worker

    def _count_done(self) -> None:
        with self._wake:
            self._open -= 1
            if not self._open:
                self._wake.notify_all()

    # what may be wrong with a request

    def _token_ids(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("prompt: text needs a tokenizer; build the engine with one, or give token ids")
            ids = token_ids(self.tokenizer, prompt)
        else:
            ids = _plain_ids(prompt)
        if not ids:
            raise ValueError("prompt: it has no tokens; give at least one")
        for token in ids:
            self._check_token("prompt", token)
        return tuple(ids)

    def _length(self, asked: int | None, prompt_tokens: int) -> int:
        """Returns the longest answer: as asked for, or as the model's generation config says."""
        length = new_tokens(self.model, prompt_tokens, ENGINE_NEW_TOKENS) if asked is None else asked
        return check_whole("max_new_tokens", length, 1)

    def _check_token(self, where: str, token: Any) -> None:
        known = self.model.config.vocab_size
        if not is_whole(token, 0, known - 1):
            raise ValueError(f"{where}: token {token!r}; the model knows tokens 0 to {known - 1}")

    def _endings(self, stop: str | Iterable[str | int], eos: frozenset[int]) -> tuple[tuple[str, ...], frozenset[int]]:
        if not isinstance(stop, Iterable):
            raise ValueError(f"stop: {stop!r}; give a string, or a list of strings and token ids (an empty one for none)")
        given = [stop] if isinstance(stop, str) else list(stop)
        strings = tuple(dict.fromkeys((*(one for one in given if isinstance(one, str)), *stop_strings(self.model))))
        for one in given:
            if not isinstance(one, str):
                self._check_token("stop", one)
        if "" in strings:
            raise ValueError("stop: an empty string would end every answer at once; leave it out")
        if strings and self.tokenizer is None:
            raise ValueError(f"stop: {strings[0]!r} needs a tokenizer; build the engine with one, or give token ids")
        return strings, eos.union(one for one in given if not isinstance(one, str))

    def _rule(self, exit: str | Mapping[str, Any] | None, step_tokens: int) -> ExitRule | None:
        """Returns the rule by which tokens leave: the one asked for, or that of the model's own read-out."""
        exit = self._own_exit if exit is None else exit
        if exit is None and not step_tokens:
            return None
        # every step is read out where it is asked what each would say, as under a rule by which no token ever leaves
        return build_exit("never" if exit is None else exit, self.model)

    def _check_mixed(self, options: RequestOptions, *, own: bool) -> None:
        """Refuses what does not go together; `own`: the rule is that of the model's own read-out, and nobody asked for it."""
        if own and options.draft_depth is not None:
            raise ValueError("draft_depth: the model itself leaves by exit 'gate'; set read_out 'last' in its config for drafts")
        if own and options.prompt_logprobs:
            raise ValueError("prompt_logprobs: the model itself leaves by exit 'gate'; give exit 'never' beside it")
        if options.mixed_depth:
            check_mean_read(
                self.model, "step_tokens" if options.step_tokens else "exit" if options.draft_depth is None else "draft_depth"
            )
        if options.exit_keys not in ("backfill", "copy"):
            raise ValueError(f"exit_keys: {options.exit_keys!r}; allowed: backfill, copy")
        if options.exit_keys == "copy" and options.exit is None:
            raise ValueError("exit_keys: 'copy' would change nothing; no exit rule is given")
        check_whole("draft_tokens", options.draft_tokens, 2)
        if options.draft_depth is None:
            return
        if options.exit is not None:
            raise ValueError(f"draft_depth: given with {'step_tokens' if options.step_tokens else 'exit'}; use one of them")
        if options.draft_depth == AUTO and options.depth > 1:
            return
        if not is_whole(options.draft_depth, 1, options.depth - 1):
            raise ValueError(
                f"draft_depth must be 'auto', or a whole number >= 1 and below depth={options.depth} (got {options.draft_depth!r})"
            )

    def _check_fits(self, options: RequestOptions) -> None:
        config = self.model.config
        if self.model.training:
            raise ValueError("engine: the model is in training mode, where dropout is on; call model.eval() first")
        if config.positions == "learned" and options.capacity > config.max_position_embeddings:
            raise ValueError(
                f"request: {len(options.prompt)} prompt tokens and {options.max_new_tokens} new ones go beyond the learned "
                f"positions (max_position_embeddings={config.max_position_embeddings})"
            )
        self._scheduler.pool.check_fits(options.capacity, options.depth, len(options.readings))

    def _text_of(self, ends: frozenset[int], skip: bool) -> Callable[[list[int]], str] | None:
        """Returns how the tokens of an answer become its text: without control words, or with all but those that end it."""
        words = self.tokenizer
        if words is None:
            return None
        return text_of(words, skip=skip, silent=() if skip else ends & set(words.all_special_ids))


def own_exit(model: LoopedForCausalLM) -> str | None:
    """Returns the rule by which tokens of a model leave where nothing is said: with all keys there, that is its own read-out."""
    read_out = model.config.read_out
    if read_out == "expected" and model.halting.mixes == "logits":
        raise ValueError("engine: read_out 'expected' mixes logits of all steps; allowed: 'last' or 'hub' in the model's config")
    return "gate" if read_out == "hub" else None


def _plain_ids(prompt: Any) -> list[Any]:
    """Returns the ids of a list, tensor or array; a tensor of one row [1, T] is that row."""
    if isinstance(prompt, Mapping):  # a tokenizer's answer
        raise ValueError(f'prompt: a {type(prompt).__name__} of {", ".join(map(str, prompt))}; give its ["input_ids"]')
    if isinstance(prompt, Tensor | np.ndarray | np.generic):
        if prompt.ndim == 2 and prompt.shape[0] == 1:
            prompt = prompt[0]  # type: ignore[index]
        if prompt.ndim != 1:
            raise ValueError(f"prompt: an array of shape {tuple(prompt.shape)}; give one row of token ids, [T] or [1, T]")
        return list(prompt.tolist())
    if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Iterable):
        raise ValueError(f"prompt: {prompt!r} is neither text nor a list of token ids")
    return [token.item() if isinstance(token, np.integer) else token for token in prompt]


def _check_least(least: int | None, most: int, *, constrained: bool) -> None:
    if least is None:
        return
    if not is_whole(least, 0, most):
        raise ValueError(f"min_new_tokens must be a whole number from 0 to max_new_tokens={most} (got {least!r})")
    if least and constrained:
        raise ValueError("min_new_tokens: given with constrain, which says where the answer ends; keep one")


def _check_counts(model: LoopedForCausalLM, priority: int, **counts: int) -> None:
    check_whole("priority", priority)
    for name, value in counts.items():
        if not is_whole(value, 0, model.config.vocab_size):
            raise ValueError(f"{name} must be a whole number from 0 to {model.config.vocab_size}, the vocabulary (got {value!r})")
    if counts["step_tokens"] and not model.config.is_looped:
        raise ValueError("step_tokens: a dense model has no steps; leave it out")


def _fresh_seed(sampling: Sampling) -> int:
    return secrets.randbits(62) if sampling.draws else 0  # torch's own generator is the caller's
