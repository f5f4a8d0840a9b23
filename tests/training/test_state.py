"""Records of a run."""

from pathlib import Path

from loopwright.training.loop import train
from loopwright.training.report import Progress
from tests.training.runs import small


def test_a_run_in_a_notebook_is_one_line_and_gives_its_log(tmp_path: Path) -> None:
    run = train(small({"updates": 2}), tmp_path / "run")
    assert repr(run) == f"Run(finished after 2 updates; {str(tmp_path / 'run')!r}; checkpoint '00000002')"
    assert [row["update"] for row in run.log() if "loss" in row] == [0, 1]


def test_skipped_updates_are_counted_until_one_is_not() -> None:
    progress = Progress()
    for finite in (True, False, False):
        progress.count(finite, rows=4, tokens=9, targets=5)
    assert (progress.update, progress.rows, progress.skipped, progress.skipped_in_a_row) == (3, 12, 2, 2)
    progress.count(True, rows=4, tokens=9, targets=5)
    assert progress.skipped_in_a_row == 0 and progress.tokens == 36
