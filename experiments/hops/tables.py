"""The study's table, from its results alone.

python -m experiments.hops.tables OUT.jsonl …
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Result = dict[str, Any]
SOLVED = 0.95


def read(paths: Iterable[str]) -> list[Result]:
    """Returns all results."""
    return [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]


def at_own_depth(result: Result) -> dict[int, float]:
    """Returns exact match by number of hops, at the depth that was trained."""
    steps = int(result["arm"].partition("⊗")[2] or 1)
    return {int(hops): found["exact"][found["depth"].index(steps)] for hops, found in sorted(result["tests"].items(), key=_hops)}


def solved_hops(result: Result) -> int:
    """Returns the largest number of hops up to which all are answered at the trained depth; 0 where one hop is not."""
    solved = 0
    for hops, exact in at_own_depth(result).items():
        if exact < SOLVED:
            break
        solved = hops
    return solved


def line(result: Result) -> str:
    """Returns one line of the table."""
    exact = at_own_depth(result)
    shown = " / ".join(f"{100 * value:.0f}" for value in exact.values())
    last = result["valid"][-1][1] if result["valid"] else float("nan")
    cells = [
        result["name"], f"{result['parameters'] / 1e6:.2f}", f"{result['flops'] / 1e6:.1f}", f"{last:.4f}",
        str(solved_hops(result)), shown, f"{result['train_seconds']:.0f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _hops(test: tuple[str, Any]) -> int:
    return int(test[0])


def main() -> None:
    """Prints the table."""
    results = read(sys.argv[1:])
    hops = " / ".join(map(str, at_own_depth(results[0]))) if results else ""
    print(f"| run | parameters (M) | FLOPs a token (M) | loss on valid | hops solved | exact (%) at {hops} hops | seconds |")
    print("|---|---|---|---|---|---|---|")
    for result in sorted(results, key=lambda result: result["valid"][-1][1] if result["valid"] else float("inf")):
        print(line(result))


if __name__ == "__main__":
    main()
