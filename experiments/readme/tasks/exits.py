"""What docs/when-to-loop-tasks.md says about exit rules on hops and swaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from experiments.hops.depth_tables import exit_means, models
from experiments.hops.plan import HARDNESS, SWAPS_OWN
from experiments.hops.reading import exact_of
from experiments.pages import Result
from experiments.readme.rows import WORDS, line, of, rows_of, when

RULE, OWN = "entropy:0.1", "entropy:0.5"
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
        full = sum(exact_of(run, hard, limit) for run in self.runs) / len(self.runs)
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
def found() -> list[Result]:
    """Returns all rows of the study."""
    return rows_of("hops/runs.jsonl")


def beside(value: Callable[[str], float], hards: tuple[str, ...] = TRAINED) -> str:
    """Returns a number for each hardness, side by side."""
    return " / ".join(f"{value(hard):.1f}" for hard in hards)


def exact(name: str, rule: str, limit: int, hards: tuple[str, ...] = TRAINED) -> str:
    """Returns exact match (%) under a rule by hardness, side by side."""
    return beside(lambda hard: 100 * SHOWN[name].exact(rule, limit, hard), hards)


def full(name: str, limit: int) -> str:
    """Returns exact match (%) at full depth by hardness, side by side."""
    runs = SHOWN[name].runs
    return beside(lambda hard: 100 * sum(exact_of(run, hard, limit) for run in runs) / len(runs))


def lost(name: str, rule: str, limit: int) -> str:
    """Returns the points that a rule loses by hardness, side by side."""
    return beside(lambda hard: SHOWN[name].lost(rule, limit, hard))


def claims() -> Iterator[str]:
    """Yields what the rows say: the table, how many models leave by entropy and how the others fail, and the other rules."""
    for each in SHOWN.values():
        yield line(each.name, str(len(each.runs)), str(each.allowed), *(cell(each, hard) for hard in HARDNESS))
    yield from entropy_claims()
    yield from fresh_claims()
    yield from window_claims()
    yield from rival_claims()
    yield from own_limit_claims()
    yield from rest_claims()


def cell(shown: Shown, hard: str) -> str:
    """Returns mean steps, exact match under entropy, and at full depth in brackets."""
    complete = sum(exact_of(run, hard, shown.allowed) for run in shown.runs) / len(shown.runs)
    steps, kept = (of_rule(RULE, shown.allowed, hard) for of_rule in (shown.steps, shown.exact))
    return f"{steps:.1f}; {100 * kept:.1f} ({100 * complete:.1f})"


@cache
def working() -> list[Shown]:
    """Returns the models in which entropy at 0.1 works."""
    return [each for each in SHOWN.values() if each.works]


def steps_of(hard: str) -> str:
    """Returns the mean steps of these models on rows of a hardness: "3 to 4"."""
    steps = [each.steps(RULE, each.allowed, hard) for each in working()]
    return f"{min(steps):.0f} to {max(steps):.0f}"


def entropy_claims() -> Iterator[str]:
    """Yields in how many models entropy at 0.1 works, and how it fails in the others."""
    many = of(len(working()), len(SHOWN))
    yield f"In {many} models entropy at 0.1 keeps the accuracy of full depth"
    yield f"works in {many} models"
    yield f"worked in {many} models of hops and swaps that were tried"
    yield f"{steps_of('easy')} steps for easy rows, {steps_of('hard')} for hard ones"
    most = max(each.lost(RULE, each.trained, hard) for each in working() for hard in TRAINED)
    yield f"with at most the trained steps it loses up to {most:.1f} points"
    failing = [each for each in SHOWN.values() if each not in working()]
    yield f"It fails in {WORDS[len(failing)]} models"
    worst = max(each.lost(RULE, each.allowed, hard) for each in failing for hard in TRAINED)
    yield f"in {WORDS[len(failing)]} it loses up to {worst:.1f} points or hardly leaves"
    yield f"loses {lost(GROWN, RULE, 8)} points on easy, middle and hard rows"
    worst = max(100 * (exact_of(run, "middle", 4) - run["exits"]["4"][RULE]["middle"][1]) for run in SHOWN[TWO].runs)
    yield f"loses {lost(TWO, RULE, 4)} ({worst:.1f} on middle rows with one of {WORDS[len(SHOWN[TWO].runs)]} seeds)"


def fresh_claims() -> Iterator[str]:
    """Yields whether entropy works with the seeds of swaps that had no part in choosing its limit."""
    works = SHOWN[SWAPS].works and all(replace(SHOWN[name], seeds=(1, 2)).works for name in (RANDOM,))
    yield when(works, "On the fresh rows of swaps with all in sight the rule works too")
    fails = not any(replace(SHOWN[name], seeds=(1, 2)).works for name in (WINDOW, WIDE))
    yield when(fails, "on those with a window it does not")


def window_claims() -> Iterator[str]:
    """Yields in which runs with a window entropy leaves early, with how many steps."""
    named = {WINDOW: "16 steps", WIDE: "8 to 24 steps"}
    one = [
        replace(SHOWN[name], name=f"seed {seed} of {shown}", seeds=(seed,)) for name, shown in named.items() for seed in range(3)
    ]
    leaving = [each for each in one if each.works]
    yield f"With a window it leaves in {of(len(leaving), len(one))} runs"
    yield f"With a window of two tokens it worked with {of(len(leaving), len(one))} runs"
    steps = " and ".join(beside(lambda hard, each=each: each.steps(RULE, each.allowed, hard)) for each in leaving)
    yield f"{' and '.join(each.name for each in leaving)}: {steps} steps for easy, middle and hard rows"
    swaps = {hard: sum(HARDNESS[hard]) / len(HARDNESS[hard]) for hard in TRAINED}
    more = [each.steps(RULE, each.allowed, hard) - swaps[hard] for each in leaving for hard in TRAINED]
    yield when(all(round(value) == 1 for value in more), "There it takes about one step more than there are swaps")
    yield when(all(each.works_by(OWN) for each in one), f"a limit of 0.5 works there with all {WORDS[len(one)]}")
    rest = [each for each in one if each not in leaving]
    kept = all(each.lost(RULE, each.allowed, hard) <= KEPT for each in rest for hard in TRAINED)
    stays = [each.steps(RULE, each.allowed, hard) for each in rest for hard in TRAINED]
    keeps = f"In the other {WORDS[len(rest)]} it keeps the accuracy of full depth too but hardly leaves"
    yield when(kept, f"{keeps} ({min(stays):.0f} to {max(stays):.0f} of {SHOWN[WIDE].allowed} steps)")


def rival_claims() -> Iterator[str]:
    """Yields how one fixed depth does beside the rule, where full depth is past its best."""
    past = [each for each in working() if best_of(each, "hard") - full_of(each, "hard", each.allowed) > KEPT / 100]
    yield when(past == working(), f"In all {WORDS[len(past)]} full depth is past its best on hard rows")
    yield when(past == working(), f"though in all {WORDS[len(past)]} one smaller fixed depth is as accurate or more so")
    for name, depth in ((HOPS, 12), (SWAPS, 13), (RANDOM, 12)):
        shown = SHOWN[name]
        better = all(full_of(shown, hard, depth) >= shown.exact(RULE, shown.allowed, hard) for hard in TRAINED)
        rule = exact(name, RULE, shown.allowed)
        yield when(better and shown in past, f"at depth {depth} {full(name, depth)} % (the rule: {rule})")


def full_of(shown: Shown, hard: str, depth: int) -> float:
    """Returns exact match at a fixed depth, mean of the seeds."""
    return sum(exact_of(run, hard, depth) for run in shown.runs) / len(shown.runs)


def best_of(shown: Shown, hard: str) -> float:
    """Returns the best exact match at any fixed depth, mean of the seeds."""
    return max(full_of(shown, hard, depth) for depth in shown.runs[0]["tests"]["1"]["depth"])


def own_limit_claims() -> Iterator[str]:
    """Yields what the engine's own limit of entropy loses."""
    middle = 100 * SHOWN[GROWN].exact(OWN, 8, "middle")
    yield f"the grown model loses {lost(GROWN, OWN, 8)} points (middle rows: from 100 to {middle:.1f} %)"
    yield f"2⊗4 loses {lost(TWO, OWN, 4)}"
    swaps = max(SHOWN[SWAPS].lost(OWN, 8, hard) for hard in TRAINED)
    yield f"Swaps with at most 8 steps lose up to {swaps:.1f}"
    both = [SHOWN[name] for name in (WINDOW, WIDE)]
    alone = [replace(each, seeds=(seed,)) for each in both for seed in each.seeds]
    kept = max(each.lost(OWN, each.allowed, hard) for each in alone for hard in TRAINED) <= KEPT
    steps = " and ".join(beside(lambda hard, each=each: each.steps(OWN, each.allowed, hard)) for each in both)
    yield when(kept, f"The two models with a window lose nothing by it with any seed, and take {steps} steps")


def rest_claims() -> Iterator[str]:
    """Yields what the rules that wait for rest do."""
    change, divergence = "change:0.03", "divergence:0.01"
    two = [SHOWN[SWAPS], SHOWN[RANDOM]]
    steps = [each.steps(change, 80, hard) for each in two for hard in TRAINED]
    yield when(
        all(each.lost(change, 80, hard) < 0 for each in two for hard in TRAINED),
        f"On swaps with all in sight, at most 80 steps, it leaves at {min(steps):.0f} to {max(steps):.0f} steps and is "
        f"better than full depth ({exact(SWAPS, change, 80)} % against {full(SWAPS, 80)} with the model of 8 steps)",
    )
    hops = [(SHOWN[name], limit) for name in (HOPS, GROWN, TWO) for limit in (SHOWN[name].trained, 32)]
    stays = all(each.steps(change, limit, hard) > 0.98 * limit for each, limit in hops for hard in TRAINED)
    yield when(stays, "on hops hardly ever leaves before the end")
    yield f"loses {max(SHOWN[name].lost(change, 80, 'hard') for name in (WINDOW, WIDE)):.0f} points on hard rows"
    yield f"with a window (16 steps) {exact(WINDOW, divergence, 80)} % are right"
    yield f"hops at random depth {exact(HOPS, divergence, 12)} %, where full depth (12) has {full(HOPS, 12)}"
    yield f"2⊗4 with at most 4 steps keeps {exact(TWO, divergence, 4)} %, where entropy at 0.1 has {exact(TWO, RULE, 4)}"
    ahead = {
        hard: [
            SHOWN[name].exact(divergence, SHOWN[name].trained, hard) > SHOWN[name].exact(RULE, SHOWN[name].trained, hard)
            for name in (TWO, GROWN)
        ]
        for hard in ("middle", "hard")
    }
    mixed = all(ahead["middle"]) and not any(ahead["hard"])
    yield when(mixed, "it keeps more of the middle rows than entropy and fewer of the hard ones")
    both = [exact(GROWN, rule, 8, ("middle",)) for rule in (divergence, RULE)]
    yield f"the grown model on middle rows {both[0]} %, where entropy has {both[1]}"
    least = min(each.lost("stable:2", each.allowed, "hard") for each in SHOWN.values())
    yield f"at least {least:.0f} points of hard rows are lost in every model"
