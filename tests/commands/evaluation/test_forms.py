"""Options of one form of `evaluate` do not go with another, and each form gets its own."""

from __future__ import annotations

from typing import Any

import pytest

from loopwright import cli
from loopwright.commands.evaluation import tasks as module

OTHERS: list[dict[str, Any]] = [
    {"text": ["a.txt"]}, {"split": ["test"]}, {"data": "demo-stable"}, {"decode": False}, {"exit": ["all"]}, {"honest": 3},
    {"teacher_forced": True}, {"context": 8}, {"field": "text"},
]  # fmt: skip


@pytest.mark.parametrize("options", OTHERS, ids=lambda options: next(iter(options)))
def test_tasks_go_with_nothing_of_another_form(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--tasks with options of texts, splits, starts or exits"):
        cli.evaluate("model", tasks="arc_easy", **options)


@pytest.mark.parametrize("options", [{"task_data": "folder"}, {"shots": 0}], ids=["task_data", "shots"])
def test_options_of_tasks_need_tasks(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--system and --max-new-tokens belong to --tasks, which is not given"):
        cli.evaluate("model", **options)


def test_tasks_get_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(module, "evaluate_tasks", lambda source, **options: asked.update(options, source=source) or {})
    cli.evaluate("model", tasks="a,b", task_data="folder", shots=0, depths="1,2", rows=3, tokenizer="words")
    expected = {"tasks": "a,b", "task_data": "folder", "shots": 0, "depths": "1,2", "rows": 3, "tokenizer": "words"}
    assert expected.items() <= asked.items() and asked["source"] == "model"
