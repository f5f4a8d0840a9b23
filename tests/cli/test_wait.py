"""How long an absurd depth takes is told before it starts."""

import re

import pytest

import loopwright as lw
from loopwright.cli import opening as wait
from loopwright.cli.opening import spelled, tell_wait


def test_an_absurd_depth_is_told_with_its_time(capsys, monkeypatch):
    model = lw.build("huginn-tiny")
    times = iter([1.0, 0.5, 0.9])
    monkeypatch.setattr(wait, "_seconds", lambda model, ids, depth: next(times))
    tell_wait(model, 100_000, rows=2, length=3)
    expected = (
        r"loopwright: depth 100,000: about 83 minutes for each pass of 2 × 3 tokens \(50 ms a step, measured\); Ctrl-C stops\n"
    )
    assert re.fullmatch(expected, capsys.readouterr().err)


def test_the_measured_step_is_a_real_one(capsys):
    model = lw.build("universal-tiny")
    tell_wait(model, 5000)
    found = re.search(r"\(([\d.]+) ms a step", capsys.readouterr().err)
    assert found and 0 < float(found[1]) < 1000


def test_other_depths_and_dense_models_say_nothing(capsys):
    tell_wait(lw.build("huginn-tiny"), 999)
    tell_wait(lw.build("huginn-tiny"), None)
    tell_wait(lw.build("huginn-tiny", core_layers=0, injection={"kind": "none"}, state={"kind": "input"}, end_norm="never"), None)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.1, "a second or two"),
        (40, "40 seconds"),
        (119, "119 seconds"),
        (600, "10 minutes"),
        (86_400, "24 hours"),
        (10**6, "12 days"),
    ],
)
def test_times_in_words(seconds, words):
    assert spelled(seconds) == words
