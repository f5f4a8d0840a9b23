"""What the study counts, on a tiny model."""

from __future__ import annotations

import pytest

from experiments.diffusion import __main__ as study
from experiments.diffusion.sampler import Forcing
from tests.cases import noisy


def test_plain_decoding_agrees_with_itself_and_the_table_has_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "SETTINGS", {"again": study.plain(3), "the paper's": Forcing(inner=2, rounds=2)})
    monkeypatch.setattr(study, "DEPTH", 3)
    monkeypatch.setattr(study, "PROMPT", 4)
    monkeypatch.setattr(study, "NEW", 6)
    model = noisy("huginn-tiny").double().eval()
    rows = study.measure(model, [[2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [9] * 10], rounds=1)
    assert rows[1]["equal_answers"] == rows[1]["equal_before_first_difference"] == 1 and rows[1]["steps"] == 3
    assert rows[1]["own_loss"] == rows[0]["own_loss"] and rows[2]["position_steps"] >= rows[2]["steps"]
    assert study.table(rows).count("\n") == 5


def test_what_repeats() -> None:
    assert study.repeated([1, 2, 3, 4]) == 0 and study.repeated([1, 1, 1, 1, 1]) == pytest.approx(2 / 3)
