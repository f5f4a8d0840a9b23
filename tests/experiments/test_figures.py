"""Figures of the studies by name."""

from __future__ import annotations

import pytest

from experiments.figures import RESULTS, study_figures


@pytest.mark.slow
def test_a_study_is_drawn_from_its_committed_rows() -> None:
    assert set(study_figures("exits")) == {path.stem for path in (RESULTS / "exits").glob("*.svg")}


def test_an_unknown_study_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"figures: study is 'hop'; .*hops"):
        study_figures("hop")
