"""The rate of an arm is that of the least loss on `valid`; rows that were to be stopped early and were not do not count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.pages import results
from experiments.repeats.plan import STOPPED, Row
from experiments.repeats.run import best_rates, counts
from experiments.side_by_side import missing


def run(label: str, rate: float, valid: float | None, times: int = 4, seed: int = 0, **more: object) -> dict[str, object]:
    return {"label": label, "rate": rate, "times": times, "seed": seed, "loss": {"valid": valid}, **more}


def test_the_rate_is_chosen_on_valid_by_the_first_seed() -> None:
    found = [run("ASURA", 1e-3, 4.5), run("ASURA", 2e-3, 4.4), run("ASURA", 5e-4, 4.0, times=16), run("ASURA", 5e-4, 3.0, seed=1)]
    found += [run("Huginn-like", 1e-3, None), run("plain, equal parameters, three times the updates", 1e-3, 4.0)]
    assert best_rates(found) == {("ASURA", 4): pytest.approx(2e-3)}
    deep = [run("ASURA, depth 8", rate, valid, times=1) for rate, valid in ((4e-3, 4.6), (2e-3, 4.5))]
    assert best_rates(deep[:1]) == {}, "of two rates one was tried: nothing is chosen yet"
    assert best_rates([*deep, run("ASURA", 8e-3, 3.0, times=1)]) == {("ASURA, depth 8", 1): pytest.approx(2e-3)}


def test_where_runs_are_validated_on_the_way_their_best_validation_chooses_the_rate() -> None:
    found = [run("ASURA", 1e-3, 9.0, times=16, stopped={"loss": {"valid": 5.0}})]
    found += [run("ASURA", 4e-3, 8.0, times=16, stopped={"loss": {"valid": 5.5}}), run("ASURA", 2e-3, 4.0, times=16)]
    assert best_rates(found) == {("ASURA", 16): pytest.approx(1e-3)}


def test_a_row_that_was_not_stopped_early_is_made_again_and_not_read(tmp_path: Path) -> None:
    planned = [Row("ASURA", STOPPED, 1e-3), Row("ASURA", STOPPED, 2e-3), Row("ASURA", 1, 4e-3)]
    end, early, once = ({"name": row.name, "times": row.times} for row in planned)
    early["stopped"] = {}
    out = tmp_path / "rows.jsonl"

    def write(*rows: dict[str, object]) -> None:
        out.write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(once, end, early)
    assert missing(planned, out, counts) == planned[:1] and results([str(out)], planned, counts) == [early, once]
    again = end | {"stopped": {}}
    write(once, end, early, again)
    assert missing(planned, out, counts) == [] and results([str(out)], planned, counts) == [again, early, once]
