"""The access log: one line per request, whatever happens, and nobody waits for it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from typing import Any

import pytest

from loopwright.serving import observe as log
from loopwright.serving.observe import RECORD, AccessLog, LineWriter, LogLines
from tests.serving.live import until

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
