"""The page of the arms at their own rates, from rows whose answer is known."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments.ouroboros import rate_tables
from experiments.ouroboros.plan import BLIND, CONTROLLER, DIAGONAL, FULL, TRUNCATED
from experiments.ouroboros.rates import ARMS, MORE
from tests.experiments.ouroboros.test_rates import tried
from tests.experiments.results import result

pytestmark = pytest.mark.usefixtures("unlaid")
DEPTHS = (1, 2, 4, 8, 16)


def rows() -> list[dict]:
    """The controller is 0.02 above the blind one at every depth; its rate is the largest that was tried."""
    found = tried(CONTROLLER, {1e-3: 5.0, 4e-3: 4.0, 1.6e-2: 3.0, 4e-2: 2.0})
    found += tried(BLIND, {1e-3: 5.0, 4e-3: 4.0, 1.6e-2: 6.0, 4e-2: None}) + tried(DIAGONAL, {1e-3: 5.0})
    found += [result(FULL, {1: 0.0}, group="references"), result(TRUNCATED, {1: 1.0}, group="references")]
    for label, above, rate in ((CONTROLLER, 0.42, 0.04), (BLIND, 0.4, 0.004)):
        for seed in (1, 2, 3):
            name = {"name": f"tuned/{label}, rate {rate:g}/{seed}", "group": "tuned", "rate": rate}
            found.append(result(f"{label}, rate {rate:g}", dict.fromkeys(DEPTHS, above + 0.001 * seed), seed, **name))
    return found


def test_the_page_says_what_was_chosen_and_what_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "rates.jsonl"
    source.write_text("".join(json.dumps(run) + "\n" for run in rows()))
    monkeypatch.setattr(sys, "argv", ["rate_tables", str(source), str(tmp_path)])
    rate_tables.PAGE.main("about", "experiments.ouroboros.rate_tables")
    text = (tmp_path / "rates.md").read_text()
    assert f"| {BLIND}, rate 0.004 | 0, 1, 2, 3 | 4.000 / – / – / – |" in text and f"| {BLIND}, rate 0.04 | 0 | diverged |" in text
    assert f"| {CONTROLLER} | {BLIND} | test | 4 | +0.0200 (+0.0200 to +0.0200) | +0.0200 to +0.0200 |" in text
    assert "| 57.9 % / 57.8 % / 57.7 % |" in text, "of the gap of 1 nat"
    assert f"- rates/{DIAGONAL}, rate 0.1: seed 0" in text and f"- tuned/{BLIND}, rate 0.004: seeds 4, 5, 6" in text
    assert {path.name for path in tmp_path.glob("*.svg")} == {"rates.svg", "own-rates.svg"}


def test_rows_at_a_rate_that_was_not_chosen_are_left_out() -> None:
    found = rows() + tried(BLIND, {1e-1: 1.0})
    assert set(rate_tables.at_own_rates(found)) == {CONTROLLER}


def test_pairs_are_of_arms_that_are_planned() -> None:
    assert {label for pair in rate_tables.PAIRS for label in pair} <= {*ARMS, *MORE}
