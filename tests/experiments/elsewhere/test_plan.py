"""What is to be run elsewhere: every command is one that its program takes, and asks for runs that their studies plan."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pytest

from experiments.elsewhere.__main__ import listed
from experiments.elsewhere.plan import AGAIN, ITEMS, OURO, RUN, Command
from experiments.figures import RESULTS
from experiments.inside.train_plan import likenesses
from experiments.inside.train_plan import rows as inside_rows
from experiments.inside.train_tables import read

STUDIES = [command for item in ITEMS.values() for step in item.steps for command in step if RUN in command.words]


class Asked(Exception):  # noqa: N818  (not a failure)
    """The runs that a program would make."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = [*names]


def asked(command: Command, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of the runs that a command asks for, none made yet."""
    given = {"place": "/nowhere", "rows": "/nowhere/rows.jsonl", "seconds": "60"}
    _, name, *words = shlex.split(command.words.format_map(given))
    module: ModuleType = importlib.import_module(name)
    monkeypatch.setattr(sys, "argv", [name, *words])

    def stop(runs: Iterable[Any], *_: object, **__: object) -> None:
        raise Asked(run.name for run in runs)

    for skipped in ("make_tokenizer", "prepare", "prepare_passages"):
        monkeypatch.setattr(module, skipped, lambda *_, **__: None, raising=False)
    monkeypatch.setattr(module, "run_all", stop, raising=False)
    with pytest.raises(Asked) as found:
        module.main()
    return found.value.names


@pytest.mark.parametrize("command", STUDIES, ids=lambda command: re.sub(r"\W+", "-", command.words)[15:90])
def test_a_command_is_one_that_its_study_takes(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    names = asked(command, monkeypatch)
    assert names
    assert not [name for name in names if "{" in name]


def names_of(item: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return [name for command in ITEMS[item].steps[0] if RUN in command.words for name in asked(command, monkeypatch)]


def test_words_name_the_runs_that_are_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = names_of("inside", monkeypatch)
    assert sorted(trained) == sorted(row.name for row in (OURO, *AGAIN))
    planned = {row.name: row.folder for row in (*inside_rows(), *likenesses())}
    assert [planned[row.name] for row in (OURO, *AGAIN)] == [row.folder for row in (OURO, *AGAIN)]
    there = {run["name"] for run in read([str(RESULTS / "inside/like.jsonl")])}
    assert len({*names_of("norms", monkeypatch)} - there) == 11


def test_the_list_has_every_item_and_what_to_type() -> None:
    told = listed()
    assert [line.split(":")[0] for line in told.splitlines() if not line.startswith(" ")] == [*ITEMS]
    assert told.count("elsewhere pack ") == len([item for item in ITEMS.values() if item.needs])
    assert told.count("elsewhere run ") == len(ITEMS)


@pytest.mark.parametrize("wrong", [" --worker-count 3", " --groups no"])
def test_a_command_that_a_study_does_not_take_is_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = ITEMS["hops"].steps[0]
    with pytest.raises(SystemExit):
        asked(Command(command.words + wrong, command.rows, command.start), monkeypatch)
