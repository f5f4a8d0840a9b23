"""The figures of the multi-hop study hold every arm and every seed."""

from __future__ import annotations

from experiments.hops.figures import RULE, SHOWN_HOPS, by_depth, draw_all
from experiments.hops.plan import HARDNESS
from tests.experiments.hops.made import made

EXACT = dict.fromkeys(range(1, 17), 1.0) | {24: 0.2, 32: 0.1}


def test_figures_are_drawn_for_the_arms_that_are_there() -> None:
    drawings = draw_all([made(arm, seed, exact=EXACT) for arm in ("1⊗8", "plain 1") for seed in (0, 1)])
    assert list(drawings) == ["hops", "learning", "depth-1x8", "test-time"]
    hops, learning, depth, steps = drawings.values()
    assert "exits not" in steps and "easy: leaves" not in steps
    assert all(text in hops for text in ("1⊗8: 0.00 M", "plain 1: 0.00 M", "seed 0", "seed 1"))
    assert "1⊗8" in learning and "plain 1" in learning
    assert all(f">{count} hop" in depth for count in SHOWN_HOPS)
    assert draw_all([]) == {}


def test_where_a_rule_leaves_is_marked_and_named() -> None:
    left = {group: [3.0, 1.0] for group in HARDNESS}
    run = made("1⊗8", exact=EXACT, group="random", label="depth 4 to 12", exits={"12": {RULE: left}})
    drawn = draw_all([run])["test-time"]
    assert "exits not" not in drawn and all(f"{group}: leaves" in drawn for group in HARDNESS)


def test_grids_by_depth_are_at_each_arms_own_rate() -> None:
    common = made("2⊗4", exact=EXACT)
    own = made("2⊗4", exact=dict.fromkeys(EXACT, 0.5), group="own", changes=["optim.lr=0.002"])
    assert draw_all([common, own])["depth-2x4"] == by_depth([own]) != by_depth([common])
