"""What the studies of GSM8K questions share: the questions in a model's own tokens, and a command that adds rows to a file and
prints the tables of all that the file holds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from experiments.pages import Result, last_of_each
from experiments.side_by_side import add_line, as_line, made_by, names_of


def read_questions(tokenizer: Any, data: str, examples: int) -> list[list[int]]:
    """Returns questions as tokens, short ones first: neighbours need little padding, and no number depends on the order."""
    from loopwright.analysis.study import read_prompts

    questions = tokenizer.encode([str(prompt) for prompt in read_prompts("gsm8k", data=data, examples=examples)])
    return sorted(questions, key=len)


def arguments(about: str, examples: int) -> argparse.ArgumentParser:
    """Returns a parser with what both studies ask for."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", help="folders; none: only the tables of what OUT holds")
    parser.add_argument("--data", help="the folder of gsm8k_test.jsonl or .jsonl.gz")
    parser.add_argument("--out", required=True, help="JSON lines; results are added, those that it has are left out")
    parser.add_argument("--examples", type=int, default=examples)
    parser.add_argument("--depth", type=int, help="left out: 128, or as many steps as the model has")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    return parser


def carry_out(
    options: argparse.Namespace, measured: Callable[..., Iterable[Result]], tables: Callable[[list[Result]], str]
) -> None:
    """Measures each model with what else was asked for, adds its rows, with where they were made, and prints the tables. `measured`
    leaves out rows whose names are among `done`, those that the file has."""
    given, path = dict(vars(options)), Path(options.out)
    del given["model"], given["out"]
    origin = made_by()
    for source in options.model:
        for row in measured(source, done=names_of(path), **given):
            path.parent.mkdir(parents=True, exist_ok=True)
            add_line(path, as_line({**row, "origin": origin}))
            took = f"{row['seconds']:6.1f} s  " if "seconds" in row else ""
            print(f"{took}{row['name']}", file=sys.stderr, flush=True)
    if path.is_file():
        print(tables(list(last_of_each(path).values())))
