"""From the engine's thread into the event loop."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from loopwright.serving.answer import Delta, IdleTimer, LoopNotifier, ServedRequest, _seed
from loopwright.serving.models import ServedModel
from loopwright.serving.openai_json import Shape, written
from loopwright.serving.schema import Refusal, ServerLimits, parse_request
from loopwright.serving.sse import events
from tests.generation.mix import make
from tests.generation.tiny import letter_tokenizer
from tests.serving.live import SMALL, WORDS, hold_engines, until


@pytest.fixture(scope="module")
def model() -> Any:
    served = ServedModel("m", make("huginn-tiny", **SMALL), WORDS, limits=ServerLimits(), max_rows=2, max_tokens=80)
    yield served
    served.engine.close()


def run(model: ServedModel, **body: Any) -> tuple[ServedRequest, list[list[Delta]]]:
    async def work() -> tuple[ServedRequest, list[list[Delta]]]:
        asked = parse_request(json.dumps({"prompt": "the cat", "temperature": 0, "max_tokens": 4} | body).encode(), chat=False)
        job = ServedRequest(model, asked, model.prompt_ids(asked), LoopNotifier(asyncio.get_running_loop()))
        parts: list[list[Delta]] = [[] for _ in job.answers]
        async for fresh in job.news(60):
            assert fresh
            for answer, delta in fresh:
                parts[answer.index].append(delta)
        return job, parts

    return asyncio.run(work())


def test_every_ring_of_many_threads_is_heard() -> None:
    async def work() -> None:
        notifier, events = LoopNotifier(asyncio.get_running_loop()), [asyncio.Event() for _ in range(400)]
        threads = [threading.Thread(target=lambda part=events[i::4]: [notifier.notify(one.set) for one in part]) for i in range(4)]
        for thread in threads:
            thread.start()
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in events)), 60)

    asyncio.run(work())


def test_a_bell_of_a_loop_that_has_ended_is_silent() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    LoopNotifier(loop).notify(asyncio.Event().set)


def test_answers_are_those_of_the_engine(model: ServedModel) -> None:
    job, parts = run(model, prompt=["the cat", [5, 6]], n=2, seed=7, temperature=1.0, return_depth_used=True)
    for index, (prompt, seed) in enumerate([([2, 4], 7), ([2, 4], 8), ([5, 6], 7), ([5, 6], 8)]):
        alone = model.engine.submit(prompt, max_new_tokens=4, temperature=1.0, seed=seed).result()
        assert [token for delta in parts[index] for token in delta.tokens] == alone.tokens
        assert "".join(delta.text for delta in parts[index]) == alone.text
        assert parts[index][-1].finish_reason == alone.finish_reason
    assert job.usage["prompt_tokens"] == 4 and job.usage["completion_steps"] == 4 * job.usage["completion_tokens"]
    assert job.first_token is not None


def test_echo_comes_first_and_no_tokens_means_none(model: ServedModel) -> None:
    job, (parts,) = run(model, max_tokens=0, echo=True, logprobs=1)
    assert "".join(delta.text for delta in parts) == "the cat" and parts[0].prompt == [2, 4]
    assert [score is None for score in parts[0].prompt_scores or []] == [True, False] and job.usage["completion_tokens"] == 0
    plain = model.engine.submit([2, 4], max_new_tokens=4).result()
    stop = (plain.text or "").split()[2]
    _, (parts,) = run(model, echo=True, stop=stop)
    said = "".join(delta.text for delta in parts)
    assert said == f"the cat {(plain.text or '').partition(stop)[0]}"


def test_what_cannot_be_submitted_leaves_nothing_behind(model: ServedModel) -> None:
    with pytest.raises(Refusal, match="draft_depth must be"):
        run(model, draft_depth=9)
    with pytest.raises(Refusal, match="max_model_len"):
        run(model, prompt=[[1], [1] * 78])
    assert model.engine.open_requests == 0


def test_a_request_that_fails_or_is_cancelled_says_so(model: ServedModel) -> None:
    for change, status in ((lambda job: job.answers[0].request.fail(ValueError("broken")), 500), (lambda job: job.cancel(), 503)):

        async def work(change: Any = change) -> None:
            asked = parse_request(b'{"prompt": "the", "max_tokens": 60, "ignore_eos": true}', chat=False)
            with hold_engines():  # nothing changes an answer that has ended
                job = ServedRequest(model, asked, [[2]], LoopNotifier(asyncio.get_running_loop()))
                change(job)
            async for _ in job.news(60):
                pass

        with pytest.raises(Refusal) as refused:
            asyncio.run(work())
        assert refused.value.status == status


def test_seeds_of_choices_stay_in_range() -> None:
    assert [_seed(2**63 - 1, choice) for choice in range(2)] == [2**63 - 1, -(2**63)] and _seed(None, 3) is None


def test_answers_have_the_form_that_was_asked_for() -> None:
    pytest.importorskip("llguidance")
    letters = letter_tokenizer()
    served = ServedModel("m", make("huginn-tiny", **SMALL), letters, limits=ServerLimits(), max_rows=2, max_tokens=80)
    try:
        body = {"prompt": "a", "temperature": 1, "seed": 3, "n": 2, "max_tokens": 12, "structured_outputs": {"regex": "[a-f]{3}x?"}}
        _, parts = run(served, **body)
        for deltas in parts:
            assert re.fullmatch("[a-f]{3}x?", "".join(delta.text for delta in deltas)) and deltas[-1].finish_reason == "stop"
        assert until(lambda: not served.engine.open_requests)  # an answer is counted after it is seen to have ended
        with pytest.raises(Refusal, match=r"^constrain\.json: Invalid type: cat$") as refused:
            run(served, response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "cat"}}})
        assert refused.value.status == 400 and not served.engine.open_requests
        with pytest.raises(Refusal, match=r"^constrain: no way on after 2 tokens") as refused:
            run(served, structured_outputs={"choice": ["abé"]})  # which no letter of this tokenizer spells
        assert refused.value.status == 400
    finally:
        served.engine.close()


def test_what_one_answer_brought_is_told_before_the_failure_of_another(model: ServedModel) -> None:
    async def work() -> list[int]:
        asked = parse_request(b'{"prompt": ["the", "cat"], "max_tokens": 1, "ignore_eos": true}', chat=False)
        job = ServedRequest(model, asked, [[2], [4]], LoopNotifier(asyncio.get_running_loop()))
        job.answers[0].request.result()
        job.answers[1].request.error = ValueError("broken")  # whether it was done or not
        job.answers[1].request.finish("error")
        news = job.news(60)
        told = [answer.index for answer, _ in await anext(news)]
        with pytest.raises(Refusal, match="broken"):
            await anext(news)
        return told

    assert asyncio.run(work()) == [0]


class Clock:
    """The time and the one timer of an event loop, both moved by the test."""

    def __init__(self) -> None:
        self.now = 0
        self.due: list[tuple[int, Callable[[], object]]] = []

    def time(self) -> int:
        return self.now

    def call_at(self, when: int, call: Callable[[], object]) -> SimpleNamespace:
        self.due = [(when, call)]
        return SimpleNamespace(cancel=self.due.clear)

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            if self.due and self.due[0][0] <= self.now:
                self.due.pop()[1]()


def test_idle_is_told_once_per_span_and_not_while_something_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, event = Clock(), asyncio.Event()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    idle = IdleTimer(event, 5)
    for _ in range(10):
        clock.wait(1)
        idle.reset()
    clock.wait(4)
    assert not idle.expired and not event.is_set()
    clock.wait(1)
    assert idle.expired and event.is_set()
    event.clear()
    clock.wait(4)
    assert not event.is_set()
    clock.wait(1)
    assert event.is_set()  # again, after another span
    idle.end()
    event.clear()
    clock.wait(100)
    assert not event.is_set()


def test_a_whole_answer_wakes_the_loop_once(model: ServedModel) -> None:
    rung: list[int] = []

    async def work(stream: bool) -> int:
        rung.clear()
        notifier = LoopNotifier(asyncio.get_running_loop())
        ring, notifier.notify = notifier.notify, lambda call: (rung.append(1), ring(call))  # type: ignore[method-assign, assignment]
        asked = parse_request(
            json.dumps({"prompt": "the", "max_tokens": 6, "ignore_eos": True, "stream": stream}).encode(), chat=False
        )
        job = ServedRequest(model, asked, [[2]], notifier)
        async for _ in job.news(60):
            pass
        assert job.first_token is not None
        assert until(lambda: len(rung) >= (7 if stream else 1))  # the answer may be seen to have ended before its end is rung
        return len(rung)

    assert asyncio.run(work(False)) == 1 and asyncio.run(work(True)) == 7


def test_a_client_that_went_is_not_told_that_its_request_was_cancelled(model: ServedModel) -> None:
    async def work() -> ServedRequest:
        asked = parse_request(b'{"prompt": "the", "max_tokens": 60, "ignore_eos": true}', chat=False)
        with hold_engines():  # the answer may not end by itself
            job = ServedRequest(model, asked, [[2]], LoopNotifier(asyncio.get_running_loop()))
            reading = asyncio.ensure_future(anext(job.news(60), None))
            await asyncio.sleep(0)  # it waits
            job.leave()
            job.answers[0].request.finish("cancelled")  # by the engine, before the waiting task runs
        assert await asyncio.wait_for(reading, 60) is None
        return job

    assert asyncio.run(work()).gone


class Turns:
    """Counts the turns of an event loop while it runs, and the words that were asked for in each."""

    def __init__(self, model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.words, word = [0], model.word
        monkeypatch.setattr(model, "word", lambda token: (self.count(), word(token))[1])

    def count(self) -> None:
        self.words[-1] += 1

    async def turn(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.words.append(0)


LONG = {"prompt": [[2, 4, 8] * 12, [5, 6] * 15], "echo": True, "logprobs": 4, "max_tokens": 6, "ignore_eos": True}


async def answered(model: ServedModel, turns: Turns, **body: Any) -> dict[str, Any]:
    """Returns what the server makes of a request, as it does it; the words of each turn are counted."""
    asked = parse_request(json.dumps({"temperature": 0, **LONG, **body}).encode(), chat=False)
    assert until(lambda: not model.engine._scheduler.busy)
    model.engine._scheduler.prefixes.forget()  # what is copied may differ by rounding from what is run
    job = ServedRequest(model, asked, model.prompt_ids(asked), LoopNotifier(asyncio.get_running_loop()))
    shape, counting = Shape(job), asyncio.create_task(turns.turn())
    async for fresh in job.news(60):
        for answer, delta in fresh:
            shape.keep(answer, delta)
    counting.cancel()
    return json.loads(await written(shape.whole()))


def alike(one: Any, other: Any) -> bool:
    """Whether two answers are the same, their numbers up to rounding: who runs beside whom differs from time to time."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return abs(one - other) < 1e-4 if isinstance(one, float) else one == other


@pytest.mark.parametrize("body", [{}, {"n": 2}, {"max_tokens": 0}, {"echo": False}, {"step_tokens": 3, "depth": 2, "prompt": [2]}])
def test_what_is_scored_is_told_in_parts(body: dict[str, Any], model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two parts the event loop has a turn for the others; together they are what one part would be."""
    turns = Turns(model, monkeypatch)
    whole = asyncio.run(answered(model, turns, **body))
    monkeypatch.setattr("loopwright.serving.answer.SHAPED", 20)
    monkeypatch.setattr("loopwright.serving.openai_json.PIECES", 10)
    most, turns.words = max(turns.words), [0]
    parts = asyncio.run(answered(model, turns, **body))
    assert alike(parts["choices"], whole["choices"]) and parts["usage"] == whole["usage"]
    # at most four tokens in a turn, each with its own word and those of four likeliest; the words of steps are twelve a token
    assert max(turns.words) <= 44 < most


def test_a_stream_of_parts_is_the_whole(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.serving.answer.SHAPED", 20)

    async def streamed() -> list[dict[str, Any]]:
        asked = parse_request(json.dumps({"temperature": 0, **LONG, "stream": True}).encode(), chat=False)
        job = ServedRequest(model, asked, model.prompt_ids(asked), LoopNotifier(asyncio.get_running_loop()))
        sent = b"".join([one async for one in events(job, Shape(job))]).decode()
        return [json.loads(line[6:])["choices"][0] for line in sent.split("\n\n") if line.startswith("data: {")]

    chunks = asyncio.run(streamed())
    whole = asyncio.run(answered(model, Turns(model, monkeypatch)))["choices"]
    for index in range(2):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(chunk["text"] for chunk in own) == whole[index]["text"]
        for name, values in whole[index]["logprobs"].items():
            assert [value for chunk in own for value in chunk["logprobs"][name]] == values
        assert [chunk["finish_reason"] for chunk in own if chunk["finish_reason"]] == ["length"] and len(own) > 9


def test_an_answer_of_too_many_words_is_refused_before_any_work(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loopwright.serving.schema.MOST_REPORTED", 700)
    run(model, **LONG | {"prompt": [[2] * 58] * 2})  # (58 + 6) × 2 × 5 = 640
    for field, body in (("logprobs", {"n": 2}), ("step_tokens", {"step_tokens": 20, "depth": 4, "logprobs": None})):
        with pytest.raises(Refusal, match=rf"^{field}: \d+ tokens of prompts and answers with \d+ words each are more than 700;"):
            run(model, **LONG | body)
    assert model.engine.open_requests == 0
