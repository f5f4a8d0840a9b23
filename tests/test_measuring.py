"""What is asked of an evaluation is checked before anything is opened, and what is told of it on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright import cli
from loopwright.checking.conformance import check
from loopwright.cli import results as module
from loopwright.evaluation import likelihood
from loopwright.evaluation.by_depth import SweepReport
from loopwright.measuring import APART, BELONGING, EvaluationOptions, Measuring, usual_depths
from loopwright.training.depth import Fixed
from tests.cases import noisy

GIVEN: dict[str, Any] = {  # a value of each option that it does not have where nobody gives it
    "data": torch.ones(2), "splits": "test", "decode": False, "text": "a.txt", "tokenizer": "x", "context": 512, "field": "text",
    "teacher_forced": True, "honest": 3, "exit": "all", "time": True, "state_seeds": 2, "tasks": "arc_easy", "task_data": "folder",
    "shots": 0, "asking": {"chat": True},
}  # fmt: skip


@pytest.mark.parametrize(("name", "other"), [(name, other) for name, others in APART.items() for other in others])
def test_options_of_one_form_do_not_go_with_another(name: str, other: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: given with .*{other}.*does not go with it|{other}: given with .*{name}"):
        EvaluationOptions(**{each: GIVEN[each] for each in (name, other)})


@pytest.mark.parametrize(("names", "other"), [(name, other) for name, others in BELONGING.items() for other in others])
def test_options_of_a_form_need_it(names: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match=f"{other}: belongs to {names}, which is not given"):
        EvaluationOptions(**{other: GIVEN[other]})
    owner = names.split(" or ")[-1]
    assert getattr(EvaluationOptions(**{owner: GIVEN[owner], other: GIVEN[other]}), other) == GIVEN[other]


def test_every_option_has_its_place() -> None:
    others = {other for each in (*APART.values(), *BELONGING.values()) for other in each} | {*APART}
    assert others == set(GIVEN) and set(EvaluationOptions.__dataclass_fields__) - others == {"depths", "rows", "batch"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 0}, r"rows must be a whole number >= 1 \(got 0\)"),
        ({"batch": -1}, r"batch must be a whole number >= 1 \(got -1\)"),
        ({"state_seeds": 0}, r"state_seeds must be a whole number >= 1 \(got 0\)"),
        ({"honest": -1, "text": "README.md"}, r"honest must be a whole number >= 0 \(got -1\)"),
        ({"shots": -1, "tasks": "a"}, r"shots must be a whole number >= 0 \(got -1\)"),
        ({"tasks": "a", "asking": {"chatt": True}}, "asking: unknown 'chatt'; did you mean 'chat'"),
        ({"depths": "1:4", "exit": "change"}, r"depths: \[1, 2, 3, 4\] with exit; give one depth"),
        ({"depths": "0"}, r"depths must be .* \(got '0'\)"),
        ({"text": "absent-*.txt"}, "no file matches"),
        ({"exit": "chnge"}, "did you mean 'change'"),
    ],
)
def test_mistakes_are_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        EvaluationOptions(**options)
    assert "\n" not in str(error.value)


def test_the_usual_depths_go_well_beyond_training() -> None:
    model = noisy("huginn-tiny")
    depths = usual_depths(Fixed(4), model)
    assert depths[:8] == [1, 2, 3, 4, 5, 6, 7, 8] and depths[-1] == 64
    asked = EvaluationOptions()
    assert asked.depths_of(model, Fixed(4)) == depths and asked.depths_of(model, None) == [model.config.depth]
    assert EvaluationOptions(depths=3).depths_of(model, Fixed(4)) == [3]
    assert EvaluationOptions(exit="all").depths_of(model, Fixed(4)) == [model.config.depth]
    dense = noisy("stars-addition-tiny", prelude_layers=1, core_layers=0, injection={"kind": "none"}, state={"kind": "input"})
    assert usual_depths(Fixed(4), dense) == [1]


def test_causality_is_asked_once_and_who_asks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[Any] = []
    monkeypatch.setattr(likelihood, "check", lambda *a, **k: checks.append(a) or check(*a, **k))
    rows = lw.TokenRows([[1, 2, 3, 4]] * 5)
    told: list[Any] = []
    data = lw.splits(rows, rows, tests={"a": rows, "b": rows})
    found = lw.evaluate(
        noisy("stars-addition-tiny", depth=2), data=data, depths=[1, 2], rows=4, batch=2,
        on_start=told.append, on_report=lambda *each: told.append(each), on_progress=lambda *each: told.append(each),
    )  # fmt: skip
    start, *rest = told
    assert len(checks) == 1 and isinstance(start, Measuring) and start.causality.passed and list(start.depths) == [1, 2]
    assert {name: (work.report, work.facts, work.few, work.shape) for name, work in start.works.items()} == {
        name: (SweepReport, {"rows": 4}, 4, (2, 4)) for name in "ab"
    }
    assert rest == [("a", 1, 2), ("a", 2, 2), ("a", found["a"]), ("b", 1, 2), ("b", 2, 2), ("b", found["b"])]


def test_the_command_hands_on_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(module, "evaluate", lambda source, **options: asked.update(options, source=source))
    monkeypatch.setattr(module, "as_data", lambda found: {})
    cli.evaluate("model", tasks="a,b", task_data="folder", shots=0, depths="1,2", rows=3, tokenizer="words")
    expected = {"tasks": "a,b", "task_data": "folder", "shots": 0, "depths": "1,2", "rows": 3, "tokenizer": "words"}
    assert expected.items() <= asked.items() and asked["source"] == "model"
