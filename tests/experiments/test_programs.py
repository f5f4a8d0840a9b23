"""The programs of the studies take the words of their pages, and ask for runs that their studies plan."""

from __future__ import annotations

import importlib
import inspect
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

CORPUS = "--corpus /nowhere/corpus --tokenizer /nowhere/bpe"
# program → how its page calls it, and a run that is asked for in this way
PROGRAMS = {
    "experiments.hops.run": ("--workers 6 --seconds 3600 --groups random,own,longer,chain", "random/1⊗8/depth 4 to 12/0"),
    "experiments.repeats.run": (f"{CORPUS} --workers 14 --unfinished /nowhere/unfinished", "ASURA/4 times/0.001/0"),
    "experiments.inside.train_run": (f"{CORPUS} --seeds 0,1,2 --keep runs/inside --change graph=true", "sandwich-4/2"),
}


class Asked(Exception):  # noqa: N818  (not a failure)
    """The runs that a program would make."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = [*names]


def asked(program: str, words: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of the runs that a program asks for, none made yet."""
    module: Any = importlib.import_module(program)
    monkeypatch.setattr(sys, "argv", [program, "/nowhere/rows.jsonl", *shlex.split(words)])

    def stop(runs: Iterable[Any], work: Callable[..., Any], *_: object, unfinished: Path | None = None, **__: object) -> None:
        assert (unfinished is not None) == ("--unfinished" in words)
        assert unfinished is None or "kept" in inspect.signature(work).parameters
        raise Asked(run.name for run in runs)

    for skipped in ("make_tokenizer", "prepare", "prepare_passages"):
        monkeypatch.setattr(module, skipped, lambda *_, **__: None, raising=False)
    monkeypatch.setattr(module, "run_all", stop)
    with pytest.raises(Asked) as found:
        module.main()
    return found.value.names


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_takes_the_words_of_its_page(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words, run = PROGRAMS[program]
    names = asked(program, words, monkeypatch)
    assert run in names and len(set(names)) == len(names)


@pytest.mark.parametrize("wrong", [" --worker-count 3", " --groups no"])
def test_words_that_a_program_does_not_take_are_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        asked("experiments.hops.run", "--workers 6" + wrong, monkeypatch)
