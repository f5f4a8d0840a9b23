"""Rows as they are written: short, and the same numbers. A run that was asked for and not made is named."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import side_by_side
from experiments.side_by_side import add_line, as_line, compared, folded, folder_of, missing, run_all
from experiments.trained import Stopped
from loopwright.evaluation.text import HeldOut
from loopwright.metrics.intervals import by_unit
from loopwright.training.report import StopRequest
from tests.experiments.results import hard, held_out

LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.floats(-1e300, 1e300)
PLAIN = st.dictionaries(st.text(), st.recursive(LEAVES, lambda each: st.lists(each) | st.dictionaries(st.text(), each)))


@given(PLAIN)
def test_a_line_holds_the_same_data_to_a_few_digits(row: dict) -> None:
    line = as_line(row)
    assert "\n" not in line and alike(json.loads(line), row)
    assert as_line(json.loads(line)) == line


def alike(found: object, row: object) -> bool:
    if isinstance(row, float):
        return math.isclose(found, row, rel_tol=5.1e-4, abs_tol=1e-300)  # long lists have four
    if isinstance(row, dict):
        return list(found) == list(row) and all(alike(found[key], row[key]) for key in row)
    if isinstance(row, list):
        return len(found) == len(row) and all(map(alike, found, row))
    return found == row and type(found) is type(row)


def test_lines_are_short() -> None:
    assert as_line({"a": [1582.61463, (0.1 + 0.2, 5)], "b": None}) == '{"a":[1582.615,[0.3,5]],"b":null}'


def test_single_losses_are_kept_where_models_are_compared() -> None:
    found = held_out("test", {1: hard(), 4: hard() + 0.1, 32: hard()})
    thin = compared(found, [4])
    assert [len(losses) for losses in thin["losses"]] == [0, len(hard()), 0] and thin["losses"][1] == found["losses"][1]
    assert not {"losses", "document_of", "targets_of"} & set(compared(held_out("test", {1: hard()}), [4]))


def report() -> HeldOut:
    return HeldOut(
        text="test", context=8, unit="document", documents=3, passages=5, targets=50, bytes=100, fingerprint="x", likelihood=True,
        causality="", depth=(3,), loss=(2.0,), loss_low=(1.0,), loss_high=(3.0,), perplexity=(7.0,), bits_per_byte=(1.0,),
        document_of=(4, 4, 7, 9, 9), targets_of=(10, 5, 10, 5, 20), losses=((20.0, 11.0, 21.5, 8.0, 40.25),),
    )  # fmt: skip


def test_a_folded_report_has_the_sums_of_its_documents() -> None:
    whole, few = report(), HeldOut.of(folded(report()))
    losses, targets, units = whole.at()
    own, counts, _ = few.at()
    assert few.document_of == (4, 7, 9) and own.tolist() == [31.0, 21.5, 48.25] and counts.tolist() == [15, 10, 25]
    assert by_unit(losses, units).tolist() == own.tolist() and by_unit(targets, units).tolist() == counts.tolist()


@dataclass(frozen=True)
class Named:
    name: str
    kind: str = ""


def work(run: Named) -> dict[str, Any]:
    if run.name == "fails":
        raise ValueError("on purpose")
    if run.name == "dies":
        os._exit(1)
    return {"name": run.name}


def test_runs_that_were_not_made_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text('{"name":"earlier"}\n')
    runs = [Named(name) for name in ("dies", "earlier", "fails", "made")]
    run_all(runs, work, str(out), workers=2, seconds=300)  # one process dies, the other does the rest
    said = capsys.readouterr().out.splitlines()
    assert said == ["not made: dies", "not made: fails", f"2 results in {out}"]
    assert [json.loads(line)["name"] for line in out.read_text().splitlines()] == ["earlier", "made"]


def test_a_row_that_was_half_written_is_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A worker that is killed while it writes leaves half a line, which the next row must not be glued to."""
    out, runs = tmp_path / "rows.jsonl", [Named("earlier"), Named("made")]
    out.write_text('{"name":"earlier"}\n{"name":"made","loss":[1.2')
    assert missing(runs, out) == [runs[1]]
    told = f'{out}: the last line is broken (its writer was killed?) and left out: {{"name":"made","loss":[1.2 …\n'
    assert capsys.readouterr().out == told and out.read_text() == '{"name":"earlier"}\n'
    out.write_text('{"name":"earlier"}\n{"name":"other","loss":[1.2')
    run_all(runs, work, str(out), workers=1, seconds=300)
    assert len(capsys.readouterr().out.splitlines()) == 2, "the broken line is told once, and how many rows there are"
    assert out.read_text() == '{"name":"earlier"}\n{"name":"made"}\n'


@pytest.mark.parametrize("torn", ['{"na', "", '{"name":"é'])
def test_a_row_is_added_on_a_line_of_its_own(torn: str, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_bytes(f'{{"name":"one"}}\n{torn}'.encode()[: -1 if torn.endswith("é") else None])
    add_line(out, '{"name":"two"}')
    assert out.read_text() == '{"name":"one"}\n{"name":"two"}\n'


def test_a_whole_row_without_its_end_of_line_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text('{"name":"one"}')
    assert not missing([Named("one")], out) and capsys.readouterr().out == ""
    add_line(out, '{"name":"two"}')
    assert out.read_text() == '{"name":"one"}\n{"name":"two"}\n'


NO_TIME = "not enough time ({} s): the same call makes the rest; --seconds gives it more"


def test_no_process_begins_once_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study with several parts calls once for each: the last ones must not spend minutes on starting what cannot end."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: pytest.fail("a process was begun"))
    run_all([Named("made")], work, str(tmp_path / "rows.jsonl"), workers=2, seconds=0)
    assert capsys.readouterr().out.splitlines()[:2] == ["not made: made", NO_TIME.format(0)]
    run_all([Named("made")], work, str(tmp_path / "rows.jsonl"), workers=2, seconds=side_by_side.GRACE, unfinished=tmp_path)
    assert capsys.readouterr().out.splitlines()[:2] == ["not made: made", NO_TIME.format(30)]
    run_all([Named("made")], work, str(tmp_path / "rows.jsonl"), workers=2, seconds=-0.001)  # an earlier part took all there was
    assert NO_TIME.format(0) in capsys.readouterr().out


def goes_on(run: Named, *, kept: Path) -> dict[str, Any]:
    """Trains until it is asked to stop, and has ended where it is found again; or measures until after that."""
    kept.mkdir(parents=True, exist_ok=True)
    if run.name == "measured":
        (kept / "begun").touch()
        while not [*kept.parent.glob("*/saved")]:
            time.sleep(0.05)
    elif not (kept / "saved").is_file():
        with StopRequest(told=False) as stop:
            (kept / "begun").touch()
            while not stop:
                time.sleep(0.05)
        (kept / "saved").touch()
        raise Stopped("the next call goes on")
    return {"name": run.name}


def test_what_can_go_on_is_asked_to_stop_before_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out, unfinished, runs = tmp_path / "rows.jsonl", tmp_path / "unfinished", [Named("one, two/0"), Named("measured")]
    join, asked = BaseProcess.join, []

    def join_begun(process: BaseProcess, timeout: float | None = None) -> None:
        """Returns once both have begun, not when it is time to ask: a busy machine may take long to start them."""
        while not asked and process.is_alive() and len([*unfinished.glob("*/begun")]) < 2:
            time.sleep(0.05)
        if asked:
            join(process, timeout)

    def terminate(process: BaseProcess) -> None:
        asked.append(process.pid)
        os.kill(process.pid or 0, signal.SIGTERM)

    monkeypatch.setattr(side_by_side, "GRACE", 300.0)
    with monkeypatch.context() as patched:
        patched.setattr(BaseProcess, "join", join_begun)
        patched.setattr(BaseProcess, "terminate", terminate)
        run_all(runs, goes_on, str(out), workers=2, seconds=600, unfinished=unfinished)
    said = capfd.readouterr().out
    assert "one, two/0: the next call goes on\n" in said and "FAILED" not in said
    assert f"not made: one, two/0\n{NO_TIME.format(600)}\n" in said, "it was asked to stop, and saved long before the end"
    assert [json.loads(line)["name"] for line in out.read_text().splitlines()] == ["measured"], "the request did not end it"
    assert [path.name for path in unfinished.iterdir()] == [folder_of("one, two/0")]
    run_all(runs, goes_on, str(out), workers=2, seconds=600, unfinished=unfinished)
    assert "not enough time" not in capfd.readouterr().out, "all is made"
    assert [json.loads(line)["name"] for line in out.read_text().splitlines()] == ["measured", "one, two/0"]
    assert not [*unfinished.iterdir()], "the row is written"


def serve(out: Path, deadline: float, unfinished: Path | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serves two runs of a kind that took an hour so far in this process."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    queue: SimpleQueue[Named | None] = SimpleQueue()
    for run in (Named("one", "long"), Named("two", "long"), None):
        queue.put(run)
    side_by_side._serve(queue, str(out), nullcontext(), deadline, {"long": 3600.0}, [], some, None, unfinished)


def some(run: Named, *, kept: Path | None = None) -> dict[str, Any]:
    return {"name": run.name, "kept": kept is not None}


def test_what_can_go_on_begins_as_long_as_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot begins only where a run of its kind would end in time."""
    out = tmp_path / "rows.jsonl"
    for deadline, unfinished in ((time.time() + 600, None), (time.time(), tmp_path)):
        serve(out, deadline, unfinished, monkeypatch)
        assert capsys.readouterr().out == "not begun, no time: one\nnot begun, no time: two\n" and not out.exists()
    serve(out, time.time() + 600, tmp_path, monkeypatch)
    assert out.read_text() == '{"name":"one","kept":true}\n{"name":"two","kept":true}\n'


class Here:
    """Stands for a process: does its work where it is started, and then has ended."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...]) -> None:
        self.start = partial(target, *args)

    def join(self, timeout: float) -> None: ...

    def is_alive(self) -> bool:
        return False


@pytest.mark.parametrize(("kind", "told"), [("long", ["not begun, no time: one"]), ("short", [])])
def test_a_run_that_is_not_begun_for_lack_of_time_is_told(
    kind: str, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where most of the time is left; a run that failed did not lack any."""
    tables = SimpleNamespace(Queue=SimpleQueue, Lock=nullcontext, dict=lambda: {"long": 3600.0}, list=list)
    context = SimpleNamespace(Manager=lambda: tables, Process=Here)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    out = tmp_path / "rows.jsonl"
    run_all([Named("one", kind), Named("fails")], work, str(out), workers=1, seconds=600)
    made = [] if told else ["one"]
    said = [line for line in capsys.readouterr().out.splitlines() if not line.endswith(" s  one")]
    ends = ["not made: one", "not made: fails", NO_TIME.format(600)] if told else ["not made: fails"]
    assert said == [*told, "FAILED fails: ValueError: on purpose", *ends, f"{len(made)} results in {out}"]


@given(st.text(), st.text())
def test_any_name_has_a_folder_of_its_own(one: str, other: str) -> None:
    assert re.fullmatch("[A-Za-z0-9-]{9,69}", folder_of(one)) and (folder_of(one) == folder_of(other)) == (one == other)


def test_a_process_whose_device_does_not_answer_takes_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    answers = [RuntimeError("busy"), RuntimeError("busy"), None]

    def zeros(*_: object, **__: object) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    monkeypatch.setattr(torch, "zeros", zeros)
    assert side_by_side._device_answers(wait=0)
    answers = [RuntimeError("busy")] * 3
    assert not side_by_side._device_answers(wait=0) and not answers

    class Queue:
        def get(self) -> None:
            raise AssertionError("a run was taken")

    monkeypatch.setattr(side_by_side, "_device_answers", lambda: False)
    side_by_side._serve(Queue(), "", None, math.inf, {}, [], None, None)
