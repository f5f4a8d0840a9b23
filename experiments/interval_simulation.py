"""How often the intervals of `loopwright.metrics.intervals` miss, by simulation, for 6 to 200 rows or documents.

    python -m experiments.interval_simulation experiments/results/intervals/rows.jsonl
    python -m experiments.interval_simulation experiments/results/intervals/rows.jsonl --table

The first draws the samples and writes a row per case and number of rows (a minute of one core), the second prints the table of
docs/evaluation.md from these rows. Beside the interval stands the percentile bootstrap of the same samples.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator

from loopwright.metrics.intervals import mean_interval, paired_interval

ROWS = (6, 8, 10, 15, 30, 60, 200)
SAMPLES = 4000
WINDOW = 64  # tokens of a window of a long document
Drawn = tuple[np.ndarray, np.ndarray, float]  # sums and targets of each unit [samples, units], and the true mean


def lengths(draw: Generator, shape: tuple[int, int], spread: float = 1.0) -> np.ndarray:
    """Returns tokens of documents, lognormal: with a spread of 1 the longest of 30 is eight times as long as the middle one."""
    return np.maximum(np.round(np.exp(draw.normal(4, spread, shape))), 1)


# two models of which neither is better


def alike(draw: Generator, shape: tuple[int, int]) -> Drawn:
    """Rows of one length."""
    return 10 * draw.normal(size=shape), np.full(shape, 10.0), 0.0


def by_document(draw: Generator, shape: tuple[int, int]) -> Drawn:
    """Documents of unequal lengths, each with a difference of its own in all its tokens."""
    tokens = lengths(draw, shape)
    return tokens * draw.normal(size=shape), tokens, 0.0


def tied(draw: Generator, shape: tuple[int, int]) -> Drawn:
    """The same, and larger in longer documents."""
    tokens = lengths(draw, shape)
    return tokens**1.5 * draw.normal(size=shape), tokens, 0.0


def even(draw: Generator, shape: tuple[int, int]) -> Drawn:
    """Documents of unequal lengths with differences that are all about as large: few tails, the sharpest for Student's t."""
    tokens = lengths(draw, shape)
    return tokens * np.sign(draw.normal(size=shape)) * draw.uniform(0.8, 1.2, shape), tokens, 0.0


def windows(draw: Generator, shape: tuple[int, int]) -> Drawn:
    """Documents of many windows: each has a difference of its own, and each of its windows another."""
    tokens = lengths(draw, shape, 1.2) * 4
    count = np.ceil(tokens / WINDOW)
    return tokens * (draw.normal(size=shape) + draw.normal(size=shape) / np.sqrt(count)), tokens, 0.0


def against_length(draw: Generator, shape: tuple[int, int]) -> Drawn:
    """What no interval holds: short documents gain what long ones lose, so that sums are skewed."""
    tokens = lengths(draw, shape)
    return tokens * (np.log(tokens) - 5 + draw.normal(size=shape)), tokens, 0.0  # the mean log of a token's document is 4 + 1²


DIFFERENCES: dict[str, Callable[[Generator, tuple[int, int]], Drawn]] = {
    "rows of one length": alike,
    "documents, lengths unequal": by_document,
    "the same, tied to the length": tied,
    "the same, about as large in all": even,
    "documents of many windows": windows,
}


HARDEST: dict[str, Callable[[Generator, tuple[int, int]], Drawn]] = {"short documents gain what long ones lose": against_length}


# losses


def loss_alike(draw: Generator, shape: tuple[int, int]) -> Drawn:
    """Rows of one length with lognormal losses."""
    return 50 * np.exp(0.4 * draw.normal(size=shape)), np.full(shape, 50.0), math.exp(0.08)


def loss_apart(draw: Generator, shape: tuple[int, int]) -> Drawn:
    """Rows of unequal lengths, losses independent of them."""
    tokens = lengths(draw, shape)
    return tokens * np.exp(0.4 * draw.normal(size=shape)), tokens, math.exp(0.08)


def loss_tied(draw: Generator, shape: tuple[int, int]) -> Drawn:
    """Rows of unequal lengths, the longer the lower the loss."""
    tokens = lengths(draw, shape, 0.5)
    return tokens * (3 - 0.5 * (np.log(tokens) - 4) + 0.5 * draw.normal(size=shape)), tokens, 3 - 0.5 * 0.5**2


LOSSES: dict[str, Callable[[Generator, tuple[int, int]], Drawn]] = {
    "losses, rows of one length": loss_alike,
    "losses, lengths unequal": loss_apart,
    "losses, lower in longer rows": loss_tied,
}


def missed(drawn: Drawn) -> float:
    """Returns the share of samples whose interval does not hold the true mean."""
    sums, targets, truth = drawn
    low, high = mean_interval(torch.from_numpy(sums), torch.from_numpy(targets))
    return float(((low > truth) | (high < truth)).double().mean())


def missed_by_bootstrap(drawn: Drawn) -> float:
    """Returns the same for the percentile bootstrap of 999 draws."""
    sums, targets, truth = drawn
    units = sums.shape[1]
    counts = np.random.default_rng(0).multinomial(units, [1 / units] * units, size=999).T.astype(float)
    ratios = np.sort((sums @ counts) / (targets @ counts), -1)
    return float(((ratios[:, 24] > truth) | (ratios[:, -25] < truth)).mean())


# exact match of two models on the same rows: no samples, all outcomes


def outcomes(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns all pairs (rows that the first alone has right, that the second alone has), and the log of their multinomials."""
    ahead, behind = (x.ravel() for x in np.meshgrid(*[np.arange(rows + 1)] * 2, indexing="ij"))
    ahead, behind = (x[ahead + behind <= rows] for x in (ahead, behind))
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, rows + 1)))])
    return ahead, behind, logs[rows] - logs[ahead] - logs[behind] - logs[rows - ahead - behind]


def missed_pairs(rows: int, truths: Sequence[tuple[float, float]]) -> list[float]:
    """Returns how often the interval misses the difference, for each pair of chances that one model alone is right."""
    ahead, behind, logs = outcomes(rows)
    ends = np.array([paired_interval(a, b, rows) for a, b in zip(ahead.tolist(), behind.tolist(), strict=True)])
    found = []
    for one, other in truths:
        rest = 1 - one - other
        chances = (
            (ahead, one),
            (behind, other),
            (rows - ahead - behind, rest),
        )
        chance = np.exp(logs + sum(np.where(count > 0, count * math.log(max(p, 1e-300)), 0.0) for count, p in chances))
        apart = (ends[:, 0] > one - other + 1e-12) | (ends[:, 1] < one - other - 1e-12)
        found.append(float(chance[apart].sum()))
    return found


STEPS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
PAIRS = [(one + other, other) for one in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8) for other in STEPS if one + 2 * other <= 1]
NONE = [(each, each) for each in STEPS[1:]]


def simulated(rows: int, samples: int = SAMPLES) -> list[dict[str, Any]]:
    """Returns what every case gives with so many rows."""
    found: list[dict[str, Any]] = []
    for kind, cases in (("difference", DIFFERENCES), ("loss", LOSSES), ("hardest", HARDEST)):
        for number, (name, made) in enumerate(cases.items()):
            drawn = made(np.random.default_rng([rows, number, len(kind)]), (samples, rows))
            found.append({"kind": kind, "case": name, "rows": rows, "samples": samples, "missed": missed(drawn)})
            found[-1]["bootstrap"] = missed_by_bootstrap(drawn)
    for name, truths in (("exact match, no difference", NONE), ("exact match, the worst difference", PAIRS)):
        found.append({"kind": "exact", "case": name, "rows": rows, "missed": max(missed_pairs(rows, truths))})
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines of the table: how many in 100 intervals miss, and in brackets how many of the bootstrap's do."""
    sizes = sorted({row["rows"] for row in rows})
    lines = [f"| misses in 100 of | {' | '.join(map(str, sizes))} |", "|---|" + "---|" * len(sizes)]
    for case in dict.fromkeys(row["case"] for row in rows):
        cells = {row["rows"]: row for row in rows if row["case"] == case}
        told = [f"{100 * cells[size]['missed']:.1f}" + _beside(cells[size]) for size in sizes]
        lines.append(f"| {case} | {' | '.join(told)} |")
    return lines


def _beside(row: Mapping[str, Any]) -> str:
    return f" ({100 * row['bootstrap']:.0f})" if "bootstrap" in row else ""


def main() -> None:
    """Reads the command line, and simulates or prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="the file of rows")
    parser.add_argument("--table", action="store_true", help="print the table of the rows that are there")
    given = parser.parse_args()
    if not given.table:
        given.rows.parent.mkdir(parents=True, exist_ok=True)
        given.rows.write_text("".join(json.dumps(row) + "\n" for size in ROWS for row in simulated(size)))
    print("\n".join(table([json.loads(line) for line in given.rows.read_text().splitlines()])))


if __name__ == "__main__":
    main()
