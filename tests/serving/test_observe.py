"""The access log: one line per request, whatever happens, and nobody waits for it; Prometheus reads the numbers of the requests."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loopwright.serving import observe as log
from loopwright.serving.observe import RECORD, AccessLog, LineWriter, LogLines
from tests.serving.live import Live, live, until

SCOPE = {"type": "http", "method": "GET", "path": '/x\n"', "client": ("10.0.0.1", 5)}


def logged(app: Any) -> dict[str, Any]:
    lines: list[dict[str, Any]] = []

    async def nothing(*args: Any) -> Any:
        return {"type": "http.disconnect"}

    try:
        asyncio.run(AccessLog(app, lines.append)(dict(SCOPE), nothing, nothing))
    finally:
        assert len(lines) == 1
        logged.last = lines[0]  # type: ignore[attr-defined]
    return lines[0]


def test_a_request_is_one_record_with_what_its_handler_said() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope[RECORD]["model"] = "tiny"
        await send({"type": "http.response.start", "status": 201, "headers": []})

    record = logged(app)
    assert (record["status"], record["model"], record["client"], record["path"]) == (201, "tiny", "10.0.0.1", '/x\n"')
    assert "\n" not in json.dumps(record) and record["seconds"] >= 0


def test_what_fails_is_logged_too() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        logged(app)
    assert logged.last["status"] == 500 and logged.last["error"] == "KeyError: 'mine'"  # type: ignore[attr-defined]


def test_lines_are_written_by_a_thread_and_those_without_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "HELD", 2)
    free, entered = threading.Event(), threading.Event()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            entered.set()
            free.wait(60)
            return super().write(text)

    stream = Stuck()
    writer = LineWriter(stream)
    writer.write({"n": 0})
    assert entered.wait(60)
    for n in range(1, 5):
        writer.write({"n": n})  # two wait, two find no room; nobody is held up
    assert writer.lost == 2
    free.set()
    assert until(lambda: stream.getvalue().count("\n") == 3)  # `close` waits for a second, which may be too short for the thread
    writer.close()
    writer = LineWriter(stream)
    writer.lost = 2
    writer.write({"n": 5})
    assert until(lambda: stream.getvalue().count("\n") == 4)
    writer.close()
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [
        {"n": 0}, {"n": 1}, {"n": 2}, {"n": 5, "lost_lines": 2}
    ]  # fmt: skip


def test_what_libraries_log_is_a_record_and_goes_nowhere_else(capsys: pytest.CaptureFixture[str]) -> None:
    records: list[dict[str, Any]] = []
    logger = logging.getLogger("loopwright.test.log")
    LogLines(records.append).take(logger.name)
    logger.warning("no HTTP")
    try:
        raise KeyError("mine")
    except KeyError:
        logger.exception("broken")
    assert [(one["level"], one["message"].splitlines()[0]) for one in records] == [("error", "broken")]
    assert "KeyError: 'mine'" in records[0]["message"] and capsys.readouterr().err == ""


def test_a_stream_that_is_closed_ends_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    writer = LineWriter(stream)
    writer.write({"n": 0})
    writer.close()
    assert until(lambda: writer.lost == 1)  # by the thread, for which `close` waits a second


def numbers(server: Live) -> dict[str, float]:
    page = server.client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    return {
        " ".join([sample.name, *sorted(sample.labels.values())]): sample.value
        for family in text_string_to_metric_families(page.text)
        for sample in family.samples
    }


def test_requests_tokens_and_steps_are_counted() -> None:
    with live() as server:
        server.ask(depth=2, ignore_eos=True)
        server.ask(depth=3, ignore_eos=True, draft_depth=1)
        assert server.post(depth=99).status_code == 400
        assert server.client.get("/%ff" + "x" * 500).status_code == 404
        server.last_record()
        found = numbers(server)
    assert found["loopwright_requests_total /v1/completions 200"] == 2
    assert found["loopwright_requests_total /v1/completions 400"] == 1
    assert found["loopwright_requests_total 404 other"] == 1  # a path of the client's is no label
    assert found["loopwright_prompt_tokens_total tiny"] == 6 and found["loopwright_completion_tokens_total tiny"] == 10
    assert found["loopwright_completion_steps_total tiny"] == 5 * 2 + 5 * 3
    assert found["loopwright_request_seconds_count tiny"] == found["loopwright_first_token_seconds_count tiny"] == 2
    assert found["loopwright_open_sequences tiny"] == 0 and found["loopwright_rows tiny"] == 4
    assert found["loopwright_engine_drafted_total tiny"] > 0 and found["loopwright_engine_row_steps_total tiny"] > 0
