"""The rate of an arm is that of the least loss on `valid`."""

from __future__ import annotations

import pytest

from experiments.repeats.run import best_rates


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
