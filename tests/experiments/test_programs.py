"""The programs of the studies take the words of their pages, and ask for the runs that their studies plan."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from experiments import study as studies
from experiments.study import Named, Rows, Study

CORPUS = "--corpus /nowhere/corpus --tokenizer /nowhere/bpe"
# program → how its page calls it, and a run that is asked for in this way
PROGRAMS = {
    "experiments.hops.run": ("--workers 6 --seconds 3600 --groups random,own,longer,chain", "random/1⊗8/depth 4 to 12/0"),
    "experiments.repeats.run": (f"{CORPUS} --workers 14 --unfinished /nowhere/unfinished", "ASURA/4 times/0.001/0"),
    "experiments.inside.train_run": (f"{CORPUS} --seeds 0,1,2 --keep runs/inside --change graph=true", "sandwich-4/2"),
    "experiments.asura.run": (f"{CORPUS} --change updates=600 --change compile=false", "middle/ASURA, twelve files/2"),
    "experiments.stars.run": ("--workers 4 --seconds 3600 --unfinished runs/stars", "main/random/2"),
    "experiments.halting.__main__": ("--groups text --data DATA", "text/ouro/1"),
    "experiments.ouroboros.run": ("--source smollm2 --corpus corpus --passages 256", "others/plain loop, its layer trained/0"),
    "experiments.ouroboros.rates": ("--source s --corpus c --change graph=true --seeds 1,0", "rates/gate only, rate 0.1/0"),
    "experiments.ouroboros.cores": ("--source s --corpus c --workers 7", "rates/not looped, rate 0.024/0"),
    "experiments.sft.wide": ("--packed PACKED --data DATA --workers 4", "rates/run once, equal FLOPs, rate 0.002/0"),
    "experiments.longer.run": ("--seeds 0,1,2 --change graph=true", "plain-2"),
    "experiments.rl.run": ("--seeds 0,1,2", "start-1"),
    "experiments.inside.random_init.run": ("", "torch/pre/injection/12/0"),
    "experiments.read_outs": ("--workers 12", "exit-gate/2"),
    "experiments.relaxed_all": ("--workers 6 --seconds 180", "parts/2"),
    "experiments.starts_before_after": ("--workers 16 --seconds 170", "universal/after/1"),
    "experiments.noise_start": ("--groups anew,frozen --workers 10", "frozen/300/(1, 2⊗4, 1)/0"),
}


class Asked(Exception):  # noqa: N818  (not a failure)
    """The runs that a program would make."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = [*names]


def asked(program: str, words: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of the runs that a program asks for first, none made yet."""
    study: Study = import_module(program).STUDY

    def stop(runs: Iterable[Any], work: Callable[..., Any], *_: object, unfinished: Path | None = None, **__: object) -> None:
        assert (unfinished is not None) == ("--unfinished" in words)
        assert unfinished is None or "kept" in inspect.signature(work).parameters
        inspect.signature(work).bind("a run")  # all that it needs besides is given
        raise Asked(run.name for run in runs)

    monkeypatch.setattr(studies, "run_all", stop)
    with pytest.raises(Asked) as found:
        replace(study, prepare=None, begin=None).main([str(out), *shlex.split(words)])
    return found.value.names


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_takes_the_words_of_its_page(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, run = PROGRAMS[program]
    names = asked(program, words, tmp_path / "rows.jsonl", monkeypatch)
    assert run in names and len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("program", "wrong"),
    [("hops.run", "--worker-count 3"), ("hops.run", "--groups no"), ("rl.run", "--groups grpo"), ("rl.run", "--unfinished f")],
)
def test_words_that_a_program_does_not_take_are_seen(
    program: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        asked(f"experiments.{program}", wrong, tmp_path / "rows.jsonl", monkeypatch)


@dataclass(frozen=True)
class Tried(Named):
    """A run of a study in miniature."""

    group: str
    label: str
    seed: int


def work(run: Tried, *, size: int, extra: tuple[str, ...]) -> dict[str, Any]:
    return {"name": run.name, "group": run.group, "loss": size + run.seed, "laid_over": list(extra)}


def stages(rows: Rows) -> Iterator[Iterable[Tried]]:
    yield [Tried("grid", "a", seed) for seed in (1, 0)]
    best = min(rows(), key=lambda row: row["loss"])["name"]
    yield [Tried("seeds", best, seed) for seed in range(3)]


STUDY = Study(
    "about", work, stages=stages, options={"--size": {"type": int, "default": 5}}, table=lambda rows: f"{len(rows)} rows"
)  # fmt: skip


def test_later_stages_hang_on_the_rows_of_earlier_ones_and_nothing_is_made_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, prepared = tmp_path / "new/rows.jsonl", list[list[str]]()
    study = replace(STUDY, prepare=lambda asked, left: prepared.append([run.name for run in left]))
    words = [str(out), "--workers", "1", "--seconds", "300", "--change", "a=b", "--size", "7"]
    study.main([*words, "--seeds", "0,1"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["name"] for row in rows] == ["grid/a/1", "grid/a/0", "seeds/grid/a/0/0", "seeds/grid/a/0/1"]
    assert rows[0] == {"name": "grid/a/1", "group": "grid", "loss": 8, "laid_over": ["a=b"]}
    study.main(words)
    assert prepared == [["grid/a/1", "grid/a/0"], ["seeds/grid/a/0/0", "seeds/grid/a/0/1"], ["seeds/grid/a/0/2"]]
    capsys.readouterr()
    study.main([str(out), "--table"])
    assert capsys.readouterr().out == "5 rows\n"
