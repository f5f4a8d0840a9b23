"""When an exit rule counts as working: it keeps the accuracy of full depth, leaves, and takes more steps for harder rows."""

from __future__ import annotations

import pytest

from experiments.templates import exits
from tests.experiments.hops.made import made

EXACT = dict.fromkeys(range(1, 17), 1.0) | {24: 0.2, 32: 0.1}
MODEL = exits.Shown("made", "random", "1⊗8, made", 8, 32)


@pytest.mark.parametrize(
    ("steps", "exact", "works"),
    [
        ((3.0, 6.0, 9.0), 1.0, True),
        ((3.0, 6.0, 9.0), 0.999, True),
        ((3.0, 6.0, 9.0), 0.99, False),  # a point is lost
        ((20.0, 25.0, 30.0), 1.0, False),  # hardly leaves
        ((6.0, 3.0, 9.0), 1.0, False),  # no more steps for harder rows
    ],
)
def test_a_rule_works_where_it_keeps_and_leaves(
    steps: tuple[float, ...], exact: float, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {hard: [count, exact] for hard, count in zip(exits.TRAINED, steps, strict=True)}
    run = made("1⊗8", exact=EXACT, group="random", label="made", exits={"32": {exits.RULE: left}})
    monkeypatch.setattr(exits, "found", lambda: [run])
    assert MODEL.works is works
