"""Comparisons on text in two figures: what a line shows is what the rows say."""

from __future__ import annotations

import pytest

from experiments import overview
from experiments.figures import RESULTS
from experiments.overview import Line
from experiments.seeds import Pooled

pytestmark = pytest.mark.studies


def difference(of_seeds: tuple[float, ...], low: float, high: float) -> Pooled:
    mean = sum(of_seeds) / len(of_seeds)
    return Pooled(tuple(range(len(of_seeds))), (1, 1), mean, low, high, of_seeds, (0.5,) * len(of_seeds), True)


def test_a_line_has_the_interval_over_seeds_and_one_seed_that_over_documents() -> None:
    line = Line.of("a", difference((-0.30, -0.31, -0.29), -0.32, -0.28))
    assert line.look[0] == "loop ahead, decided" and line.low == pytest.approx(-0.30 - 4.3026527 * 0.01 / 3**0.5)
    assert Line.of("b", difference((0.30, 0.31, 0.29), 0.28, 0.32)).look[0] == "loop behind, decided"
    assert Line.of("c", difference((0.30, 0.31, 0.29), -0.01, 0.32)).look[0] == "undecided"
    alone = Line.of("d", difference((0.30,), 0.28, 0.32))
    assert alone.look[0] == "one seed" and (alone.low, alone.high) == (0.28, 0.32)
    with pytest.raises(AssertionError, match="e"):
        Line.of("e", None)


def test_every_line_is_one_that_the_page_has_and_is_drawn() -> None:
    lines = {name: make() for name, make in overview.FIGURES.items()}
    assert set(lines) == {path.stem for path in (RESULTS / "overview").glob("*.svg")}
    for found in lines.values():
        assert len({line.name for line in found}) == len(found)
        assert all(line.low <= line.difference <= line.high for line in found)
    flops, parameters = ({line.name: line for line in found} for found in lines.values())
    small = "ASURA, small size, one rate for all"
    assert (flops[small].verdict, parameters[small].verdict) == ("higher", "lower")
    assert [line.name for line in lines["equal-flops"] if line.alone] == ["ASURA, middle size, all of the text"]
    assert (flops[overview.WIDE].verdict, parameters[overview.WIDE].verdict) == ("higher", "lower")
    for found in lines.values():  # no row of text that is read again is left out, whoever is ahead there
        assert len([line for line in found if line.name.startswith("Huginn-like")]) == (8 if found is lines["equal-flops"] else 4)
    page = overview.draw(lines["equal-flops"])
    assert all(name in page for name in flops) and "loop behind, decided" in page
