"""Every seed is a mark, and what was not run is not drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.figures import RESULTS, study_figures
from experiments.repeats.figures import draw_all, of_rate, of_text
from experiments.repeats.plan import DEPTH_RATES, STOPPED


def run(seed: int, test: float, label: str = "ASURA", **more: object) -> dict[str, object]:
    return {"label": label, "times": 1, "rate": DEPTH_RATES[0], "seed": seed, "loss": {"test": test}, **more}


def test_a_panel_has_a_mark_for_each_seed_and_a_line_at_their_mean() -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    of_text({("plain, equal FLOPs", 1): [run(0, 4.0), run(1, 4.4)], ("ASURA", 4): [run(0, 9.0)]}, 1)(axes)
    (marks,), (mean,) = axes.lines, axes.collections
    assert list(marks.get_ydata()) == [4.0, 4.4] and marks.get_label() == "plain, equal FLOPs"
    assert mean.get_segments()[0][:, 1] == pytest.approx([4.2, 4.2])


def test_runs_that_were_stopped_stand_at_their_best_and_one_depth_alone_is_not_drawn() -> None:
    early = run(0, 9.125) | {"stopped": {"loss": {"test": 5.5}}}
    kept = {("ASURA", STOPPED): [early], ("ASURA", 1): [run(0, 4.5)]}
    assert list(draw_all([], kept)) == ["by-times"]
    deep = [run(0, test, label) for label, test in (("ASURA", 4.5), ("ASURA, depth 8", 4.4))]
    small = run(0, 4.6, "ASURA, depth 8", rate=min(DEPTH_RATES))
    drawn = {
        more: draw_all([*deep, *rows], kept | {("ASURA, depth 8", 1): deep[1:]})["by-depth"]
        for more, rows in ((0, []), (1, [small]))
    }
    assert "rate 0.004" in drawn[0] and "rate 0.002" not in drawn[0] and "rate 0.002" in drawn[1]


def test_both_rates_have_one_scale_and_a_line_for_each_seed() -> None:
    from matplotlib.figure import Figure

    sides = {1: [run(0, 4.5), run(2, 4.7)], 8: [run(0, 4.4), run(2, 4.3)]}
    axes = Figure().subplots()
    of_rate(sides, [4.7, 4.8], (4.0, 5.0))(axes)
    assert [line.get_label() for line in axes.lines] == ["seed 0", "seed 2", "four plain layers"]
    assert list(axes.lines[1].get_ydata()) == [4.7, 4.3] and axes.get_ylim() == pytest.approx((3.95, 5.05))


@pytest.mark.slow
def test_the_committed_figures_are_those_of_the_committed_rows() -> None:
    assert set(study_figures("repeats")) == {path.stem for path in Path(RESULTS / "repeats").glob("*.svg")}
