"""A study as one program: what it plans, how a run becomes a row, and the command line that makes the rows that are missing."""

from __future__ import annotations

import argparse
import json
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from experiments.side_by_side import missing, run_all

if TYPE_CHECKING:
    from loopwright.plot.drawing import Drawing

Row = dict[str, Any]
Rows = Callable[[], list[Row]]
Plan = Callable[[], Iterable[Any]]


class Named:
    """What the runs of a plan share: a name, and a kind, which those that take about as long have in common, both of fields."""

    named_by: ClassVar[tuple[str, ...]] = ("group", "label", "seed")
    alike_by: ClassVar[tuple[str, ...]] = ("group",)
    joined_by: ClassVar[str] = "/"

    @property
    def name(self) -> str:
        """The run's own name."""
        return self.joined_by.join(str(getattr(self, each)) for each in self.named_by)

    @property
    def kind(self) -> str:
        """What decides how long it takes."""
        return " ".join(str(getattr(self, each)) for each in self.alike_by)


@dataclass(frozen=True)
class Study:
    """A study: its plan, and how one run is carried out.

    `work` takes a run, those of the study's own `options` that it names, and as `extra` what is laid over every recipe; where a
    study `goes_on`, also the folder `kept` that a training stays in. `stages` stands in the place of `groups` where later runs
    hang on the rows of earlier ones: it yields runs, stage by stage, and is given what reads the rows that there are.
    """

    about: str | None
    work: Callable[..., Row]
    groups: Mapping[str, Plan] = field(default_factory=dict)
    stages: Callable[[Rows], Iterator[Iterable[Any]]] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by flag, as argparse takes them
    usual: Mapping[str, Any] = field(default_factory=dict)  # of the options that all studies share
    prepare: Callable[[Namespace, list[Any]], None] | None = None  # what runs share, before they begin
    begin: Callable[[], Callable[[], None]] | None = None  # made once, called in each process
    counts: Callable[[Row], bool] = bool  # whether a row is a result of this plan
    goes_on: bool = False
    file: str = ""  # then OUT is a folder, and this is the file of rows in it
    home: Path | None = None  # where OUT is if the command line names none
    table: Callable[[list[Row]], str] | None = None  # what --table prints of the rows
    draw: Callable[[list[Row]], Mapping[str, Drawing]] | None = None  # what --draw makes of the rows of these groups
    end: Callable[[Path], int | None] | None = None  # what is made of OUT once nothing runs any more

    def main(self, words: Iterable[str] | None = None) -> int | None:
        """Reads the command line, makes the rows that are missing, and returns the exit code where there is one."""
        ends = time.time()
        asked = self.parser().parse_args(None if words is None else [*words])
        ends += asked.seconds  # what is prepared counts
        out = Path(asked.out, self.file) if self.file else Path(asked.out)
        out.parent.mkdir(parents=True, exist_ok=True)

        def rows() -> list[Row]:
            return [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []

        if self.table and asked.table:
            print(self.table(rows()))
            return None
        if self.draw and asked.draw:
            from experiments.pages import save_all

            names = tuple(asked.groups.split(",")) if asked.groups else ("",)
            print(*save_all(self.draw([row for row in rows() if row["name"].startswith(names)]), asked.draw), sep="\n")
            return None
        taken = signature(self.work).parameters
        own = {name: value for name, value in vars(asked).items() if name in taken}
        work = partial(self.work, **own, extra=tuple(asked.change))
        for planned in self.stages(rows) if self.stages else [grouped(asked.groups, self.groups)] if asked.workers else []:
            runs = asked_for(asked, planned)
            if self.prepare and (left := missing(runs, out, self.counts)):
                self.prepare(asked, left)
            run_all(
                runs, work, str(out), workers=asked.workers, seconds=ends - time.time(), begin=self.begin and self.begin(),
                counts=self.counts, unfinished=asked.unfinished if self.goes_on else None,
            )  # fmt: skip
        return self.end(Path(asked.out)) if self.end else None

    def parser(self) -> argparse.ArgumentParser:
        """Returns the parser of what every study asks for, and of the study's own options."""
        parser = argparse.ArgumentParser(description=self.about, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("out", nargs="?" if self.home else None, default=self.home, help="JSON lines; results are added")
        if self.groups:
            allowed = f"which, parted by commas; left out: all ({', '.join(self.groups)})"
            parser.add_argument("--groups", "--arms", dest="groups", help=allowed)
        parser.add_argument("--only", default="", help="words, parted by |: a run's name must hold one of them")
        parser.add_argument("--seeds", default="0,1,2")
        parser.add_argument("--workers", type=int, default=4, help="runs at a time, each in a process of its own (default: 4)")
        parser.add_argument("--seconds", type=float, default=540, help="of the whole call; what runs then is ended (default: 540)")
        parser.add_argument("--change", action="append", default=[], help="a.b=c, laid over every recipe")
        if self.goes_on:
            parser.add_argument("--unfinished", type=Path, help="a folder for trainings that the time ends; the next call goes on")
        if self.table:
            parser.add_argument("--table", action="store_true", help="print the rows that are there; nothing is trained")
        if self.draw:
            parser.add_argument("--draw", type=Path, help="a folder for the figures of the rows that are there; nothing is trained")
        for flag, given in self.options.items():
            parser.add_argument(flag, **given)
        parser.set_defaults(**self.usual)
        return parser


def asked_for(asked: Namespace, runs: Iterable[Any]) -> list[Any]:
    """Returns the runs whose seed and name the command line asks for."""
    words, seeds = asked.only.split("|"), asked.seeds.split(",")
    return [run for run in runs if str(run.seed) in seeds and any(word in run.name for word in words)]


def grouped(names: str | None, groups: Mapping[str, Plan]) -> Iterator[Any]:
    """Yields the runs of the groups that are named, of all where none is."""
    wanted = names.split(",") if names else list(groups)
    unknown = [name for name in wanted if name not in groups]
    if unknown:
        sys.exit(f"groups: unknown {unknown[0]!r}; allowed: {', '.join(groups)}")
    for name in wanted:
        yield from groups[name]()
