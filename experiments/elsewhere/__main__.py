"""Runs of the studies on another machine: with a GPU, without a network, with transfers and commands of limited size and time.

    python -m experiments.elsewhere list                       what is to be run, with the commands to type here and there
    python -m experiments.elsewhere pack FOLDER …              here: what items on text need, as parts FOLDER/0, FOLDER/1, …
    python -m experiments.elsewhere run ITEM OUT …             there: opens the parts, runs, leaves new rows in OUT

Here a checkout, CORPUS (train-*.jsonl.gz, valid, test and heldout_ood.jsonl.gz) and EVAL (gsm8k_test.jsonl.gz). There a checkout or
an export of it, torch, transformers and PyYAML. Rows so far are part of the checkout: what they hold is not run again. New rows are
put by every few seconds, so that a command that is stopped loses only what had not ended. The same command goes on with the same
PLACE and OUT, or once the rows have been added:

    python -m experiments.kept experiments/results/STUDY/runs.jsonl OUT/STUDY.jsonl
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.elsewhere.plan import ITEMS

MOST = 43_000_000


def main() -> None:
    """Lists, packs or runs."""
    began = time.time()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(dest="stage", required=True)
    stages.add_parser("list", help="what is to be run")
    packs = stages.add_parser("pack", help="packs what items on text need")
    packs.add_argument("folder", type=Path, help="made")
    packs.add_argument("--corpus", type=Path, required=True)
    packs.add_argument("--eval", type=Path, required=True, help="the folder of gsm8k_test.jsonl.gz")
    packs.add_argument("--bytes", type=int, default=MOST, help="of a part")
    runs = stages.add_parser("run", help="runs an item")
    runs.add_argument("item", choices=list(ITEMS))
    runs.add_argument("out", type=Path, help="made where it is not there; new rows")
    runs.add_argument("--parts", type=Path, nargs="*", default=[], help="those that were packed, in any order")
    runs.add_argument("--place", type=Path, default=Path("runs/elsewhere"), help="where they are opened, once for all items")
    runs.add_argument("--seconds", type=float, default=560, help="all ends by then")
    runs.add_argument("--change", action="append", default=[], help="a.b=c, laid over every recipe")
    asked = parser.parse_args()
    if asked.stage == "list":
        print(listed())
    elif asked.stage == "pack":
        from experiments.elsewhere.pack import Sources, pack

        sources = Sources(asked.corpus, asked.eval)
        with told_in_a_line():
            parts = pack(sources, asked.folder, asked.bytes)
        for part in parts:
            print(f"{part}: {sum(path.stat().st_size for path in part.iterdir()) / 1e6:.1f} MB")
    else:
        from experiments.elsewhere.run import prepare, run

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # else the programs that were begun would run on
        with told_in_a_line():
            prepare(ITEMS[asked.item].needs, asked.parts, asked.place)
        print(f"opened after {time.time() - began:.0f} s", flush=True)
        sys.exit(0 if run(ITEMS[asked.item], asked.place.absolute(), asked.out, began + asked.seconds, asked.change) else 1)


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """Ends the program with one line where what was given does not do."""
    try:
        yield
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def listed() -> str:
    """Returns all items in the order of what they are worth, with what to type."""
    lines = []
    for name, item in ITEMS.items():
        lines.append(f"{name}: {item.about}; about {item.seconds} s of one H200")
        if item.needs:
            lines.append(f"    here   python -m experiments.elsewhere pack {item.needs} --corpus CORPUS --eval EVAL")
        parts = f" --parts {item.needs}/* --place runs/{item.needs}" if item.needs else ""
        lines.append(f"    there  python -m experiments.elsewhere run {name} OUT{parts}")
        alike = [other for other, each in ITEMS.items() if item.needs and each.needs == item.needs and other != name]
        if alike:
            lines.append(f"    the same parts are those of {', '.join(alike)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
