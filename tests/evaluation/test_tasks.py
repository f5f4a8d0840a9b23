"""Tasks with questions: their reports, their names, and questions from local files."""

from __future__ import annotations

import gzip
import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from loopwright.evaluation.harness import _manager
from loopwright.evaluation.tasks import OWN, TaskNames, TaskReport, find_files, local_config, read_names, task_report
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


ARC = {"task": "arc_easy", "training_split": "train", "validation_split": "validation", "test_split": "test", "dataset_path": "ai2"}
GSM = {"task": "gsm8k", "training_split": "train", "fewshot_split": "train", "test_split": "test", "num_fewshot": 5}
NAMES = ["arc_easy_val.jsonl.gz", "arc_challenge_validation.jsonl", "gsm8k_test.jsonl", "math500.jsonl", "asdiv.jsonl", "notes.txt"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        text = json.dumps({"question": "?"})
        (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return tmp_path


@pytest.mark.parametrize(
    ("task", "files"),
    [
        ("arc_easy", {"validation": "arc_easy_val.jsonl.gz"}),
        ("arc_challenge", {"validation": "arc_challenge_validation.jsonl"}),
        ("gsm8k_cot", {"test": "gsm8k_test.jsonl"}),
        ("hendrycks_math500", {"": "math500.jsonl"}),
        ("asdiv", {"": "asdiv.jsonl"}),
        ("mgsm8k", {}),
        ("arc", {}),
    ],
)
def test_files_are_found_by_the_name_of_the_task(folder: Path, task: str, files: dict[str, str]) -> None:
    assert {split: path.name for split, path in find_files(folder, task).items()} == files


def test_the_longest_name_wins(folder: Path) -> None:
    (folder / "gsm8k_cot_test.jsonl").write_text("{}")
    assert find_files(folder, "gsm8k_cot")["test"].name == "gsm8k_cot_test.jsonl"
    assert find_files(folder, "gsm8k")["test"].name == "gsm8k_test.jsonl"


def test_the_validation_split_stands_in_for_a_test_split_that_is_not_there(folder: Path) -> None:
    config, path = local_config(folder, ARC)
    assert (config["test_split"], config["validation_split"], config["training_split"]) == (None, "validation", None)
    assert path.name == "arc_easy_val.jsonl.gz" and config["dataset_kwargs"] == {"data_files": {"validation": str(path)}}
    (folder / "arc_easy_test.jsonl").write_text("{}")
    assert local_config(folder, ARC)[1].name == "arc_easy_test.jsonl"


def test_a_file_without_a_split_is_the_one_that_is_measured(folder: Path) -> None:
    config, path = local_config(folder, {"task": "asdiv", "validation_split": "validation"})
    assert config["validation_split"] == "validation" and path.name == "asdiv.jsonl" and config["dataset_path"] == "json"


def test_examples_come_from_their_own_split_or_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"gsm8k shows 5 examples of its train split, and .* has none; add gsm8k_train.jsonl, or"):
        local_config(folder, GSM)
    assert local_config(folder, GSM, shots=0)[0]["fewshot_split"] is None
    with pytest.raises(ValueError, match="arc_easy shows 2 examples of its train split"):
        local_config(folder, ARC, shots=2)
    own = {"task": "asdiv", "test_split": "test", "num_fewshot": 8, "fewshot_config": {"samples": [{}]}}
    assert local_config(folder, own)[0]["num_fewshot"] == 8
    (folder / "gsm8k_train.jsonl").write_text("{}")
    assert set(local_config(folder, GSM)[0]["dataset_kwargs"]["data_files"]) == {"train", "test"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"task": "boolq", "validation_split": "validation"}, "has no questions of boolq; add boolq_validation.jsonl, or with .gz"),
        ({"task": "asdiv"}, "asdiv has neither a test nor a validation split"),
        ({"task": "empty", "test_split": "test"}, r"empty.jsonl: has no questions"),
        ({"task": "broken", "test_split": "test"}, r"broken.jsonl:1: not valid JSON"),
    ],
)
def test_what_is_missing_is_told_in_one_line(folder: Path, config: dict[str, Any], said: str) -> None:
    (folder / "empty.jsonl").write_text("")
    (folder / "broken.jsonl").write_text("{")
    with pytest.raises(ValueError, match=said) as told:
        local_config(folder, config)
    assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match="is not a folder"):
        local_config(folder / "nowhere", config)


def test_tasks_of_our_own_render() -> None:
    from jinja2 import Environment

    def said(task: str, field: str, **doc: Any) -> str:
        return Environment().from_string(OWN[task][field]).render(**doc)

    assert said("svamp", "doc_to_target", Answer=51.0) == "51" and said("svamp", "doc_to_target", Answer=0.5) == "0.5"
    assert said("svamp", "doc_to_text", Body="Two cats.", Question="How many?") == "Two cats.\nQuestion:How many?\nAnswer:"
    assert said("boolq", "doc_to_target", answer=True) == "1" and said("boolq", "doc_to_target", label=0) == "0"


FILES = {
    "a/arc_easy.yaml": "tag:\n  - ai2_arc\n  - \"quoted\"\ntask: arc_easy\ndoc_to_text: 'task: no'\n",
    "b/arc_challenge.yml.yaml": "include: arc_easy.yaml\ntask: 'arc_challenge'\n",
    "c/_arc.yaml": "group: arc\ntask:\n  - arc_easy\n  - task: inline_task\n    num_fewshot: 2\n  - group: inner\n",
    "d/one_tag.yaml": "tag: alone\ntask: tagged\n",
}


@pytest.fixture
def catalogue(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_tasks_have_their_folders_and_groups_and_tags_are_names_too(catalogue: Path) -> None:
    names = read_names(catalogue)
    assert {name: [path.name for path in paths] for name, paths in names.tasks.items()} == {
        "arc_easy": ["a"], "arc_challenge": ["b"], "tagged": ["d"],
    }  # fmt: skip
    assert {"ai2_arc", "quoted", "arc", "inline_task", "inner", "alone"} <= names.others
    names.check(["arc_easy", "arc", "ai2_arc", "inline_task", "svamp"], ["svamp"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("arc_eazy", r"^tasks: unknown 'arc_eazy'; did you mean 'arc_easy'"),
        ("zzzz", "^tasks: unknown 'zzzz'; `lm-eval ls tasks` lists them$"),
        ("svanp", "did you mean 'svamp'"),
    ],
)
def test_an_unknown_name_is_told_with_near_ones(catalogue: Path, name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as told:
        read_names(catalogue).check([name], ["svamp"])
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("own", "looked_through"),
    [(None, ["lib/a", "lib/b"]), ("mine", ["lib/a", "lib/b", "mine"]), ("lib", ["lib"]), ("lib/a/deep", ["lib/a", "lib/b"])],
    ids=["none", "beside", "around", "inside"],
)
def test_no_folder_is_looked_through_twice_and_ones_own_comes_last(
    own: str | None, looked_through: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval looks below each folder, and warns of every task that it finds a second time."""
    given: list[list[str]] = []

    def manager(include_path: list[str], include_defaults: bool = True) -> SimpleNamespace:
        given.append(include_path)
        return SimpleNamespace(task_index={name: SimpleNamespace(kind=SimpleNamespace(name="TASK")) for name in "xy"})

    package = ModuleType("lm_eval")
    package.tasks = SimpleNamespace(TaskManager=manager)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lm_eval", package)
    known = TaskNames({"x": frozenset({Path("lib/a")}), "y": frozenset({Path("lib/b"), Path("lib/a")})}, frozenset())
    _manager(["x", "y"], known, own)
    assert given == [looked_through]
