"""What README and pages say of the second set of the retrofit study's arms at own rates, beside the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from experiments.ouroboros.again_tables import ALLOWED, changed, filled, in_both, second_set, without_diverged
from experiments.ouroboros.answers import TRAINED, diverged
from experiments.ouroboros.plan import BLIND, CONTROLLER, DIAGONAL, LEAKING, NORMED, ONCE, PUBLISHED, STATIC, TOKEN
from experiments.ouroboros.rate_tables import recovered
from experiments.ouroboros.rates import FURTHER, arm_of
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.pages import Result, percent, results, words
from experiments.readme.retrofit.ouroboros import Runs, all_runs
from experiments.readme.retrofit.own_rates import SKIPPED, Beside, between, over_seeds_alone, own_runs, span, trained, tried
from experiments.readme.rows import RESULTS, WORDS, from_to, line, of, when
from experiments.seeds import best_depth, mean_loss, reports

PAIRS = ((TOKEN, BLIND), (TOKEN, DIAGONAL), (BLIND, DIAGONAL))
NAMES = {TOKEN: "each token", BLIND: "nothing (blind)", DIAGONAL: "static diagonal"}
AROUND = 14  # layers before and behind the looped one
MEANS_OF = 10  # updates of one training loss of a row


@cache
def again() -> list[Result]:
    """Returns the rows of the second set."""
    return results([str(RESULTS / "ouroboros/again.jsonl")], ())


@cache
def second() -> Runs:
    """Returns the second set by arm."""
    return second_set(tried(), again())


@cache
def both() -> Runs:
    """Returns the first set with the second's rows of the seeds that it lacks."""
    return filled(tried(), again())


@cache
def fresh() -> Runs:
    """Returns the seeds of the second set that the first never had."""
    return {arm: [run for run in runs if run["seed"] in FURTHER] for arm, runs in second().items()}


def decided_at(runs: Runs, first: str, other: str) -> dict[int | None, str]:
    """Returns where a pair is decided, with the side on which the first stands: by depth, and under None at best depths."""
    found = {depth: between(runs, first, other, depth) for depth in (*DEPTHS, None)}
    return {depth: each.stands for depth, each in found.items() if each.decided}


@cache
def kept() -> dict[tuple[str, str], list[int]]:
    """Returns the depths at which both sets decide a pair, on the same side."""
    found = {}
    for pair in PAIRS:
        before, after = (decided_at(runs, *pair) for runs in (own_runs(), second()))
        found[pair] = [depth for depth in DEPTHS if depth in before and before[depth] == after.get(depth) == "ahead"]
    return found


def lost_verdicts(pair: tuple[str, str]) -> dict[int | None, str]:
    """Returns what the first set decides of a pair and the second does not."""
    after = decided_at(second(), *pair)
    return {depth: side for depth, side in decided_at(own_runs(), *pair).items() if after.get(depth) != side}


def side_by_side() -> Iterator[str]:
    """Yields by how much the rows that both sets have differ, and that this is more than was allowed."""
    pairs = {arm_of(before): changed(before, after, "test") for before, after in in_both(tried(), again())}
    far = {arm: max(abs(each[depth]) for depth in TRAINED) > ALLOWED for arm, each in pairs.items()}
    yield when(all(far.values()) and len(far) == 2, "The sets are not put together.")
    yield f"differs by more than {ALLOWED:g} nats on `test` at a depth up to {TRAINED[-1]}"
    token, table = pairs[TOKEN], pairs[DIAGONAL]
    inside = [token[depth] for depth in TRAINED]
    yield when(min(inside) > 0, f"Reading each token, seed 1, is {from_to(inside)} above its first run at depths 1 to 8")
    below = [-table[depth] for depth in TRAINED[1:]]
    told = f"is {table[1]:.3f} above at depth 1, {from_to(below)} below at depths 2 to 8 and {-table[16]:.3f} below at depth 16"
    yield when(min(below) > 0, f"The static diagonal, seed 1, {told}")
    rows = [row for row in again() if row["seed"] in FURTHER]
    yield f"A second set of {len(again())} rows"
    yield when({arm_of(row) for row in rows} == {TOKEN, BLIND, DIAGONAL} and len(rows) == 9, "seeds 4 to 6 of three arms")


def pairs_by_depth() -> Iterator[str]:
    """Yields the lines of the second set's table."""
    for first, other in PAIRS:
        cells = [between(second(), first, other, depth).cell for depth in (*DEPTHS, None)]
        seeds = between(second(), first, other).seeds
        yield line(NAMES[first], "blind" if other == BLIND else NAMES[other], str(seeds), *cells)


def run_that_diverged() -> Iterator[str]:
    """Yields what is said of the blind run that came apart."""
    broken = [run for runs in second().values() for run in runs if diverged(run)]
    (run,) = broken
    depths = {best_depth(reports(second()[BLIND], text)) for text in TEXTS}
    yield f"puts blind's best depth at {words(sorted(depths))}"
    yield when(arm_of(run) == BLIND, f"One of the {WORDS[len(second()[BLIND])]} blind runs diverged.")
    losses = run["losses"]
    least = losses.index(min(losses))
    rising = next(place for place in range(least, len(losses)) if losses[place] > losses[least] + 1)
    told = [f"{losses[place]:.2f} in updates {MEANS_OF * place} to {MEANS_OF * place + MEANS_OF - 1}" for place in (least, rising)]
    yield f"training loss of seed {run['seed']} is {told[0]}, {told[1]} and {losses[rising + 1]:.2f} in the next ten"
    yield f"it ends at {losses[-1]:.2f}"
    four, eight = (mean_loss(reports([run], "test"), depth) for depth in (4, 8))
    skipped = when(run["skipped"] == 0, "No update was skipped")
    yield f"On `test` it has {four:.2f} at depth 4 and {eight:.2f} at depth 8. {skipped}. The run counts"


def came_back() -> Iterator[str]:
    """Yields what both sets decide, and what the second does not."""
    token, table, blind = (kept()[pair] for pair in ((TOKEN, BLIND), (TOKEN, DIAGONAL), (BLIND, DIAGONAL)))
    ahead = f"ahead of the static diagonal at depths {words(table)} and of blind at depth {words(token)}"
    alone = f"lind is ahead of the static diagonal at depth {words(blind)}"
    yield f"Came back, decided in both sets. Reading each token is {ahead}. B{alone}."
    yield f"decides again that reading each token is {ahead}, and that b{alone}"
    if lost_verdicts((TOKEN, DIAGONAL)):
        raise ValueError("the second set does not decide what the first does of each token against the static diagonal")
    gone = words([*lost_verdicts((TOKEN, BLIND))])
    yield f"Did not come back. That reading each token is ahead of blind at depth {gone} is not decided here"
    pairs = [between(runs, TOKEN, BLIND, depth) for runs in (own_runs(), second()) for depth in DEPTHS]
    yield when(
        max(max(each) for pair in pairs for each in pair.of_seeds) < 0,
        "it is ahead on each seed at every depth, as in the first set",
    )
    lost = lost_verdicts((BLIND, DIAGONAL))
    front, back = ([depth for depth, side in lost.items() if side == which] for which in ("ahead", "behind"))
    behind = words([depth or "best depths" for depth in back])
    yield f"That blind is ahead of the static diagonal at depths {words(front)}, and behind at {behind}, is not decided either"
    count = WORDS[len(second()[BLIND])]
    yield f"The other verdicts on blind did not come back: one of its {count} fresh runs diverged"
    yield from without_it()
    yield from against_table()


def without_it() -> Iterator[str]:
    """Yields the pairs with blind without the run that diverged, which is not the rule."""
    runs = without_diverged(second())
    sides = [[between(each, BLIND, DIAGONAL, depth).side for depth in (*DEPTHS, None)] for each in (own_runs(), runs)]
    seeds = f"Without seed 5 (not the rule; {WORDS[len(runs[BLIND])]} seeds)"
    yield when(sides[0] == sides[1], f"{seeds} blind has the signs of the first set at every depth")
    only = not decided_at(runs, BLIND, DIAGONAL) and [*decided_at(runs, TOKEN, BLIND)] == [1]
    yield when(only, "of these two pairs only reading each token against blind at depth 1 is decided")
    beyond = [value for depth in DEPTHS[1:] for value in between(runs, TOKEN, BLIND, depth).above]
    yield when(max(beyond) < 0, f"from depth 2 on reading each token is ahead by {span([-value for value in beyond])}")


def token_again() -> Beside:
    """Returns reading each token beside the static diagonal at best depths in the second set."""
    return between(second(), TOKEN, DIAGONAL)


def behind_on(pair: Beside) -> str:
    """Returns on how many runs the first one is behind on both texts."""
    return of(sum(min(each) > 0 for each in zip(*pair.of_seeds, strict=True)), pair.seeds)


def against_table() -> Iterator[str]:
    """Yields how reading each token stands beside the static diagonal at best depths."""
    best = token_again()
    told = f"{best.far} {best.stands} the static diagonal ({best.word}), behind on {behind_on(best)} runs"
    yield f"At best depths reading each token is {told}"
    yield f"Reading each token against the static diagonal at best depths is {best.word}, as before"
    yield f"It is behind on {behind_on(best)} runs (on {behind_on(between(own_runs(), TOKEN, DIAGONAL))} in the first set)"
    four, eight, own = (between(fresh(), TOKEN, DIAGONAL, depth) for depth in (4, 8, None))
    if (four.decided, four.side) != (own.decided, own.side):
        raise ValueError("depth 4 and best depths do not stand alike")
    rest = f"at depth 4 and at best depths by {span([*four.above, *own.above])} ({own.word})"
    alone = f"With the {WORDS[eight.seeds]} fresh seeds alone it is {eight.stands} at depth 8 by {eight.far} ({eight.word})"
    yield when(four.side == "behind", f"{alone}, and {rest}")


def behind_lora(arm: str) -> Beside:
    """Returns an arm of the first set beside LoRA without a loop, at best depths."""
    return between(both(), arm, ONCE)


def at_best(runs: Sequence[Result], text: str) -> float:
    """Returns the loss of runs at their best depth."""
    found = reports(runs, text)
    return mean_loss(found, best_depth(found))


def lora() -> Iterator[str]:
    """Yields how LoRA without a loop stands."""
    runs, tables, token = both()[ONCE], behind_lora(STATIC), behind_lora(TOKEN)
    losses = [mean_loss(reports(runs, text), 1) for text in TEXTS]
    shares = [percent(recovered(runs, all_runs(), text)).removesuffix(" %") for text in TEXTS]
    sizes = {arm: f"{trained()[arm] / 1e6:.3f} M" for arm in (ONCE, STATIC, TOKEN)}
    yield f"each run once (depth 1), train {sizes[ONCE]} parameters"
    yield f"They have {losses[0]:.3f} on `test` and {losses[1]:.3f} on `ood`, {words(shares)} % of the gap"
    reads = f"the controller that reads each token ({sizes[TOKEN]}) {token.far}"
    yield f"the best looped arm ({sizes[STATIC]}), are {tables.far} nats {tables.stands}, {reads}"
    verdict = f"({WORDS[min(tables.seeds, token.seeds)]} seeds, {tables.word})"
    if tables.word != token.word or tables.side != token.side:
        raise ValueError("the two pairs with LoRA do not stand alike")
    yield f"both at best depths {verdict}"
    held = {arm: {text: at_best(each, text) for text in TEXTS} for arm, each in both().items()}
    looped = [arm for arm in held if arm != ONCE]
    worse = all(pair.decided and pair.side == "behind" for pair in map(behind_lora, looped))
    best = {min(looped, key=lambda arm: held[arm][text]) for text in TEXTS} == {STATIC}
    depths = {best_depth(reports(both()[STATIC], text)) for text in TEXTS}
    run = f"which runs {AROUND + 1} layers where the tables at their best depth run {AROUND + depths.pop()}"
    weights = [trained()[arm] / 1e6 for arm in looped]
    arms = f"So every looped arm at its own rate ({min(weights):.3f} to {max(weights):.3f} M)"
    yield when(worse and best, f"{arms} is behind LoRA without a loop (decided), {run}")
    yield f"each run once ({sizes[ONCE]} trained parameters): {losses[0]:.3f} on `test`, the tables {held[STATIC]['test']:.3f}"
    ahead = "ahead of" if tables.side == "behind" else "behind"
    yield f"LoRA is {ahead} them by {tables.far} nats and of the controller that reads each token by {token.far} {verdict}"


def leak() -> Iterator[str]:
    """Yields how the controller that sees the future stands."""
    best, one = between(both(), LEAKING, CONTROLLER), between(both(), LEAKING, CONTROLLER, 1)
    told = f"{from_to(best.above)} nats {best.side} the running mean ({best.word})"
    yield f"whose loss is not a likelihood, is {told}, and at depth 1 {one.far} {one.stands} ({one.word})"
    gains = [run["texts"][text]["honest"]["gain"][DEPTHS.index(8)] for run in both()[LEAKING] for text in TEXTS]
    tokens = {run["texts"][text]["honest"]["positions"] for run in both()[LEAKING] for text in TEXTS}
    worth = f"{min(gains):.3f} to {max(gains):.3f}".replace("-", "−")
    yield f"on {tokens.pop():,} tokens of each text, seeing the future was worth {worth} nats at depth 8"


def third_seeds() -> Iterator[str]:
    """Yields what a third seed says of normed states and of the published arm."""
    normed = [between(both(), NORMED, BLIND, depth) for depth in DEPTHS]
    best, last = between(both(), NORMED, BLIND), between(both(), NORMED, DIAGONAL, 16)
    opened = not any(each.decided for each in (*normed, best))
    yield when(opened, f"Normed states are undecided against blind at every depth, and {best.far} {best.stands} at best depths")
    yield f"At depth 16 they are {last.side} the static diagonal by {last.told}"
    yield f"third of the second set] it is {last.word}"
    published, far = between(both(), PUBLISHED, BLIND), over_seeds_alone(both(), PUBLISHED, BLIND, 16)
    told = f"({WORDS[published.seeds]} seeds, {published.word})"
    yield f"The published arm is {published.far} nats {published.stands} blind at best depths {told}"
    verb = "excludes" if far.decided else "holds"
    yield f"At depth 16 it is {far.stands} by {far.far}; the interval over {WORDS[far.seeds]} seeds {verb} 0"
    yield f"(with a [third] it {'does not' if far.decided else 'does too'})"


def skipped() -> Iterator[str]:
    """Yields the updates that the second set skipped."""
    where, every = set(), 0
    for arm in SKIPPED.values():
        runs = second().get(arm, [])
        before = ", ".join(str(run["skipped"]) for run in own_runs().get(arm, ()))
        after = "; ".join(f"{run['seed']}: {run['skipped']}" for run in runs)
        yield f"| {before or 'not run'} | {after or 'not run'} |"
        where |= {depth for run in runs for _, depths in run["skipped_at"] for depth in depths}
        every += sum(run["skipped"] for run in runs)
    if any(run["skipped"] for arm, runs in second().items() if arm not in SKIPPED.values() for run in runs):
        raise ValueError("an arm that the table does not have skipped updates")
    yield f"all {every} of the second set were at depths {words(sorted(where))}"


def headline_claims() -> Iterator[str]:
    """Yields what the README says."""
    best, before = token_again(), between(own_runs(), TOKEN, DIAGONAL)
    neither = when(not best.decided and not before.decided, "shows no decided difference from it in either of two sets of runs")
    yield f"One that reads each token {neither}"
    yield f"at depths {words(kept()[TOKEN, DIAGONAL])} it is ahead (decided in both)"


def claims() -> Iterator[str]:
    """Yields what the study's page says."""
    for part in (side_by_side, pairs_by_depth, run_that_diverged, came_back, lora, leak, third_seeds, skipped):
        yield from part()
    (commit,) = {row["origin"]["commit"][:7] for row in again()}
    yield f"those of at {commit}"
    yield f"decided at 1 and 2 (with fresh seeds at {words(kept()[TOKEN, BLIND])})"
