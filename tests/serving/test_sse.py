"""Streams of events: framing, failures on the way, and readers that go."""

from __future__ import annotations

import asyncio
import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.generation.request import Request, RequestOptions
from loopwright.serving.answer import LoopNotifier, ServedRequest
from loopwright.serving.models import ServedModel
from loopwright.serving.openai_json import Shape
from loopwright.serving.schema import ServerLimits, parse_request
from loopwright.serving.sse import OWN, EventStream, events
from tests.generation.mix import make
from tests.serving.live import SMALL, WORDS, hold_engines, until


@pytest.fixture(scope="module")
def model() -> Any:
    served = ServedModel("m", make("huginn-tiny", **SMALL), WORDS, limits=ServerLimits(), max_rows=2, max_tokens=80)
    yield served
    served.engine.close()


def job_of(model: ServedModel, **body: Any) -> ServedRequest:
    asked = parse_request(
        json.dumps({"prompt": "the", "temperature": 0, "stream": True, "ignore_eos": True} | body).encode(), chat=False
    )
    return ServedRequest(model, asked, model.prompt_ids(asked), LoopNotifier(asyncio.get_running_loop()))


def test_a_failure_on_the_way_is_an_event_and_ends_the_stream(model: ServedModel) -> None:
    async def work() -> list[bytes]:
        with hold_engines():  # an answer that has ended cannot fail
            job = job_of(model, max_tokens=60)
            job.answers[0].request.fail(ValueError("broken"))
        return [one async for one in events(job, Shape(job))]

    *_, last = asyncio.run(work())
    assert json.loads(last.removeprefix(b"data: "))["error"]["message"] == "the model failed on this request (broken)"


def test_silence_is_filled_with_comments(model: ServedModel) -> None:
    async def work() -> list[bytes]:
        job = job_of(model, max_tokens=1)
        job.answers[0].request.result()
        answer = job.answers[0]
        take, answer.take = answer.take, lambda *_, **__: None  # type: ignore[method-assign]
        stream = events(job, Shape(job), patience=0.01)
        first = await anext(stream)
        answer.take = take  # type: ignore[method-assign]
        return [first, *[one async for one in stream]]

    came = asyncio.run(work())
    assert came[0] == b": waiting\n\n" and came[-1].endswith(b"data: [DONE]\n\n")


class Peer:
    """A connection that takes what is written, or does not, and an ASGI `send` that waits; both keep the bytes in their order."""

    def __init__(self, turns: int = 0) -> None:
        self.takes_chunks, self.turns, self.came, self.direct = True, turns, b"", 0

    def write_chunk(self, body: bytes) -> None:
        self.came += body
        self.direct += 1

    async def send(self, message: Any) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self.came += message.get("body", b"")

    async def receive(self) -> Any:
        await asyncio.sleep(60)

    def scope(self, version: str = "1.1") -> dict[str, Any]:
        return {"http_version": version, "state": {OWN: self}}


def fed(model: ServedModel, **body: Any) -> ServedRequest:
    """Returns a job whose tokens are pushed by the test."""

    def submit(prompt: list[int], *, max_new_tokens: int, on_token: Any, on_done: Any, **_: Any) -> Request:
        return Request(RequestOptions(tuple(prompt), 1, max_new_tokens, on_token=on_token, on_done=on_done), model.decode)

    other = copy.copy(model)
    other.engine = SimpleNamespace(submit=submit, model=model.engine.model)  # type: ignore[assignment]
    return job_of(other, **body)


def said(came: bytes) -> dict[int, str]:
    """Returns the text of each choice of a stream that ended well."""
    *lines, end = came.decode().removesuffix("\n\n").split("\n\n")
    texts: dict[int, str] = {}
    for line in lines:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert end == "data: [DONE]"
    return texts


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(2, 90), st.booleans(), st.integers(0, 4)), max_size=12), st.integers(0, 3))
def test_what_is_written_at_once_is_in_its_place_among_what_is_sent(
    model: ServedModel, script: list[tuple[int, int, bool, int]], turns: int
) -> None:
    async def work() -> None:
        job, peer = fed(model, prompt=["the", "cat"], max_tokens=4), Peer(turns)
        stream = asyncio.create_task(EventStream(job, Shape(job), lambda: None)(peer.scope(), peer.receive, peer.send))
        for index, token, takes, pause in script:
            peer.takes_chunks = takes
            if not job.answers[index].request.done:
                job.answers[index].request.push(token, 1)
            for _ in range(pause):
                await asyncio.sleep(0)
        for answer in job.answers:
            answer.request.finish("stop")
        await asyncio.wait_for(stream, 60)
        assert said(peer.came) == {answer.index: answer.request.text for answer in job.answers}

    asyncio.run(work())


def test_nothing_is_written_past_http_1_0_and_what_fails_there_ends_its_stream_alone(model: ServedModel) -> None:
    async def work() -> None:
        jobs, old, new, broken = [fed(model, max_tokens=20) for _ in range(3)], Peer(), Peer(), Peer()
        broken.write_chunk = lambda body: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        parts = zip(jobs, (broken, new, old), ("1.1", "1.1", "1.0"), strict=True)
        calls = [EventStream(job, Shape(job), lambda: None)(p.scope(version), p.receive, p.send) for job, p, version in parts]
        streams = asyncio.gather(*calls, return_exceptions=True)
        for _ in range(3):
            await asyncio.sleep(0.001)
            for job in jobs:
                job.answers[0].request.push(2, 1)
        await asyncio.sleep(0.001)
        for job in jobs:
            job.answers[0].request.finish("stop")
        failed, *_ = await asyncio.wait_for(streams, 60)
        assert isinstance(failed, ZeroDivisionError) and jobs[0].answers[0].request.cancelled
        assert said(old.came) == said(new.came) == {0: "the the the"} and not old.direct and new.direct == 3

    asyncio.run(work())


@pytest.mark.parametrize("how", ["disconnect", "send fails", "cancelled"])
def test_a_reader_that_goes_cancels_its_request(model: ServedModel, how: str) -> None:
    async def work() -> None:
        sent, ended = asyncio.Event(), []

        async def receive() -> Any:
            await sent.wait()
            if how != "disconnect":
                await asyncio.sleep(60)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body"):
                sent.set()
                if how == "send fails":
                    raise OSError("gone")

        with hold_engines():  # the answer may not end before its reader has gone
            job = job_of(model, max_tokens=70)
            task = asyncio.create_task(EventStream(job, Shape(job), lambda: ended.append(1))({}, receive, send))
            await sent.wait()
            if how == "cancelled":
                task.cancel()
            await asyncio.wait([task], timeout=60)
            assert task.done() and ended == [1]
        request = job.answers[0].request
        await asyncio.to_thread(request.result, 60)
        assert request.finish_reason == "cancelled" and len(request.tokens) < 70

    asyncio.run(work())
    assert until(lambda: model.engine.open_requests == 0)  # counted after the result is there
