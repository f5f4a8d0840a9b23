"""What docs/when-to-loop-retrofit.md and README.md say about the wide-core retrofit, each arm at its own rate."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import cache

from experiments.halting.reading import SIMPLE
from experiments.leaving.reading import MEANS, MOST
from experiments.leaving.tables import against_fixed
from experiments.ouroboros.rate_tables import at_own_rates
from experiments.ouroboros.rates import GRID, SEEDS, arm_of, best_rates, rates_of
from experiments.ouroboros.tables import Runs
from experiments.pages import Result, difference, results, words
from experiments.readme.retrofit.cores import plain_rate
from experiments.readme.rows import RESULTS, WORDS, from_to, line, of, sizes, when
from experiments.seeds import Pooled, averaged, mean_loss, pooled, reports
from experiments.sft.plan import LAYERS, TRAINED
from experiments.sft.wide import EQUAL, LONGER, LOOPED, RATES, TEXTS, UPDATES
from experiments.sft.wide_tables import STEPS, by_depth
from loopwright.evaluate.paired import compare

RATED = f"at the best of {WORDS[len(RATES)]} rates each"
EARLIER = 5e-4  # the one rate of the runs before
CORE = 6  # layers that are looped
ONCE = {EQUAL: "equal tokens", LONGER: "equal training FLOPs"}


def claims() -> Iterator[str]:
    """Yields what the section of docs/when-to-loop-retrofit.md says of three seeds at own rates."""
    yield from short_claims()
    yield from table_lines()
    yield from side_claims()
    yield from depth_claims()
    yield from exit_claims()
    yield from rate_claims()


@cache
def wide_rows() -> list[Result]:
    """Returns all rows."""
    return list(results([str(RESULTS / "sft/wide.jsonl")], ()))


@cache
def runs() -> Runs:
    """Returns the seeds of each arm at its own rate."""
    return at_own_rates(wide_rows(), RATES)


@cache
def beside(arm: str, text: str = "test") -> Pooled:
    """Returns the loop less layers run once; the loop must be best at its trained depth."""
    found = pooled(runs()[LOOPED], runs()[arm], text)
    if found is None or found.seeds != SEEDS or found.depths != (TRAINED, 1):
        raise ValueError(f"{arm}, {text}: no seeds {SEEDS}, or depths other than {TRAINED} and 1")
    return found


def deeper(depth: int, than: int, text: str) -> Pooled:
    """Returns the loop at one depth less itself at another."""
    found = reports(runs()[LOOPED], text)
    whole = compare(averaged(found, depth), averaged(found, than))
    each = tuple(mean_loss([one], depth) - mean_loss([one], than) for one in found)
    return Pooled(SEEDS, (depth, than), whole.difference, whole.difference_low, whole.difference_high, each, (), True)


def side(found: Sequence[Pooled]) -> str:
    """Returns where the first of each pair stands, if it is the same in all."""
    sides = {"ahead" if each.difference < 0 else "behind" for each in found}
    return sides.pop() if len(sides) == 1 else "ahead and behind"


def decided(found: Sequence[Pooled]) -> str:
    """Returns whether these differences are decided; words that no page holds where some are and some are not."""
    open_ones = [each.verdict == "not resolved" for each in found]
    return "undecided" if all(open_ones) else "decided in part" if any(open_ones) else "decided"


def short() -> str:
    """Returns where the loop stands on `test`, in a few words."""
    both = [beside(arm) for arm in ONCE]
    tokens, flops = (f"{abs(each.difference):.3f} {side([each])}" for each in both)
    return f"{tokens} at equal tokens and {flops} at equal training FLOPs ({decided(both)})"


def cell() -> str:
    """Returns the same on both texts, as the first table of docs/when-to-loop-retrofit.md has it."""
    tokens, flops = ([beside(arm, text) for text in TEXTS] for arm in ONCE)
    told = f"**{side(tokens)}** by {sizes(tokens)} nats at equal tokens (two texts), for {cost():.1f} times the training FLOPs"
    own = f"{RATED}, three seeds, all {decided([*tokens, *flops])}"
    return f"{told}; **{side(flops)}** by {sizes(flops)} at equal training FLOPs ({own})"


def cost() -> float:
    """Returns the training FLOPs of the looped arm by those of the layers run once on as many tokens."""
    loop, once = (runs()[arm][0]["flops"] for arm in (LOOPED, EQUAL))
    return loop / once


def short_claims() -> Iterator[str]:
    """Yields the answer, and the settings that rows tell."""
    tokens, flops = (beside(arm) for arm in ONCE)
    first = f"the loop is {abs(tokens.difference):.3f} nats {side([tokens])} for {cost():.1f} times the FLOPs"
    both = decided([beside(arm, text) for arm in ONCE for text in TEXTS])
    then = f"{abs(flops.difference):.3f} {side([flops])} where the layers that run once spend these FLOPs on more text"
    yield f"{first}, and {then} ({both} on both texts; three seeds)"
    yield f"the best of {words([*map(plain_rate, RATES)])}"
    yield f"It is {plain_rate(own_rate())} for all three"
    (loop,), (longer,) = ({run["updates"] for run in runs()[arm]} for arm in (LOOPED, LONGER))
    yield f"with {loop:,} updates ({longer:,} at equal FLOPs; the grid had {UPDATES[GRID]:,} and {grid_longer():,})"


def own_rate() -> float:
    """Returns the rate that is the best of every arm; other sentences are due where they differ."""
    (best,) = set(best_rates(wide_rows(), RATES).values())
    return best


def grid_longer() -> int:
    """Returns the updates of the layers of equal FLOPs in the grid."""
    (found,) = {run["updates"] for run in wide_rows() if run["group"] == GRID and arm_of(run) == LONGER}
    return int(found)


def table_lines() -> Iterator[str]:
    """Yields the lines of the table."""
    steps = {LOOPED: TRAINED, EQUAL: 1, LONGER: 1}
    for name, arm in {"looped, at depth 4": LOOPED, "run once, equal tokens": EQUAL, "run once, equal FLOPs": LONGER}.items():
        run, depth = runs()[arm][0], steps[arm]
        layers = len(LAYERS) + CORE * (depth - 1)
        losses = [f"{mean_loss(reports(runs()[arm], text), depth):.3f}" for text in TEXTS]
        pairs = ["–" if arm == LOOPED else interval(beside(arm, text)) for text in TEXTS]
        yield line(name, f"{run['tokens'] / 1e6:.1f}", f"{run['flops'] / 1e15:.1f}", str(layers), *losses, *pairs)


def interval(found: Pooled) -> str:
    """Returns a difference with its interval over seeds."""
    low, high = (difference(end, 3) for end in found.over_seeds)
    return f"{difference(found.difference, 3)} ({low} to {high})"


def side_claims() -> Iterator[str]:
    """Yields where the loop stands, and what the rivals gain from more text."""
    for arm, told in ONCE.items():
        both = [beside(arm, text) for text in TEXTS]
        seeds = [value for each in both for value in each.of_seeds]
        same = len({value > 0 for value in seeds}) == 1
        yield when(same, f"At {told} the loop is {side(both)}, by {sizes(both)} ({decided(both)}; on {of(3, 3)} seeds)")
    more = [each for text in TEXTS if (each := pooled(runs()[LONGER], runs()[EQUAL], text)) is not None]
    lead = [beside(EQUAL, text) for text in TEXTS]
    larger = all(one.difference < other.difference for one, other in zip(more, lead, strict=True)) and side(more) == "ahead"
    yield when(larger, f"these FLOPs in more text are worth {sizes(more)} ({decided(more)}), in the loop {sizes(lead)}")
    yield f"a token passes {len(LAYERS) + CORE * (TRAINED - 1)} layers instead of {len(LAYERS)}"


@cache
def fixed_loss(depth: int, text: str) -> float:
    """Returns the loss of the loop at a fixed depth."""
    return statistics.mean(seed[depth] for seed in by_depth(runs()[LOOPED], text))


def depth_claims() -> Iterator[str]:
    """Yields the table of depths, and what is said of them."""
    yield line("steps", *map(str, STEPS))
    for text in TEXTS:
        yield line(f"`{text}`", *(f"{fixed_loss(depth, text):.3f}" for depth in STEPS))
    risen, later = ([deeper(depth, than, text) for text in TEXTS] for depth, than in ((8, TRAINED), (16, 8)))
    yield when(side(risen) == "behind", f"From depth 4 to 8 the loss rises by {sizes(risen)} ({decided(risen)})")
    yield when(side(later) == "behind", f"from 8 to 16 by {sizes(later)} ({decided(later)})")
    grid = {run["rate"]: run["texts"]["valid"] for run in wide_rows() if run["group"] == GRID and arm_of(run) == LOOPED}
    at_two = [f"{grid[each]['loss'][grid[each]['depth'].index(2)]:.2f}" for each in sorted(grid)]
    yield f"depth 2 has a loss of {words(at_two)} at the four rates (seed 0)"


def exit_claims() -> Iterator[str]:
    """Yields what exit rules give at equal mean depth."""
    yield f"at most {MOST} steps, at means of {words(MEANS)}"
    for mean in (3, TRAINED):
        sizes = " and ".join(from_to([at_mean(rule, text, mean).difference for rule in SIMPLE], 2) for text in TEXTS)
        whole = all_at(mean)
        yield when(side(whole) == "behind", f"At a mean of {mean} all four are behind, by {sizes} ({decided(whole)})")
    whole = all_at(6)
    behind = f"At a mean of 6 all four are behind, by {sizes_of(whole)} on either text"
    count = WORDS[sum(each.verdict == "higher" for each in whole)]
    yield when(side(whole) == "behind", f"{behind}; {count} of the {WORDS[len(whole)]} differences are decided")
    early = [rule for rule in SIMPLE if side(all_at(2, rule)) == "ahead" and decided(all_at(2, rule)) == "decided"]
    whole = all_at(2, *early)
    yield f"At a mean of 2 {words(early)} are ahead, by {sizes_of(whole)} ({decided(whole)})"
    yield f"with losses of {from_to([rule_loss(rule, text, 2) for rule in early for text in TEXTS], 2)}"
    rest = all_at(2, *(rule for rule in SIMPLE if rule not in early))
    yield f"the other two differ from the fixed depth by at most {max(abs(each.difference) for each in rest):.3f}"
    yield from least_claims()


def least_claims() -> Iterator[str]:
    """Yields the least losses of rules on `test`, and how far other fixed depths are from the trained one on both texts."""
    losses = {(rule, mean): rule_loss(rule, "test", mean) for rule in SIMPLE for mean in MEANS}
    rule, mean = min(losses, key=lambda each: losses[each])
    yield f"The least loss of any rule at these means is {losses[rule, mean]:.3f} ({rule}, a mean of {mean})"
    own = [[run["exits"]["test"][rule]["own"][1] for run in runs()[LOOPED]] for rule in SIMPLE]
    yield f"at the rules' default limits {from_to([sum(each) / len(each) for each in own])}"
    yield f"the fixed depth of {TRAINED} has {fixed_loss(TRAINED, 'test'):.3f}"
    others = [fixed_loss(depth, text) - fixed_loss(TRAINED, text) for depth in {*STEPS} - {TRAINED} for text in TEXTS]
    yield f"every other depth that was measured is at least {min(others):.2f} nats worse in the mean"


def all_at(mean: int, *rules: str) -> list[Pooled]:
    """Returns some exit rules, all where none is named, less a fixed depth of as many steps, on both texts."""
    return [at_mean(rule, text, mean) for rule in rules or SIMPLE for text in TEXTS]


def sizes_of(found: Sequence[Pooled]) -> str:
    """Returns from where to where the differences go, whatever their sign."""
    return from_to([each.difference for each in found], 2)


def rule_loss(rule: str, text: str, mean: int) -> float:
    """Returns the loss of an exit rule."""
    return fixed_loss(mean, text) + at_mean(rule, text, mean).difference


@cache
def at_mean(rule: str, text: str, mean: int) -> Pooled:
    """Returns an exit rule less a fixed depth of as many steps."""
    found = against_fixed(runs()[LOOPED], rule, text, mean)
    if found is None or found.seeds != SEEDS:
        raise ValueError(f"{rule}, {text}, a mean of {mean}: not measured with seeds {SEEDS}")
    return found


def exits_in_short() -> str:
    """Returns what exit rules give at the trained depth, in a few words."""
    found = all_at(TRAINED)
    told = f"at a mean of the {WORDS[TRAINED]} trained steps all {WORDS[len(SIMPLE)]} rules are behind the fixed depth"
    return when(side(found) == "behind", f"{told}, by {sizes_of(found)} nats ({decided(found)})")


def rate_claims() -> Iterator[str]:
    """Yields what the grid says: one seed, on `valid`."""
    losses, best = rates_of(wide_rows()), own_rate()
    gained = [f"{losses[arm][EARLIER] - losses[arm][best]:.3f}" for arm in (LOOPED, EQUAL, LONGER)]
    earlier, later = map(plain_rate, (EARLIER, best))
    yield f"From {earlier} to {later} the loop gains {gained[0]}, the layers run once {gained[1]} and {gained[2]}"
    there = [losses[LOOPED][EARLIER] - losses[arm][EARLIER] for arm in ONCE]
    here = [losses[LOOPED][best] - losses[arm][best] for arm in ONCE]
    told = [" and ".join(f"{'ahead' if apart < 0 else 'behind'} by {abs(apart):.3f}" for apart in each) for each in (there, here)]
    yield f"at {earlier} the loop is {told[0]}, at {later} {told[1]}"
