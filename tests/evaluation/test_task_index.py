"""Names in task files, read without lm-eval."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from loopwright.evaluation.harness import _manager
from loopwright.evaluation.tasks import TaskNames, read_names

FILES = {
    "a/arc_easy.yaml": "tag:\n  - ai2_arc\n  - \"quoted\"\ntask: arc_easy\ndoc_to_text: 'task: no'\n",
    "b/arc_challenge.yml.yaml": "include: arc_easy.yaml\ntask: 'arc_challenge'\n",
    "c/_arc.yaml": "group: arc\ntask:\n  - arc_easy\n  - task: inline_task\n    num_fewshot: 2\n  - group: inner\n",
    "d/one_tag.yaml": "tag: alone\ntask: tagged\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_tasks_have_their_folders_and_groups_and_tags_are_names_too(folder: Path) -> None:
    names = read_names(folder)
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
def test_an_unknown_name_is_told_with_near_ones(folder: Path, name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as told:
        read_names(folder).check([name], ["svamp"])
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
