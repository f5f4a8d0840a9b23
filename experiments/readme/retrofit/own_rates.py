"""What README and docs/ouroboros.md say of the retrofit study's arms, each at its own learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from experiments.ouroboros.answers import decided
from experiments.ouroboros.plan import BLIND, CONTROLLER, DIAGONAL, GATE, LEAKING, NORMED, ONCE, PUBLISHED, STATIC, TOKEN
from experiments.ouroboros.rate_tables import at_own_rates, recovered
from experiments.ouroboros.rates import GRID, RATES, SEEDS, TUNED, arm_of, best_rates, rates_of
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.pages import Result, difference, percent, results, words
from experiments.readme.retrofit.ouroboros import Runs, against_diagonal, all_runs, by_seed
from experiments.readme.rows import RESULTS, WORDS, line, of, when
from experiments.seeds import best_depth, mean_loss, over_seeds, pooled, reports, shared

COMMON = 4e-3  # the rate of all rows that name no other
OWN_LINES = {
    "static diagonal": DIAGONAL,
    "controller, causal mean": CONTROLLER,
    "controller, token": TOKEN,
    "controller, blind": BLIND,
    "low-rank tables per step": STATIC,
    "gate alone": GATE,
    "controller, causal mean of normed states": NORMED,
    "as published": PUBLISHED,
    "LoRA, not looped": ONCE,
}
SHOWN = {
    "gate alone": GATE,
    "static diagonal, the paper's rival under our gate": DIAGONAL,
    "blind controller": BLIND,
    "controller that reads the running mean": CONTROLLER,
    "controller that reads each token": TOKEN,
    "low-rank tables per step": STATIC,
}
READERS = (CONTROLLER, TOKEN)
RIVALS = (DIAGONAL, STATIC, BLIND)
READ = {"the running mean": CONTROLLER, "each token": TOKEN, "nothing (blind)": BLIND}
SKIPPED = {"each token": TOKEN, "the running mean": CONTROLLER, "the whole sequence (leaks)": LEAKING}


@cache
def tried() -> list[Result]:
    """Returns the rows of the arms at rates of their own."""
    return results([str(RESULTS / "ouroboros/rates.jsonl")], ())


@cache
def own_runs() -> Runs:
    """Returns the runs of each arm at its own rate."""
    return at_own_rates(tried())


@dataclass(frozen=True)
class Beside:
    """One arm against another at their own rates: how far its loss is above the other's on each text, the same seed by seed, and
    whether both texts decide it."""

    above: Sequence[float]
    of_seeds: Sequence[Sequence[float]]
    decided: bool

    @property
    def seeds(self) -> int:
        """How many seeds both have."""
        return min(map(len, self.of_seeds))

    @property
    def far(self) -> str:
        """How far apart they are."""
        return span([abs(value) for value in self.above])

    @property
    def told(self) -> str:
        """How far apart they are, seeds and verdict."""
        return f"{self.far} nats ({WORDS[self.seeds]} seed{'s' * (self.seeds > 1)}, {self.word})"

    @property
    def word(self) -> str:
        """Whether it is decided."""
        return "decided" if self.decided else "not decided"

    @property
    def side(self) -> str:
        """Where the first one stands."""
        return "behind" if min(self.above) > 0 else "ahead of" if max(self.above) < 0 else "level with"

    @property
    def cell(self) -> str:
        """The differences on the texts as a table has them, in bold where they are decided."""
        told = " / ".join(difference(value, 2) for value in self.above)
        return f"**{told}**" if self.decided else told

    @property
    def stands(self) -> str:
        """Where the first one stands, without the other's name behind it."""
        return self.side.split()[0]

    @property
    def lost(self) -> list[int]:
        """The places of the seeds on which the first one is behind on some text."""
        return [place for place, each in enumerate(zip(*self.of_seeds, strict=True)) if max(each) > 0]

    @property
    def won(self) -> str:
        """On how many seeds the first one is ahead on both texts."""
        return of(self.seeds - len(self.lost), self.seeds)


@cache
def beside(first: str, second: str, depth: int | None = None) -> Beside:
    """Returns an arm beside another, both at one depth or each at its best."""
    return between(own_runs(), first, second, depth)


def between(runs: Runs, first: str, second: str, depth: int | None = None) -> Beside:
    """Returns an arm of these runs beside another."""
    found = {text: each for text in TEXTS if (each := pooled(runs[first], runs[second], text, depth)) is not None}
    pairs = found.values()
    return Beside([one.difference for one in pairs], [one.of_seeds for one in pairs], decided(found) != "not resolved")


def over_seeds_alone(runs: Runs, first: str, second: str, depth: int) -> Beside:
    """Returns an arm beside another where the rows keep no losses of single passages: only seeds can decide."""
    pairs = shared(runs[first], runs[second])
    of_seeds = [[at(a, text, depth) - at(b, text, depth) for a, b in pairs] for text in TEXTS]
    ends = [end for each in of_seeds for end in over_seeds(each)]
    return Beside([sum(each) / len(each) for each in of_seeds], of_seeds, min(ends) > 0 or max(ends) < 0)


def at(run: Result, text: str, depth: int) -> float:
    """Returns a run's loss on a text at a depth."""
    return mean_loss(reports([run], text), depth)


def ahead_at(first: str, second: str) -> dict[int, Beside]:
    """Returns the depths at which an arm is ahead of another, which both texts decide."""
    found = {depth: beside(first, second, depth) for depth in DEPTHS}
    return {depth: each for depth, each in found.items() if each.decided and each.side == "ahead of"}


def no_gain() -> str:
    """Returns whether at best depths some controller is ahead of the static diagonal or of low-rank tables, decided or not."""
    controllers, rivals = (CONTROLLER, TOKEN, BLIND, NORMED, PUBLISHED), (DIAGONAL, STATIC)
    none = all(beside(arm, rival).side != "ahead of" for arm in controllers for rival in rivals)
    return f"{'No' if none else 'A'} gain over simpler rivals was found at best depths"


def behind_tables() -> Beside:
    """Returns both reading controllers beside low-rank tables at best depths, as one."""
    both = [beside(arm, STATIC) for arm in READERS]
    return Beside([value for each in both for value in each.above], [], all(each.decided for each in both))


def held_back() -> str:
    """Returns how much the common rate costs the static diagonal on `valid`."""
    return f"that rate held the diagonal back by {cost(DIAGONAL):.2f} nats"


def headline_claims() -> Iterator[str]:
    """Yields what the README says."""
    yield no_gain()
    mean, tables = beside(CONTROLLER, DIAGONAL), behind_tables()
    rival = "a static diagonal, the paper's rival under our gate (a fixed scaling per step"
    yield f"A controller that reads the running mean of the states is {mean.far} nats {mean.side} {rival}; {mean.word})"
    both = f"{'beat' if tables.side == 'behind' else 'lose to'} both controllers that read"
    yield when(tables.decided, f"{both} by {tables.far} (decided)")
    neither = not any(beside(arm, BLIND).decided for arm in READERS)
    told = "Whether either is ahead of the same controller when it knows only the step (*blind*) is not decided at best depths"
    yield when(neither, told)
    yield f"the controller with the running mean beat {against_diagonal()}"
    yield held_back()


def by_token() -> str:
    """Returns at which depths reading each token is ahead of the blind controller, and at which that is open."""
    ahead = ahead_at(TOKEN, BLIND)
    told = words([f"{each.far} at depth {depth}" for depth, each in ahead.items()])
    open_at = words([depth for depth in DEPTHS if not beside(TOKEN, BLIND, depth).decided])
    return f"Reading each token beats blind by {told} (decided); at {open_at} it is undecided"


def brief() -> Iterator[str]:
    """Yields the page's summary."""
    yield no_gain()
    for label, arm in READ.items():
        cells = [f"{each.far} {each.stands} ({each.word})" for each in (beside(arm, rival) for rival in RIVALS if rival != arm)]
        yield line(label, *cells, *["–"] * (len(RIVALS) - len(cells)))
    every = [beside(arm, STATIC, depth) for arm in READERS for depth in DEPTHS]
    both, tables, readers = behind_tables(), *(f"{trained()[arm] / 1e6:.3f} M" for arm in (STATIC, TOKEN))
    yield f"have about as many trained parameters as those controllers ({tables} against {readers})"
    where = f"{both.stands} them by {both.far} nats at best depths ({both.word})"
    always = all(each.decided and each.side == "behind" for each in every)
    yield when(always, f"Both are {where}, and at every depth from {DEPTHS[0]} to {DEPTHS[-1]} (decided)")
    token = beside(TOKEN, DIAGONAL)
    yield f"is {'' if token.decided else 'not '}told apart from the static diagonal at best depths"
    yield f"It is {token.far} nats {token.stands} in the mean ({token.word})"
    equal = words([f"on {beside(TOKEN, DIAGONAL, depth).won} at depth {depth}" for depth in best_depths()])
    yield f"With each arm at its best depth it is ahead on {token.won} seeds; at equal depth {equal}"
    lost = [own_runs()[TOKEN][place] for place in token.lost]
    yield words([f"seed {run['seed']}, the one that it loses at best depths, {run['skipped']} updates" for run in lost])
    for label, arm in READ.items():
        found = ahead_at(arm, DIAGONAL)
        yield line(label, *(found[depth].far if depth in found else "not decided" for depth in (1, 2, 16)))
    best = beside(TOKEN, BLIND)
    yield by_token()
    yield f"At best depths it is {best.stands} by {best.far} ({best.word})"
    depths = [depth for depth in DEPTHS if beside(CONTROLLER, BLIND, depth).decided]
    yield f"Reading the running mean against blind is decided at {'no depth' if not depths else f'depths {depths}'}"
    rival = beside(DIAGONAL, BLIND)
    yield f"the static diagonal is {rival.side} blind by about as much, {rival.far} ({rival.word}), without reading"
    at_one_rate = [by_seed(all_runs(), CONTROLLER, DIAGONAL, "test", depth) for depth in DEPTHS]
    yield f"{against_diagonal()} (by {span([-value for each in at_one_rate for value in each])} nats on `test`)"
    yield f"{held_back()}, the three controllers by {span([cost(arm) for arm in READ.values()])}"
    for label, arm in SHOWN.items():
        yield f"| {label} | {trained()[arm] / 1e6:.3f} M |"


def best_depths() -> list[int]:
    """Returns the best depths of the three controllers and of the static diagonal."""
    found = {best_depth(reports(own_runs()[arm], text)) for arm in (*READ.values(), DIAGONAL) for text in TEXTS}
    return sorted(found)


def single_depths() -> Iterator[str]:
    """Yields what the page says of single depths on `test`: the first two of the one that reads each token, and the last."""
    losses = {arm: {depth: mean_loss(reports(found, "test"), depth) for depth in DEPTHS} for arm, found in own_runs().items()}
    every = all(not beside(TOKEN, BLIND, depth).lost for depth in DEPTHS)
    yield f"Reading each token is ahead of blind on {'each seed' if every else 'some seeds'} at every depth"
    yield f"at depth 1 its loss is {losses[TOKEN][1]:.2f}; at depth 2 it is {losses[TOKEN][2]:.2f}"
    last = DEPTHS[-1]
    rises = {arm: each[last] - min(each.values()) for arm, each in losses.items()}
    for label, arm in (("static diagonal", DIAGONAL), ("low-rank tables per step", STATIC), ("gate alone", GATE)):
        yield f"{label} | {losses[arm][last]:.2f} | {rises[arm]:.2f}"
    three = list(READ.values())
    yield f"three seeds each | {span([losses[arm][last] for arm in three])} | {span([rises[arm] for arm in three])}"
    yield f"normed states, two seeds | {losses[NORMED][last]:.2f} | {rises[NORMED]:.2f}"
    yield f"as published, two seeds | {losses[PUBLISHED][last]:.2f} | {rises[PUBLISHED]:.2f}"
    least, calmest = min(losses, key=lambda arm: losses[arm][last]), min(rises, key=rises.__getitem__)
    yield f"{'Low-rank tables' if least == STATIC else least} have the least loss at depth {last}"
    published = losses[PUBLISHED]
    name = "The published arm" if calmest == PUBLISHED else calmest
    yield f"{name} rises least (from {min(published.values()):.3f} to {published[last]:.3f})"
    normed = beside(NORMED, DIAGONAL, last)
    yield f"The controller of normed states is {normed.side} the static diagonal there by {normed.told}"


def as_published() -> Iterator[str]:
    """Yields how the published arm stands beside the blind controller."""
    best, parts = beside(PUBLISHED, BLIND), []
    yield f"At best depths it is {best.side} the blind controller by {best.told}"
    for depth in (1, 2, 16):
        found = over_seeds_alone(own_runs(), PUBLISHED, BLIND, depth)
        open_end = "" if found.decided else ", where the interval over seeds holds 0"
        parts.append(f"at depth {depth} it is {found.stands} by {found.far}{open_end}")
    yield "; ".join(parts)


def trained() -> dict[str, int]:
    """Returns the trained parameters of every arm."""
    return {arm_of(run): run["trainable"] for run in tried() if "trainable" in run}


def cost(arm: str) -> float:
    """Returns what the common rate costs an arm on `valid`, seed 0."""
    losses = rates_of(tried())[arm]
    return losses[COMMON] - min(losses.values())


def costs() -> Iterator[str]:
    """Yields what the common rate costs the arms."""
    for arm, label in {
        GATE: "the gate alone",
        ONCE: "LoRA without a loop",
        STATIC: "low-rank tables",
        NORMED: "normed states",
    }.items():
        yield f"{cost(arm):.2f} for {label}"
    yield f"{span([cost(arm) for arm in READ.values()])} for the other three controllers"


def skipped() -> Iterator[str]:
    """Yields the table of updates that were skipped."""
    for label, arm in SKIPPED.items():
        runs = [run for run in tried() if arm_of(run) == arm]
        by_rate = {run["rate"]: run.get("skipped", 0) for run in runs if run["group"] == GRID}
        fresh = [str(run.get("skipped", 0)) for run in sorted(runs, key=lambda run: run["seed"]) if run["group"] == TUNED]
        yield line(label, *(str(by_rate[rate]) for rate in RATES), ", ".join(fresh) or "not run")
    if any(run.get("skipped", 0) for run in tried() if arm_of(run) not in SKIPPED.values()):
        raise ValueError("an arm that the table does not have skipped updates")


def span(values: Sequence[float]) -> str:
    """Returns from where to where numbers go, at two digits; one number where that is the same."""
    ends = f"{min(values):.2f}", f"{max(values):.2f}"
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def own_lines() -> Iterator[str]:
    """Yields the lines of the page's table: the rate, the loss on `valid` at the common rate and at its own, and held out."""
    rates, best = rates_of(tried()), best_rates(tried())
    for label, arm in OWN_LINES.items():
        found = [run for run in own_runs().get(arm, ()) if run["seed"] in SEEDS]  # like with like
        cells = [
            f"{trained()[arm] / 1e6:.3f} M",
            f"{best[arm]:g}",
            f"{rates[arm][COMMON]:.3f}",
            f"{rates[arm][best[arm]]:.3f}",
            str(len(found) or "–"),
        ]
        for text in TEXTS:
            held = reports(found, text)
            share = percent(recovered(found, all_runs(), text)) if found else "–"
            cells += [f"{mean_loss(held, best_depth(held)):.3f}" if found else "–", share]
        yield line(label, *cells)


def by_depth() -> Iterator[str]:
    """Yields the lines of the page's tables, depth by depth: reading against the blind controller, all three against the rival."""
    mean, token, _ = READ
    against = {BLIND: {mean: CONTROLLER, token: TOKEN, f"{mean} of normed states": NORMED}, DIAGONAL: READ}
    for name, other in {"blind": BLIND, "static diagonal": DIAGONAL}.items():
        for label, arm in against[other].items():
            yield line(label, name, str(beside(arm, other).seeds), *(beside(arm, other, depth).cell for depth in DEPTHS))


def diagonal_pairs() -> Iterator[str]:
    """Yields how the static diagonal stands beside low-rank tables and beside the gate alone."""
    tables, gate = beside(DIAGONAL, STATIC), beside(DIAGONAL, GATE)
    yield f"The static diagonal is {tables.side} low-rank tables per step by {tables.told}"
    yield f"It is {gate.side} the gate alone by {gate.told}"
    alone, whole = (percent(recovered(own_runs()[arm], all_runs(), "test")) for arm in (GATE, DIAGONAL))
    yield f"the gate alone recovers {alone} of the gap on `test`, the static diagonal {whole}"
    reads = percent(recovered(own_runs()[CONTROLLER], all_runs(), "test"))
    yield f"at own rates {alone.removesuffix(' %')} of {reads}"
    told = words([depth for depth, each in ahead_at(TOKEN, BLIND).items() if each.decided])
    every = all(max(beside(TOKEN, BLIND, depth).above) < 0 for depth in DEPTHS)
    yield when(every, f"reading each token is ahead of blind at every depth, decided at {told}")


def claims() -> Iterator[str]:
    """Yields what the page says."""
    for part in (brief, single_depths, as_published, costs, skipped, own_lines, by_depth, diagonal_pairs):
        yield from part()
