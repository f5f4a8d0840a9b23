"""Streams of events: framing, failures on the way, and readers that go."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from loopwright.engine.request import Request
from loopwright.serve.answer import Bell, Job
from loopwright.serve.connection import OWN
from loopwright.serve.limits import Limits
from loopwright.serve.models import ServedModel
from loopwright.serve.schema import wanted
from loopwright.serve.shape import Shape
from loopwright.serve.sse import EventStream, events
from tests.engine.mix import make
from tests.serve.live import SMALL, WORDS


@pytest.fixture(scope="module")
def model() -> Any:
    served = ServedModel("m", make("huginn-tiny", **SMALL), WORDS, limits=Limits(), max_rows=2, max_tokens=80)
    yield served
    served.engine.close()


def job_of(model: ServedModel, **body: Any) -> Job:
    asked = wanted(json.dumps({"prompt": "the", "temperature": 0, "stream": True, "ignore_eos": True} | body).encode(), chat=False)
    return Job(model, asked, model.prompt_ids(asked), Bell(asyncio.get_running_loop()))


def test_a_failure_on_the_way_is_an_event_and_ends_the_stream(model: ServedModel) -> None:
    async def work() -> list[bytes]:
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
        take, answer.take = answer.take, lambda **_: None  # type: ignore[method-assign]
        stream = events(job, Shape(job), patience=0.01)
        first = await anext(stream)
        answer.take = take  # type: ignore[method-assign]
        return [first, *[one async for one in stream]]

    came = asyncio.run(work())
    assert came[0] == b": waiting\n\n" and came[-1].endswith(b"data: [DONE]\n\n")


class Peer:
    """A connection that takes what is written, or does not, and an ASGI `send` that waits; both keep the bytes in their order."""

    def __init__(self, takes: Callable[[], bool], request: Request) -> None:
        self.takes, self.request, self.came, self.direct = takes, request, b"", 0

    @property
    def takes_chunks(self) -> bool:
        return self.takes()

    def write_chunk(self, body: bytes) -> None:
        self.came += body
        self.direct += 1

    async def send(self, message: Any) -> None:
        had = len(self.request.tokens)
        while len(self.request.tokens) == had and not self.request.done:  # meanwhile a token comes
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
        self.came += message.get("body", b"")

    async def receive(self) -> Any:
        await asyncio.sleep(60)

    def scope(self, version: str = "1.1") -> dict[str, Any]:
        return {"http_version": version, "state": {OWN: self}}


def said(came: bytes) -> dict[int, str]:
    """Returns the text of each choice of a stream that ended well."""
    *lines, end = came.decode().removesuffix("\n\n").split("\n\n")
    texts: dict[int, str] = {}
    for line in lines:
        for choice in json.loads(line.removeprefix("data: "))["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert end == "data: [DONE]"
    return texts


@pytest.mark.parametrize("takes", [0, 0.5, 1])
def test_what_is_written_at_once_is_in_its_place_among_what_is_sent(model: ServedModel, takes: float) -> None:
    draws = random.Random(3)

    async def work() -> None:
        job = job_of(model, prompt=["the", "cat"], max_tokens=20)
        peer = Peer(lambda: draws.random() < takes, job.answers[1].request)
        await EventStream(job, Shape(job), lambda: None)(peer.scope(), peer.receive, peer.send)
        assert said(peer.came) == {answer.index: answer.request.text for answer in job.answers}
        assert (peer.direct > 0) == (takes > 0)

    asyncio.run(work())


def test_nothing_is_written_past_http_1_0_and_a_failure_there_ends_its_stream_alone(model: ServedModel) -> None:
    async def work() -> None:
        jobs = [job_of(model, max_tokens=10) for _ in range(2)]
        old, broken = (Peer(lambda: True, job.answers[0].request) for job in jobs)
        broken.write_chunk = lambda body: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        streams = [EventStream(job, Shape(job), lambda: None) for job in jobs]
        calls = [
            streams[0](broken.scope(), broken.receive, broken.send), streams[1](old.scope("1.0"), old.receive, old.send)
        ]  # fmt: skip
        failed, _ = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(failed, ZeroDivisionError)
        assert said(old.came) == {0: jobs[1].answers[0].request.text} and not old.direct
        await asyncio.to_thread(jobs[0].answers[0].request.result, 5)

    asyncio.run(work())
    assert model.engine.open_requests == 0


@pytest.mark.parametrize("how", ["disconnect", "send fails", "cancelled"])
def test_a_reader_that_goes_cancels_its_request(model: ServedModel, how: str) -> None:
    async def work() -> None:
        job, sent, ended = job_of(model, max_tokens=70), asyncio.Event(), []

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

        task = asyncio.create_task(EventStream(job, Shape(job), lambda: ended.append(1))({}, receive, send))
        await sent.wait()
        if how == "cancelled":
            task.cancel()
        await asyncio.wait([task], timeout=5)
        assert task.done() and ended == [1]
        request = job.answers[0].request
        await asyncio.to_thread(request.result, 5)
        assert request.finish_reason == "cancelled" and len(request.tokens) < 70

    asyncio.run(work())
    assert model.engine.open_requests == 0
