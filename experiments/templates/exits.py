"""What pages ask of exit rules on hops and swaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean

from experiments.hops.depth_tables import exit_means, models
from experiments.hops.plan import HARDNESS, SWAPS_OWN
from experiments.hops.reading import exact_of
from experiments.pages import Result
from experiments.templates.hops import found

RULE, OWN = "entropy:0.1", "entropy:0.5"
CHANGE, DIVERGENCE, STABLE = "change:0.03", "divergence:0.01", "stable:2"
TRAINED = ("easy", "middle", "hard")
KEPT = 0.15  # points: what is lost at most where accuracy is kept "within 0.1"
LEAVES = 0.5  # of the steps allowed, at most, on easy rows: otherwise a rule hardly leaves


@dataclass(frozen=True)
class Shown:
    """A model as the page names it, and the steps allowed there: many, or as many as were trained where more of them spoil it."""

    name: str
    group: str
    model: str
    trained: int
    allowed: int
    seeds: tuple[int, ...] = (0, 1, 2)

    @property
    def runs(self) -> list[Result]:
        """The runs of its seeds."""
        return [run for run in models(found(), self.group)[self.model] if run["seed"] in self.seeds]

    def lost(self, rule: str, limit: int, hard: str) -> float:
        """Returns how far a rule is behind full depth, in points."""
        full = fmean(exact_of(run, hard, limit) for run in self.runs)
        return 100 * (full - self.exact(rule, limit, hard))

    def exact(self, rule: str, limit: int, hard: str) -> float:
        """Returns exact match under a rule."""
        return exit_means(self.runs, rule, hard, str(limit))[1]

    def steps(self, rule: str, limit: int, hard: str) -> float:
        """Returns mean steps under a rule."""
        return exit_means(self.runs, rule, hard, str(limit))[0]

    @property
    def works(self) -> bool:
        """Whether entropy at 0.1 works."""
        return self.works_by(RULE)

    def works_by(self, rule: str) -> bool:
        """Whether a rule keeps full depth's accuracy, leaves, and takes more steps for harder rows."""
        steps = [self.steps(rule, self.allowed, hard) for hard in TRAINED]
        kept = all(self.lost(rule, self.allowed, hard) <= KEPT for hard in TRAINED)
        return kept and steps == sorted(steps) and steps[0] <= LEAVES * self.allowed


HOPS, SWAPS = "hops, 4 to 12 steps", "swaps, 8 steps"
RANDOM, WINDOW, WIDE = "swaps, 4 to 12 steps", "swaps, window, 16 steps", "swaps, window, 8 to 24 steps"
GROWN, TWO = "hops, grown from 3 to 8 steps", "hops, 2⊗4, 4 steps"
SHOWN = {
    each.name: each
    for each in (
        Shown(HOPS, "random", "1⊗8, depth 4 to 12", 12, 32),
        Shown(SWAPS, "chain_rates", f"1⊗8, all in sight, rate {SWAPS_OWN:g}", 8, 80),
        Shown(RANDOM, "chain", "1⊗8, all in sight, depth 4 to 12", 12, 80),
        Shown(WINDOW, "chain", "1⊗16, window 2", 16, 80),
        Shown(WIDE, "chain", "1⊗16, window 2, depth 8 to 24", 24, 80),
        Shown(GROWN, "grown", "1⊗8, depth grown from 3 to 8", 8, 8),
        Shown(TWO, "own", "2⊗4, rate 0.002", 4, 4),
    )
}


@cache
def working() -> list[Shown]:
    """Returns the models in which entropy at 0.1 works."""
    return [each for each in SHOWN.values() if each.works]


def failing() -> list[Shown]:
    """Returns the others."""
    return [each for each in SHOWN.values() if each not in working()]


def exact(name: str, rule: str, limit: int) -> list[float]:
    """Returns exact match (%) of a model under a rule, on easy, middle and hard rows."""
    return [100 * SHOWN[name].exact(rule, limit, hard) for hard in TRAINED]


def full_of(shown: Shown, hard: str, depth: int) -> float:
    """Returns exact match at a fixed depth, mean of the seeds."""
    return fmean(exact_of(run, hard, depth) for run in shown.runs)


def full(name: str, depth: int) -> list[float]:
    """Returns that (%) on easy, middle and hard rows."""
    return [100 * full_of(SHOWN[name], hard, depth) for hard in TRAINED]


def lost(name: str, rule: str, limit: int) -> list[float]:
    """Returns the points that a rule loses on them."""
    return [SHOWN[name].lost(rule, limit, hard) for hard in TRAINED]


def steps_by(shown: Shown, rule: str) -> list[float]:
    """Returns the mean steps of a rule on them."""
    return [shown.steps(rule, shown.allowed, hard) for hard in TRAINED]


def steps_of(hard: str) -> str:
    """Returns the mean steps of the models in which entropy works on rows of a hardness: "3 to 4"."""
    steps = [each.steps(RULE, each.allowed, hard) for each in working()]
    return f"{min(steps):.0f} to {max(steps):.0f}"


def cell(shown: Shown, hard: str) -> str:
    """Returns mean steps, exact match under entropy, and at full depth in brackets."""
    steps, kept = (of_rule(RULE, shown.allowed, hard) for of_rule in (shown.steps, shown.exact))
    return f"{steps:.1f}; {100 * kept:.1f} ({100 * full_of(shown, hard, shown.allowed):.1f})"


def worst() -> float:
    """Returns the most points that entropy loses in the models where it fails."""
    return max(each.lost(RULE, each.allowed, hard) for each in failing() for hard in TRAINED)


def worst_trained() -> float:
    """Returns the most that it loses where it works, with at most the trained steps."""
    return max(each.lost(RULE, each.trained, hard) for each in working() for hard in TRAINED)


def worst_of_two() -> float:
    """Returns the most that one seed of 2⊗4 loses on middle rows."""
    return max(100 * (exact_of(run, "middle", 4) - run["exits"]["4"][RULE]["middle"][1]) for run in SHOWN[TWO].runs)


def fresh_work() -> bool:
    """Whether entropy works on the rows of swaps with all in sight that had no part in choosing its limit."""
    return SHOWN[SWAPS].works and replace(SHOWN[RANDOM], seeds=(1, 2)).works


def fresh_fail() -> bool:
    """Whether it works on those with a window."""
    return any(replace(SHOWN[name], seeds=(1, 2)).works for name in (WINDOW, WIDE))


@cache
def with_window() -> list[Shown]:
    """Returns the models with a window, each seed by itself."""
    named = {WINDOW: "16 steps", WIDE: "8 to 24 steps"}
    return [replace(SHOWN[name], name=f"seed {n} of {shown}", seeds=(n,)) for name, shown in named.items() for n in range(3)]


def one_step_more() -> bool:
    """Whether entropy takes about one step more than there are swaps in the runs with a window that leave."""
    swaps = [fmean(HARDNESS[hard]) for hard in TRAINED]
    more = [step - count for each in with_window() if each.works for step, count in zip(steps_by(each, RULE), swaps, strict=True)]
    return {round(each) for each in more} == {1}


def all_work_by_own(found: Sequence[Shown]) -> bool:
    """Whether the engine's own limit of entropy works in all of them."""
    return all(each.works_by(OWN) for each in found)


def none_lost_by_own(found: Sequence[Shown]) -> bool:
    """Whether none of them loses anything by it."""
    return max(each.lost(OWN, each.allowed, hard) for each in found for hard in TRAINED) <= KEPT


def stays() -> list[float]:
    """Returns the mean steps of the runs with a window that hardly leave."""
    return [step for each in with_window() if not each.works for step in steps_by(each, RULE)]


def stay_kept() -> bool:
    """Whether these keep the accuracy of full depth."""
    rest = [each for each in with_window() if not each.works]
    return all(each.lost(RULE, each.allowed, hard) <= KEPT for each in rest for hard in TRAINED)


def all_past_best() -> bool:
    """Whether full depth is past its best on hard rows in all models where entropy works."""

    def best(shown: Shown) -> float:
        return max(full_of(shown, "hard", depth) for depth in shown.runs[0]["tests"]["1"]["depth"])

    return all(best(each) - full_of(each, "hard", each.allowed) > KEPT / 100 for each in working())


def better_fixed(name: str, depth: int) -> bool:
    """Whether a fixed depth is as good as the rule or better."""
    rule = exact(name, RULE, SHOWN[name].allowed)
    return all(fixed >= ours for fixed, ours in zip(full(name, depth), rule, strict=True))


def change_stays() -> bool:
    """Whether `change` hardly ever leaves before the end on hops."""
    hops = [(SHOWN[name], limit) for name in (HOPS, GROWN, TWO) for limit in (SHOWN[name].trained, 32)]
    return all(each.steps(CHANGE, limit, hard) > 0.98 * limit for each, limit in hops for hard in TRAINED)


def divergence_mixed() -> bool:
    """Whether `divergence` keeps more of the middle rows than entropy and fewer of the hard ones in two models."""
    both = [[exact(name, rule, SHOWN[name].trained) for rule in (DIVERGENCE, RULE)] for name in (TWO, GROWN)]
    return all(ours[1] > entropy[1] and ours[2] <= entropy[2] for ours, entropy in both)


def stable_loses() -> list[float]:
    """Returns the points of hard rows that `stable` loses, by model."""
    return [each.lost(STABLE, each.allowed, "hard") for each in SHOWN.values()]
