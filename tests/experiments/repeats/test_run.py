"""What a row keeps: reports folded to documents say what they said, and the rate is that of the least loss on `valid`."""

from __future__ import annotations

import pytest

from experiments.repeats.run import best_rates
from experiments.side_by_side import folded
from loopwright.evaluate.heldout import HeldOut
from loopwright.metrics.score import by_unit


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


def run(label: str, rate: float, valid: float | None, times: int = 4, seed: int = 0, **more: object) -> dict[str, object]:
    return {"label": label, "rate": rate, "times": times, "seed": seed, "loss": {"valid": valid}, **more}


def test_the_rate_is_chosen_on_valid_by_the_first_seed() -> None:
    found = [run("ASURA", 1e-3, 4.5), run("ASURA", 2e-3, 4.4), run("ASURA", 5e-4, 4.0, times=16), run("ASURA", 5e-4, 3.0, seed=1)]
    found += [run("Huginn-like", 1e-3, None), run("plain, equal parameters, three times the updates", 1e-3, 4.0)]
    assert best_rates(found) == {("ASURA", 4): pytest.approx(2e-3)}
    deep = [run("ASURA, depth 8", rate, valid, times=1) for rate, valid in ((4e-3, 4.6), (2e-3, 4.5))]
    assert best_rates([*deep, run("ASURA", 8e-3, 3.0, times=1)]) == {("ASURA, depth 8", 1): pytest.approx(2e-3)}


def test_where_runs_are_validated_on_the_way_their_best_validation_chooses_the_rate() -> None:
    found = [run("ASURA", 1e-3, 9.0, times=16, stopped={"loss": {"valid": 5.0}})]
    found += [run("ASURA", 4e-3, 8.0, times=16, stopped={"loss": {"valid": 5.5}}), run("ASURA", 2e-3, 4.0, times=16)]
    assert best_rates(found) == {("ASURA", 16): pytest.approx(1e-3)}
