"""Reports of tasks: intervals, which metric judges an answer, rates over depth, and their file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from loopwright.evaluation.tasks import TaskReport, task_report
from loopwright.metrics.intervals import wilson_interval


@pytest.fixture
def report() -> TaskReport:
    """Four questions at two depths: one answer is lost, two are found."""
    right = [[1.0, 0, 0, 0], [0, 1.0, 1.0, 0]]
    weighted = [[(-2.0, 1), (-4.0, 2), (-1.0, 3), (-3.0, 2)], [(-1.0, 1), (-2.0, 2), (-1.0, 3), (-2.0, 2)]]
    sums = [sum(x for x, _ in row) / sum(n for _, n in row) for row in weighted]
    values = {"f1": [0.3, 0.4], "acc": [0.25, 0.5], "ppl": [math.exp(-m) for m in sums], "bits": [-m / math.log(2) for m in sums]}
    return task_report(
        "quiz", [1, 4], values, {"f1": right, "acc": right, "ppl": weighted, "bits": weighted}, shots=2, data="a.jsonl"
    )


def test_shares_have_wilsons_interval_and_judge_answers(report: TaskReport) -> None:
    acc = report.metrics["acc"]
    assert (acc.low[1], acc.high[1]) == pytest.approx(wilson_interval(2, 4)) and report.judged_by == report.drawn == "acc"
    assert report.questions == 4 and report.right == ((True, False, False, False), (False, True, True, False))
    assert (report.rates[0].overthinking_at_end, report.rates[0].self_correction_at_end) == (0.25, 0.5)


def test_means_of_log_likelihoods_have_an_interval_and_other_metrics_none(report: TaskReport) -> None:
    for name in ("ppl", "bits"):
        metric = report.metrics[name]
        assert all(low < value < high for low, value, high in zip(metric.low, metric.value, metric.high, strict=True))
    low, high = (math.log2(end) for end in (report.metrics["ppl"].low[0], report.metrics["ppl"].high[0]))
    assert (low, high) == pytest.approx((report.metrics["bits"].low[0], report.metrics["bits"].high[0]))
    assert report.metrics["f1"].low == (None, None)  # 0.3 is not the mean of its questions


def test_a_task_without_right_answers_is_drawn_by_a_metric_with_an_interval() -> None:
    report = task_report("text", [1], {"ppl": [math.exp(2)]}, {"ppl": [[(-2.0, 1), (-2.0, 1)]]})
    assert report.judged_by == "" and report.rates == () and report.drawn == "ppl"


def test_the_table_and_the_file_say_the_same(report: TaskReport, tmp_path: Path) -> None:
    table = report.table()
    assert table.title == "quiz: 4 questions, 2 examples before each (a.jsonl)"
    assert "right, then wrong 25 % (at the end 25 %); wrong, then right 50 % (at the end 50 %)" in str(table.caption)
    assert [str(cell) for cell in table.columns[2].cells][1].startswith("50.00 % (15.00–")
    assert TaskReport.load(report.save(tmp_path / "quiz.json")) == report
    assert report.to_dict()[1]["acc"] == 0.5 and report.to_dict()[1]["f1_low"] is None
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="not a report of a task"):
        TaskReport.load(tmp_path / "other.json")
