"""The figures of inference hold every line, and are the same bytes each time."""

from __future__ import annotations

from loopwright.plot.drawing import Curve
from loopwright.plot.figures import TradeOff, exit_trade_off, throughput_by_batch

FIXED = Curve([1, 2, 3], [3.0, 2.0, 1.9])


def test_the_trade_off_names_its_lines() -> None:
    rules = {"change": Curve([1.2, 2.4], [2.5, 1.95]), "gate": Curve([1.5], [None])}
    steps = TradeOff(rules, FIXED, oracle=Curve([1.5], [1.5]), random=Curve([1.2], [2.8]))
    drawn = exit_trade_off([steps])
    assert all(f">{word}<" in drawn for word in ("change", "gate", "fixed depth", "oracle", "random depth", "mean steps a token"))
    assert drawn == exit_trade_off([steps])
    both = exit_trade_off([steps, TradeOff(rules, FIXED, cost="time / full depth, batch 1")])
    assert both.count(">time / full depth, batch 1<") == 1 == both.count(">mean steps a token<") == both.count(">change<")


def test_throughput_has_a_line_and_a_bound_per_depth() -> None:
    drawn = throughput_by_batch({"depth 1": Curve([1, 4], [10.0, 30.0])}, {"depth 1": Curve([1, 4], [100.0, 400.0])})
    assert all(word in drawn for word in (">depth 1<", "batch (rows)", "bandwidth bound"))
