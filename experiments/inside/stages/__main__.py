"""Stages of models on GSM8K and HellaSwag, beside a dense model.

    python -m experiments.inside.stages measure OUT MODEL … --data eval [--device cuda] [--examples 64]
    python -m experiments.inside.stages tables OUT

MODEL is a folder with its tokenizer, looped or dense; DATA holds gsm8k_test.jsonl[.gz] and hellaswag_val.jsonl[.gz]. `measure` adds
rows to OUT/stages.jsonl, but for those that it has, and writes OUT/figures/pairs-*.svg; `tables` writes OUT/stages.md and the other
figures from the rows alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROWS = "stages.jsonl"


def main() -> None:
    """Measures or writes tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("measure", "tables"))
    parser.add_argument("out", type=Path, help="a folder")
    parser.add_argument("model", nargs="*", help="folders")
    parser.add_argument("--data", help="the folder of the prompts")
    parser.add_argument("--looks", default="near,ablated,deep,pairs,bound", help="which; a dense model has the first two")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--examples", type=int, default=64, help="prompts of each set")
    parser.add_argument("--deep-examples", type=int, default=64, help="of those that run deep")
    parser.add_argument("--deep", type=int, default=128, help="steps of a deep pass")
    parser.add_argument("--pairs", type=int, default=32, help="steps whose pairs are compared")
    parser.add_argument("--batch", type=int, default=16)
    asked = parser.parse_args()
    measure(asked) if asked.stage == "measure" else tables(asked)


def measure(asked: argparse.Namespace) -> None:
    """Adds the rows of each model."""
    from experiments.inside.stages.measure import Sizes, measured
    from experiments.side_by_side import add_line, as_line, names_of

    path = asked.out / ROWS
    asked.out.mkdir(parents=True, exist_ok=True)
    sizes = Sizes(asked.examples, asked.deep_examples, asked.deep, asked.pairs, asked.batch)
    given = {"data": asked.data, "sizes": sizes, "device": asked.device, "figures": asked.out / "figures"}
    for source in asked.model:
        for row in measured(source, asked.looks.split(","), done=names_of(path), **given):
            add_line(path, as_line(row))
            print(f"{row['seconds']:6.1f} s  {row['name']}", file=sys.stderr, flush=True)


def tables(asked: argparse.Namespace) -> None:
    """Writes the page and the figures."""
    from experiments.inside.stages.tables import write

    write(asked.out, asked.out / ROWS)


if __name__ == "__main__":
    main()
