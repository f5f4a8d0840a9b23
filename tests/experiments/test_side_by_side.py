"""Rows as they are written: short, and the same numbers. A run that was asked for and not made is named."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments import side_by_side
from experiments.side_by_side import as_line, compared, folded, run_all
from loopwright.evaluate.heldout import HeldOut
from loopwright.metrics.score import by_unit
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


def test_no_process_begins_once_the_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A study with several parts calls once for each: the last ones must not spend minutes on starting what cannot end."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: pytest.fail("a process was begun"))
    run_all([Named("made")], work, str(tmp_path / "rows.jsonl"), workers=2, seconds=0)
    assert "not made: made" in capsys.readouterr().out


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
    side_by_side._serve(Queue(), "", None, math.inf, {}, None, None)
