"""Spikes of a loss: counted where they are, not where a loss is rough all along."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from loopwright.training.loop import train
from loopwright.training.report import Silent, spikes, spikes_in_words
from tests.training.runs import small


def test_planted_spikes_are_found_where_they_stand() -> None:
    rng = np.random.default_rng(0)
    losses = (5 - 0.01 * np.arange(200) + 0.05 * rng.normal(size=200)).tolist()
    assert spikes(losses) == []
    losses[90] += 1.0
    losses[150] += 2.0
    losses[20] += 3.0  # no fifty before it
    assert spikes(losses) == [90, 150]


def test_the_rule_is_four_deviations_over_the_mean_of_fifty() -> None:
    before = [1.0, 3.0] * 25  # mean 2, deviation 1
    assert spikes([*before, 6.0]) == [] and spikes([*before, 6.001]) == [50]
    assert spikes([*before, 4.5], deviations=2) == [50] and spikes([1.0, 3.0, 6.5], before=2) == [2]


def test_skipped_updates_are_left_out_and_places_stay() -> None:
    losses: list[float | None] = [1.0, 3.0] * 25
    assert spikes([None, *losses, math.nan, math.inf, 6.001]) == [53]


def test_a_run_tells_its_spikes(tmp_path: Path) -> None:
    """A rate that is far too large for one update: what the note says is what the log shows."""
    reporter = Silent()
    chosen = small({"updates": 60, "validate": {"every": 0}, "save": {"every": 0}})
    run = train(chosen, tmp_path / "run", reporter=reporter)
    assert run.spikes() == spikes([row["loss"] for row in run.log()])
    assert [note for note in reporter.notes if "spike" in note] == ([spikes_in_words(run.spikes())] if run.spikes() else [])


def test_many_are_told_in_short() -> None:
    assert spikes_in_words([7]).startswith("1 spike of the loss") and spikes_in_words([7]).endswith("at update 7")
    assert spikes_in_words([*range(9)]).endswith("0, 1, 2, 3, 4, 5, 6, 7 …") and spikes_in_words([*range(9)]).startswith("9 spikes")
