"""What is left of the retrofit study's pairs at best depths after a Bonferroni correction, each arm at its own learning rate."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from experiments.ouroboros.plan import BLIND, CONTROLLER, DIAGONAL, GATE, STATIC, TOKEN
from experiments.ouroboros.rate_tables import PAIRS
from experiments.pages import words
from experiments.readme.retrofit.own_rates import beside, own_runs
from experiments.readme.rows import WORDS, when
from experiments.seeds import paired_p

NAMES = {CONTROLLER: "the running mean", TOKEN: "each token", BLIND: "blind", DIAGONAL: "the static diagonal"}
Pair = tuple[str, str]


@cache
def chances() -> dict[Pair, float]:
    """Returns the larger p of the two texts, times the number of pairs, of each pair with three seeds at best depths."""
    both = [pair for pair in PAIRS if all(len(own_runs().get(arm, ())) == 3 for arm in pair)]
    return {pair: len(both) * max(map(paired_p, beside(*pair).of_seeds)) for pair in both}


def stays(pair: Pair) -> bool:
    """Returns whether a pair is decided after the correction."""
    return beside(*pair).decided and chances()[pair] < 0.05


def left(rival: str, stands: str) -> list[str]:
    """Returns the arms that stand so beside a rival, decided after the correction."""
    return [NAMES[pair[0]] for pair in chances() if pair[1] == rival and stays(pair) and beside(*pair).stands == stands]


def claims() -> Iterator[str]:
    """Yields what docs/ouroboros.md says."""
    yield f"Bonferroni correction for the {WORDS[len(chances())]} pairs with three seeds"
    behind, ahead = left(STATIC, "behind"), left(GATE, "ahead")[::-1]
    yield f"{words(behind)} stay behind low-rank tables, and {words(ahead)} ahead of the gate alone"
    gone = [pair for pair in chances() if beside(*pair).decided and not stays(pair)]
    told = [f"{NAMES[first]} {beside(first, second).stands} {NAMES.get(second, 'low-rank tables')}" for first, second in gone]
    yield f"No longer decided are {words(told)}"


def headline() -> Iterator[str]:
    """Yields what the README says."""
    named = [pair for pair in ((CONTROLLER, DIAGONAL), (CONTROLLER, STATIC), (TOKEN, STATIC)) if stays(pair)]
    told = f"After a Bonferroni correction for {WORDS[len(chances())]} pairs at best depths"
    stay = "only the tables' lead over the running mean stays decided among those named here"
    yield when(named == [(CONTROLLER, STATIC)], f"{told}, {stay}")
