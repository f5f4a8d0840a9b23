"""The figures of the multi-hop study hold every arm and every seed."""

from __future__ import annotations

from experiments.hops.figures import SHOWN_HOPS, draw_all
from tests.experiments.hops.made import made

EXACT = dict.fromkeys(range(1, 17), 1.0) | {24: 0.2, 32: 0.1}


def test_figures_are_drawn_for_the_arms_that_are_there() -> None:
    drawings = draw_all([made(arm, seed, exact=EXACT) for arm in ("1⊗8", "plain 1") for seed in (0, 1)])
    assert list(drawings) == ["hops", "learning", "depth-1x8", "test-time"]
    hops, learning, depth, _ = drawings.values()
    assert all(text in hops for text in ("1⊗8: 0.00 M", "plain 1: 0.00 M", "seed 0", "seed 1"))
    assert "1⊗8" in learning and "plain 1" in learning
    assert all(f">{count} hop" in depth for count in SHOWN_HOPS)
    assert draw_all([]) == {}
