"""What pages ask of the wide-core retrofit's rows: on text with each arm at its own rate, before and after chats at one rate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cache

import torch

from experiments.halting.reading import SIMPLE
from experiments.leaving.reading import FIXED, MEANS, leaving
from experiments.leaving.tables import THIRDS, against_fixed, in_part
from experiments.ouroboros.rate_tables import at_own_rates
from experiments.ouroboros.rates import GRID, SEEDS, arm_of, best_rates, rates_of
from experiments.ouroboros.tables import Runs
from experiments.pages import Result, results
from experiments.seeds import Pooled, averaged, mean_loss, pooled, reports
from experiments.sft.plan import LAYERS, TRAINED
from experiments.sft.tables import read
from experiments.sft.wide import DEPTHS, EQUAL, LONGER, LOOPED, RATES, TEXTS
from experiments.sft.wide_tables import STEPS, by_depth, thirds
from experiments.templates.rows import RESULTS
from experiments.templates.words import Gaps
from loopwright.evaluation.paired import Paired, compare
from loopwright.metrics.intervals import Mean, by_unit, ratio_mean

ONCE = {EQUAL: "equal tokens", LONGER: "equal training FLOPs"}
ARMS = {LOOPED: TRAINED, EQUAL: 1, LONGER: 1}  # and the depth at which each is read
EASY, MIDDLE, HARD = THIRDS
PARTS = [(text, third) for text in TEXTS for third in THIRDS]
MIDDLE_STEPS = [depth for depth in STEPS if 2 < depth < 16]  # of the table of thirds
CORE = 6  # layers that are looped
PASSED = {arm: len(LAYERS) + CORE * (depth - 1) for arm, depth in ARMS.items()}  # layers that a token passes
ONE_RATE = 5e-4  # that of the runs before
CHAT_TOKENS = 20_388_948  # of the text that these read
Arm = tuple[str, int]  # and a depth


@cache
def wide_rows() -> list[Result]:
    """Returns all rows at own rates."""
    return list(results([str(RESULTS / "sft/wide.jsonl")], ()))


@cache
def runs() -> Runs:
    """Returns the seeds of each arm at its own rate."""
    return at_own_rates(wide_rows(), RATES)


@cache
def beside(rival: str, text: str = "test", third: str | None = None, by: str = EQUAL) -> Pooled:
    """Returns the loop less layers run once, on a third of the documents where one is named; each must be best at its depth."""
    sides = [list(runs()[arm]) for arm in (LOOPED, rival)]
    if third is not None:
        sides = [in_part(side, text, documents(text, third, by)) for side in sides]
    found = pooled(*sides, text)
    if found is None or found.seeds != SEEDS or found.depths != (TRAINED, 1):
        raise ValueError(f"{rival}, {text}, {third}: no seeds {SEEDS}, or depths other than {TRAINED} and 1 are best")
    return found


def on_texts(rival: str) -> list[Pooled]:
    """Returns the loop less layers run once on both texts."""
    return [beside(rival, text) for text in TEXTS]


def more() -> list[Pooled]:
    """Returns the layers of equal FLOPs less those of equal tokens on both texts."""
    return [found for text in TEXTS if (found := pooled(runs()[LONGER], runs()[EQUAL], text)) is not None]


def cost() -> float:
    """Returns the training FLOPs of the looped arm by those of the layers run once on as many tokens."""
    return float(runs()[LOOPED][0]["flops"] / runs()[EQUAL][0]["flops"])


def millions(arm: str) -> str:
    """Returns the tokens that an arm reads, in millions."""
    return f"{runs()[arm][0]['tokens'] / 1e6:.1f}"


def petaflops(arm: str) -> str:
    """Returns the FLOPs of an arm's training, in PFLOP."""
    return f"{runs()[arm][0]['flops'] / 1e15:.1f}"


def loss(arm: str, text: str) -> float:
    """Returns the loss of an arm at its depth, the mean over seeds."""
    return mean_loss(reports(runs()[arm], text), ARMS[arm])


@cache
def at_depth(depth: int, text: str, third: str | None = None) -> float:
    """Returns the loop's loss at a fixed depth, on a third of the documents where one is named; the mean over the seeds."""
    part = None if third is None else documents(text, third)
    return statistics.mean(seed[depth] for seed in by_depth(runs()[LOOPED], text, part))


def deeper(depth: int, than: int) -> list[Pooled]:
    """Returns the loop at one depth less itself at another, on both texts."""
    found = []
    for text in TEXTS:
        mine = reports(runs()[LOOPED], text)
        whole = compare(averaged(mine, depth), averaged(mine, than))
        each = tuple(mean_loss([one], depth) - mean_loss([one], than) for one in mine)
        ends = whole.difference, whole.difference_low, whole.difference_high
        found.append(Pooled(SEEDS, (depth, than), *ends, each, (), True))
    return found


def own_rate() -> float:
    """Returns the rate that is the best of every arm."""
    (best,) = set(best_rates(wide_rows(), RATES).values())
    return best


def updates(arm: str, group: str = "") -> int:
    """Returns the updates of an arm's runs: of the seeds, or of the grid."""
    chosen = [run for run in wide_rows() if run["group"] == group and arm_of(run) == arm] if group else runs()[arm]
    (found,) = {run["updates"] for run in chosen}
    return int(found)


def grid_at(depth: int) -> list[float]:
    """Returns the loop's loss on `valid` at a depth, by rate (seed 0)."""
    grid = {run["rate"]: run["texts"]["valid"] for run in wide_rows() if run["group"] == GRID and arm_of(run) == LOOPED}
    return [grid[rate]["loss"][grid[rate]["depth"].index(depth)] for rate in sorted(grid)]


def gained(arm: str) -> float:
    """Returns what an arm gains on `valid` from its own rate beside the earlier one (seed 0)."""
    return float(rates_of(wide_rows())[arm][ONE_RATE] - rates_of(wide_rows())[arm][own_rate()])


def at_rate(value: float) -> list[float]:
    """Returns the loop less layers run once, on equal tokens and at equal FLOPs, at a rate of the grid."""
    losses = rates_of(wide_rows())
    return [float(losses[LOOPED][value] - losses[arm][value]) for arm in ONCE]


@cache
def exit_at(rule: str, text: str, mean: int) -> Pooled:
    """Returns an exit rule less a fixed depth of as many steps."""
    found = against_fixed(runs()[LOOPED], rule, text, mean)
    if found is None or found.seeds != SEEDS:
        raise ValueError(f"{rule}, {text}, a mean of {mean}: not measured with seeds {SEEDS}")
    return found


def exits_at(mean: int, rules: Sequence[str] = SIMPLE, texts: Sequence[str] = TEXTS) -> list[Pooled]:
    """Returns exit rules less a fixed depth of as many steps, on some texts."""
    return [exit_at(rule, text, mean) for rule in rules for text in texts]


def exit_loss(rule: str, text: str, mean: int) -> float:
    """Returns the loss of an exit rule."""
    return at_depth(mean, text) + exit_at(rule, text, mean).difference


def leading(mean: int) -> list[str]:
    """Returns the exit rules that are ahead of the fixed depth on both texts, decided."""
    return [rule for rule in SIMPLE if {each.verdict for each in exits_at(mean, [rule])} == {"lower"}]


def exit_losses(rules: Sequence[str], mean: int) -> list[float]:
    """Returns the losses of exit rules on both texts."""
    return [exit_loss(rule, text, mean) for rule in rules for text in TEXTS]


def least_exit() -> tuple[float, str, int]:
    """Returns the least loss of a rule on `test`: which one has it, and at which mean."""
    return min((exit_loss(rule, "test", mean), rule, mean) for rule in SIMPLE for mean in MEANS)


def own_limits() -> list[float]:
    """Returns the loss of each rule on `test` at its default limit."""
    return [statistics.mean(run["exits"]["test"][rule]["own"][1] for run in runs()[LOOPED]) for rule in SIMPLE]


def other_depths() -> list[float]:
    """Returns how far the loop is above its trained depth at the others, on both texts."""
    return [at_depth(depth, text) - at_depth(TRAINED, text) for depth in STEPS if depth != TRAINED for text in TEXTS]


@cache
def documents(text: str, third: str, arm: str = EQUAL) -> frozenset[int]:
    """Returns the documents of a third, split by the losses of an arm."""
    return thirds(runs(), text, arm)[third]


def once_on(text: str, third: str) -> float:
    """Returns the loss of the layers run once (equal tokens) on a third of the documents."""
    return mean_loss(reports(in_part(runs()[EQUAL], text, documents(text, third)), text), 1)


def on_thirds(rival: str) -> dict[tuple[str, str], Pooled]:
    """Returns the loop less layers run once on each third of each text."""
    return {part: beside(rival, *part) for part in PARTS}


def undecided(found: dict[tuple[str, str], Pooled]) -> list[tuple[str, str]]:
    """Returns the thirds whose difference is not decided."""
    return [part for part, each in found.items() if each.verdict == "not resolved"]


def middle_gains_most() -> bool:
    """Whether the loop gains most on middle documents of both texts, at equal tokens."""
    return all(min(THIRDS, key=lambda third: beside(EQUAL, text, third).difference) == MIDDLE for text in TEXTS)


def rises(text: str) -> list[float]:
    """Returns how much higher the loop's loss is at twice its trained depth, by third."""
    return [at_depth(2 * TRAINED, text, third) - at_depth(TRAINED, text, third) for third in THIRDS]


def moved() -> int:
    """Returns how many documents of a third change at most where another arm splits them; no verdict may change."""
    found = 0
    for arm in (LOOPED, LONGER):
        for part in PARTS:
            found = max(found, len(documents(*part) - documents(*part, arm)))
            if any(beside(rival, *part, arm).verdict != beside(rival, *part).verdict for rival in ONCE):
                raise ValueError(f"{part}: a verdict changes where {arm!r} splits the documents")
    return found


@cache
def trained_is_best() -> bool:
    """Whether every document of both texts has its least loss at the trained depth, with every seed."""
    for text in TEXTS:
        for run in runs()[LOOPED]:
            (whole,), (fixed,) = reports([run], text), reports([leaving(run, FIXED)], text)
            losses = torch.stack([(whole if depth in DEPTHS else fixed).at(depth)[0] for depth in STEPS])
            if set(losses.argmin(0).tolist()) != {STEPS.index(TRAINED)}:
                return False
    return True


def hard_less(other: str, first: Arm, second: Arm) -> list[Gaps]:
    """Returns how much larger one arm less another is on hard documents than on others, on both texts."""
    found = []
    for text in TEXTS:
        (hard, of_hard), (rest, of_rest) = (_on_third(first, second, text, third) for third in (HARD, other))
        low, high = (of_hard - of_rest).ends()
        found.append(Gaps(tuple(a - b for a, b in zip(hard, rest, strict=True)), (float(low), float(high))))
    return found


@cache
def _on_third(first: Arm, second: Arm, text: str, third: str) -> tuple[tuple[float, ...], Mean]:
    sides = [reports(in_part(runs()[arm], text, documents(text, third)), text) for arm, _ in (first, second)]
    seeds = tuple(mean_loss([one], first[1]) - mean_loss([other], second[1]) for one, other in zip(*sides, strict=True))
    (losses, targets, units), (others, _, _) = (
        averaged(found, depth).at() for found, (_, depth) in zip(sides, (first, second), strict=True)
    )
    return seeds, ratio_mean(by_unit(losses - others, units), by_unit(targets, units))


def exits_on_thirds() -> list[Pooled]:
    """Returns each exit rule, at a mean of the trained steps over all documents, less the fixed depth, on each third."""
    found = []
    for rule in SIMPLE:
        both = [[leaving(run, name) for run in runs()[LOOPED]] for name in (rule, FIXED)]
        for text, third in PARTS:
            parts = [in_part(side, text, documents(text, third)) for side in both]
            found.append(pooled(*parts, text, TRAINED))
    if any(each is None or each.seeds != SEEDS for each in found):
        raise ValueError(f"exit rules were not measured with seeds {SEEDS} on all thirds")
    return [each for each in found if each is not None]


@cache
def chats() -> dict[str, list[Result]]:
    """Returns the runs at one rate by label: on text, then on chats. No arm may have read its text twice."""
    found = read(RESULTS / "sft/rows.jsonl")
    if any(run["tokens"] > CHAT_TOKENS for runs in found.values() for run in runs):
        raise ValueError(f"sft/rows.jsonl: a run read more than {CHAT_TOKENS:,} tokens")
    return found


def chat_losses(label: str, text: str) -> dict[int, float]:
    """Returns the loss of a text by depth, the mean over seeds."""
    found = [run["texts"][text] for run in chats()[label]]
    return {depth: statistics.mean(each["loss"][place] for each in found) for place, depth in enumerate(found[0]["depth"])}


def risen(label: str, text: str) -> list[float]:
    """Returns how much higher the loss is at depth 16 than at the trained one, seed by seed."""
    return [mean_loss([each], 16) - mean_loss([each], TRAINED) for each in reports(chats()[label], text)]


def rise(label: str, text: str) -> float:
    """Returns the mean of these."""
    return statistics.mean(risen(label, text))


def once_less(label: str, rival: str, text: str) -> Paired:
    """Returns a looped model at its depth less an unlooped one; one whose interval over documents holds 0 is refused."""
    first, second = (reports(chats()[each], text) for each in (label, rival))
    found = compare(averaged(first, TRAINED), averaged(second, 1))
    if found.difference_low * found.difference_high < 0:
        raise ValueError(f"{label} and {rival}: the interval holds 0; allowed: a difference")
    return found


def answer_sides() -> list[str]:
    """Returns where the wide-core retrofit stands on answers to layers run once, on equal tokens and at equal FLOPs."""
    found = [once_less("heal", rival, "chats") for rival in ("unlooped", "unlooped-flops")]
    return sorted({"ahead" if each.difference < 0 else "behind" for each in found})


def right(label: str, depth: int) -> int:
    """Returns how many questions a model that was tuned on chats answers rightly at a depth, all seeds together."""
    found = [run["answers"] for run in chats()[label]]
    return sum(each["right"][each["depth"].index(depth)] for each in found)


def asked(label: str) -> int:
    """Returns how many questions it was asked, all seeds together."""
    return sum(run["answers"]["questions"] for run in chats()[label])
