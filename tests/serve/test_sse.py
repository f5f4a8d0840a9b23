"""Streams of events: framing, failures on the way, and readers that go."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from loopwright.serve.answer import Bell, Job
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
        take, answer.take = answer.take, lambda: None  # type: ignore[method-assign]
        stream = events(job, Shape(job), patience=0.01)
        first = await anext(stream)
        answer.take = take  # type: ignore[method-assign]
        return [first, *[one async for one in stream]]

    said = asyncio.run(work())
    assert said[0] == b": waiting\n\n" and said[-1].endswith(b"data: [DONE]\n\n")


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
