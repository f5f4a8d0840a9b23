"""What the pages say of rows of the retrofit study that were run twice on one base: how much chance alone changes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import mean

from experiments.ouroboros.again_tables import FIRST, SECOND, alike, loss_at
from experiments.ouroboros.answers import TRAINED
from experiments.ouroboros.plan import DIAGONAL, TOKEN
from experiments.ouroboros.rates import arm_of, rates_of
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.pages import Result, results, words
from experiments.readme.retrofit.own_rates import COMMON, tried
from experiments.readme.retrofit.rates_again import MEANS_OF, NAMES, again, second
from experiments.readme.rows import RESULTS, WORDS, from_to, line, when
from experiments.seeds import over_seeds

PAIR = ("run a", "run b")  # of one commit
BASE = (SECOND, *PAIR)  # all runs on the base of the second set


@cache
def twice() -> dict[tuple[str, int], dict[str, Result]]:
    """Returns all runs of the rows that were run twice, by arm and seed, then by where they are from."""
    rows = results([str(RESULTS / "ouroboros/twice.jsonl")], ())
    return {(arm_of(runs["run a"]), runs["run a"]["seed"]): runs for runs in alike(rows, tried(), again()).values()}


def reach(arm: str, depths: Sequence[int], *where: str, text: str = "test") -> list[float]:
    """Returns how far the finite losses of one row's runs lie apart, by depth and seed; of the runs named, or of all."""
    rows = [[run for key, run in runs.items() if key in (where or runs)] for (of_arm, _), runs in twice().items() if of_arm == arm]
    losses = [[loss_at(run, text, depth) for run in runs] for depth in depths for runs in rows]
    finite = [[*filter(math.isfinite, each)] for each in losses]
    return [max(each) - min(each) for each in finite]


def from_first(arm: str, depth: int) -> list[float]:
    """Returns how far the first set's run of seed 1 is above each of the later ones on `test`."""
    runs = twice()[arm, 1]
    return [loss_at(runs[FIRST], "test", depth) - loss_at(run, "test", depth) for key, run in runs.items() if key != FIRST]


def claims() -> Iterator[str]:
    """Yields what rows that were run twice tell of chance."""
    for (arm, seed), runs in twice().items():
        cells = [" / ".join(f"{loss_at(run, 'test', depth):.3f}" for depth in DEPTHS) for run in runs.values()]
        yield line(NAMES[arm], str(seed), *(["–"] if FIRST not in runs else []), *cells)
    ones, rest, last = (reach(TOKEN, depths, *PAIR) for depths in ((1,), TRAINED[1:], (16,)))
    told = f"{words([f'{value:.3f}' for value in ones])} at depth 1 (seeds 1 and 4), by {from_to(rest)} at depths 2 to 8"
    yield f"Runs a and b differ on `test` by {told} and by {from_to(last)} at depth 16"
    sets = [twice()[TOKEN, 1][key] for key in (FIRST, SECOND)]
    gaps = [abs(loss_at(sets[0], "test", depth) - loss_at(sets[1], "test", depth)) for depth in TRAINED[1:]]
    less = 0.8 * min(gaps) < max(rest) < min(gaps)
    other = max(reach(TOKEN, TRAINED[1:], *PAIR, text="ood"))
    yield when(less, f"At depths 2 to 8 this is a little less than the gap; on `ood` it is up to {other:.3f}")
    first, beyond = max(reach(TOKEN, (1,), *BASE)), max(reach(TOKEN, TRAINED[1:], *BASE))
    yield f"runs of one seed lie up to {first:.3f} apart at depth 1 and up to {beyond:.3f} apart at depths 2 to 8"
    old = max(abs(value) for depth in TRAINED for value in from_first(TOKEN, depth))
    as_large = old <= beyond < first
    yield when(as_large, f"differs from each of these three by at most {old:.3f} at depths 1 to 8")
    near, deep = max(reach(DIAGONAL, TRAINED, *BASE)), max(reach(DIAGONAL, (16,), *BASE))
    yield f"Runs of one seed on this base lie at most {near:.3f} apart at depths 1 to 8 and {deep:.3f} at depth 16"
    one, sixteen = (from_first(DIAGONAL, depth) for depth in (1, 16))
    sides = max(one) < -5 * near and min(sixteen) > 5 * deep  # not by a little
    told = f"is {from_to(one)} below all three at depth 1 and {from_to(sixteen)} above all three at depth 16"
    yield when(sides, f"The first set's run of seed 1 {told}")
    skips = [[str(run["skipped"]) for key, run in twice()[TOKEN, seed].items() if key != FIRST] for seed in (1, 4)]
    none = not any(run["skipped"] for (arm, _), runs in twice().items() if arm == DIAGONAL for run in runs.values())
    told = f"skipped {words(skips[0])} updates with seed 1 and {words(skips[1])} with seed 4"
    yield when(none, f"The three runs on this base {told}; the static diagonal skipped none")
    curves = [[runs[key]["losses"] for key in PAIR] for (arm, _), runs in twice().items() if arm == TOKEN]
    start, then = ([abs(a[place] - b[place]) for a, b in curves] for place in (0, 1))
    apart = (
        f"within {max(start):.3f} in the first ten updates and {words([f'{value:.2f}' for value in then])} apart in the next ten"
    )
    yield f"training losses of runs a and b are {apart} (seeds 1 and 4; updates that were skipped are left out)"
    skips = sorted(twice()[TOKEN, 4][key]["skipped_at"][0][0] for key in PAIR)  # counted from 0
    early = skips[0] >= 2 * MEANS_OF and then[1] > 0.5
    yield when(early, f"With seed 4 they part before either run skips an update (the first are {words(skips)})")
    yield from other_runs()
    yield from single_runs()


def in_place(where: str, text: str, depth: int | None) -> list[float]:
    """Returns reading each token less the static diagonal by seed, with these runs of the rows run twice, at a depth or (None) at
    the depth of each arm that has the least mean loss of those where all runs are finite."""
    arms = [
        {run["seed"]: twice()[arm, run["seed"]][where] if (arm, run["seed"]) in twice() else run for run in second()[arm]}
        for arm in (TOKEN, DIAGONAL)
    ]
    means = [{at: mean(loss_at(run, text, at) for run in runs.values()) for at in DEPTHS} for runs in arms]
    best = [min((value, at) for at, value in of.items() if math.isfinite(value))[1] for of in means]
    one, other = best if depth is None else (depth, depth)
    return [loss_at(run, text, one) - loss_at(arms[1][seed], text, other) for seed, run in arms[0].items()]


def other_runs() -> Iterator[str]:
    """Yields what becomes of the second set's verdicts over seeds with other runs of two seeds, and which run is not finite."""
    sides = {
        (where, depth): {
            "ahead" if high < 0 else "behind" if low > 0 else "neither"
            for low, high in (over_seeds(in_place(where, text, depth)) for text in TEXTS)
        }
        for where in BASE
        for depth in (*DEPTHS, None)
    }
    ahead = [depth for depth in DEPTHS if all(sides[where, depth] == {"ahead"} for where in BASE)]
    yield f"it stays ahead of the static diagonal at depths {words(ahead)} with either run"
    turned = [depth for depth in (*DEPTHS, None) if sides["run a", depth] == {"behind"}]
    calm = all("neither" in sides[where, depth] for where in (SECOND, "run b") for depth in turned)
    where = words([f"at depth {depth}" if depth else "at best depths" for depth in turned])
    yield when(calm, f"{where} it is behind with run a, and open with run b and with the second set's own")
    test, ood = (mean(in_place("run a", text, None)) for text in TEXTS)
    yield f"At best depths it is {test:.3f} behind with run a on `test` and {ood:.3f} on `ood`"
    yield when(None in turned, "the second set has it behind the static diagonal at best depths (over seeds)")
    broken = [
        (arm, seed, key, text, depth)
        for (arm, seed), runs in twice().items()
        for key, run in runs.items()
        for text in TEXTS
        for depth in DEPTHS
        if math.isnan(loss_at(run, text, depth))
    ]
    runs, depths = {each[:4] for each in broken}, [each[4] for each in broken]
    held = twice()[TOKEN, 4]["run a"]["texts"]["ood"]
    count = {held["not_finite"][held["depth"].index(depth)] for depth in depths}
    where = f"has no finite loss on {WORDS[count.pop()]} of {held['documents']} documents of `ood` at depths {words(depths)}"
    yield when(runs == {(TOKEN, 4, "run a", "ood")} and not count, f"Run a of reading each token, seed 4, {where}")
    lost = [depth for depth in depths if sides[SECOND, depth] == {"ahead"} == sides["run b", depth]]
    yield f"In the second set this run would leave the verdict at depth {words(lost)} undecided"


def single_runs() -> Iterator[str]:
    """Yields which comparisons of single runs are no larger than what runs of one row differ by."""
    rates, apart = rates_of(tried())[TOKEN], max(reach(TOKEN, (4, 8)))
    gain = rates[COMMON] - min(rates.values())
    told = f"for the one that reads each token {gain:.2f} is less than the {apart:.2f} by which runs of one row differ"
    yield when(0 < gain < apart, f"{told} at depths 4 and 8")
    both = [max(reach(TOKEN, depths, *PAIR)) for depths in ((1,), TRAINED[1:])]
    wide = f"up to {both[0]:.2f} nats at depth 1 and {both[1]:.2f} at depths 2 to 8 on `test`"
    yield f"two runs of it with one seed at one commit differ by {wide}"
    every = [value for text in TEXTS for arm in (TOKEN, DIAGONAL) for value in reach(arm, (4, 8), text=text)]
    yield f"(runs of one row differ by up to {max(every):.2f} at depths 4 and 8)"
    (commit,) = {runs[key]["origin"]["commit"][:7] for runs in twice().values() for key in PAIR}
    yield f", those of at {commit}. Of the others"


def training_claims() -> Iterator[str]:
    """Yields what docs/training.md says."""
    calm, far = (max(max(reach(arm, TRAINED, *PAIR, text=text)) for text in TEXTS) for arm in (DIAGONAL, TOKEN))
    yield f"held-out losses at the trained depths differed by at most {calm:.3f} nats in one arm and by up to {far:.2f} in another"


def headline_claims() -> Iterator[str]:
    """Yields what the README says."""
    behind = all(over_seeds(in_place("run a", text, None))[0] > 0 for text in TEXTS)
    other = any(over_seeds(in_place("run b", text, None))[0] <= 0 for text in TEXTS)
    yield when(behind and other, "and comes close to being behind in the second")
