"""Where a core of LAYERS is looped at the least cost before any training: the loss of the plain loop at every place.

    python -m experiments.ouroboros.places BASE CORPUS/valid.jsonl.gz > experiments/results/ouroboros/places.jsonl

What PLACES of plan.py was taken from; minutes on a CPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import torch

import loopwright as lw
from experiments.ouroboros.plan import CORES, LAYERS
from experiments.side_by_side import made_by
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluation.text import read_passages
from loopwright.retrofitting.search import dense_of, loss_of

ROWS, LENGTH = 16, 256


def runs(size: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yields the core at each place that leaves a prelude and a coda, and the layers as they run with it looped."""
    for first in range(1, len(LAYERS) - size):
        core = LAYERS[first : first + size]
        yield core, (*LAYERS[:first], *core * CORES[size], *LAYERS[first + size :])


def main() -> None:
    """Prints a row of JSON for each place; the first one has no core."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("text")
    options = parser.parse_args()
    text = read_passages("valid", options.text, Tokenizer(options.base), LENGTH)
    whole = [row.ids for row in text.rows if len(row.ids) == LENGTH]
    ids = torch.tensor(whole[:: len(whole) // ROWS][:ROWS])
    dense = lw.load(options.base).float().eval()
    origin = made_by()
    for core, steps, run in [((), 1, LAYERS), *((core, CORES[size], run) for size in CORES for core, run in runs(size))]:
        loss = round(loss_of(dense_of(dense, run), ids), 5)
        print(json.dumps({"core": core, "steps": steps, "loss": loss, "origin": origin}), flush=True)


if __name__ == "__main__":
    main()
