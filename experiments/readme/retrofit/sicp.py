"""What docs/ouroboros.md says of SICP alone, the one book of `ood` whose author and publisher the training text does not have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache

from experiments.ouroboros.plan import (
    BEST,
    BEST_ONCE,
    BEST_STATIC,
    BLIND,
    CONTROLLER,
    DIAGONAL,
    FULL,
    GATE,
    NORMED,
    ONCE,
    STATIC,
    TOKEN,
    TRUNCATED,
)
from experiments.pages import Result, percent
from experiments.readme.retrofit.ouroboros import all_runs
from experiments.readme.retrofit.own_rates import beside, own_runs
from experiments.readme.rows import RESULTS, WORDS, line, when
from experiments.seeds import Pooled, held, of_documents, pooled, share_of_gap
from experiments.templates.words import told

TEXT, SOURCE = "ood", "sarabander/sicp"
ONE_RATE = (GATE, CONTROLLER, NORMED, BLIND, STATIC, ONCE, BEST, BEST_STATIC, BEST_ONCE)
PAIRS = {
    "running mean less static diagonal": (CONTROLLER, DIAGONAL),
    "each token less static diagonal": (TOKEN, DIAGONAL),
    "each token less blind": (TOKEN, BLIND),
    "blind less static diagonal": (BLIND, DIAGONAL),
    "running mean less low-rank tables": (CONTROLLER, STATIC),
    "each token less low-rank tables": (TOKEN, STATIC),
}


@cache
def documents() -> tuple[str, frozenset[int]]:
    """Returns the fingerprint of the passages, and the numbers of SICP's documents among them."""
    found = json.loads((RESULTS / "ouroboros/ood-sources.json").read_text())
    return found["fingerprint"], frozenset(found["documents"][SOURCE])


def alone(run: Result) -> Result:
    """Returns a run whose report of the text is of SICP alone, at the depths at which it keeps the losses of documents."""
    fingerprint, numbers = documents()
    if held(run, TEXT).fingerprint != fingerprint:
        raise ValueError(f"{run['name']}: other passages than those whose sources are known")
    return of_documents(run, TEXT, numbers)


def every(runs: Sequence[Result]) -> list[Result]:
    """Returns runs, each of SICP alone."""
    return [alone(run) for run in runs]


def against(first: str, second: str) -> Pooled:
    """Returns an arm less another, each at its own rate and its best depth on SICP."""
    found = pooled(every(own_runs()[first]), every(own_runs()[second]), TEXT)
    assert found is not None and len(found.seeds) == 3
    return found


def shares() -> list[str]:
    """Returns the shares of the gap that the rows at one rate recover, in the order of the page."""
    worse, better = (alone(all_runs()[label][0]) for label in (TRUNCATED, FULL))
    found = [share_of_gap(every(all_runs()[label]), worse, better, TEXT) for label in ONE_RATE]
    return [percent(each.share) for each in found if each is not None]


def claims() -> Iterator[str]:
    """Yields what the page says."""
    gate, raw, normed, blind, tables, lora, best, best_tables, once = (each.removesuffix(" %") for each in shares())
    shown = f"gate only {gate} %, controller {raw} (raw) and {normed} (normed), blind {blind}, low-rank tables {tables}"
    yield f"{shown}, LoRA without a loop {lora}, the best with a controller {best}, with tables {best_tables}, not looped {once}"
    for name, pair in PAIRS.items():
        yield line(name, told(against(*pair)))
    same = all(against(*pair).verdict == on_both(*pair) for pair in PAIRS.values())
    yield when(same, f"At best depths these {WORDS[len(PAIRS)]} pairs have the same verdicts on SICP alone as on both whole texts")


def on_both(first: str, second: str) -> str:
    """Returns the verdict of both whole texts, in the words of a single one."""
    found = beside(first, second)
    return {"ahead of": "lower", "behind": "higher"}[found.side] if found.decided else "not resolved"
