"""What docs/stars.md and docs/coverage.md say of random depth without the penalty at the paper's settings (its Tables 1 and 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from operator import eq, gt

from experiments.pages import Result, words
from experiments.readme.rows import WORDS, line, of, when
from experiments.readme.tasks.learned import DEPTH, LEARNED, learned
from experiments.readme.tasks.stars import REST, most_growth, runs_of, times_larger
from experiments.stars.plan import GROUPS, PLACES, depth_rules
from experiments.stars.tables import SOLVED, accuracy, change_at_100, radius_at_100, side_by_side
from loopwright.metrics.intervals import wilson_interval
from loopwright.metrics.score import holds_from_to
from loopwright.settings import build_kind
from loopwright.train.depth import RULES

BRANCHES, RESIDUAL = ("pre-sandwich", "pre"), ("post-sandwich", "post")
SHOWN = (8, 32, 100, 1000)
LAST = 1000  # the greatest depth measured
FIXED_AT = 64  # the depth at which models trained at depth 4 are looked at
FAR = 5  # times the largest depth of training, and more: "far beyond" it
HEAD = " | ".join([*(f"{depth:,}" for depth in SHOWN), "99 % to"])
SETTINGS = (
    f"| depth is drawn from | on branches | {HEAD} | on the residual stream | {HEAD} |",
    "Tables 1 and 3 of the paper",
    "(its code: 10,000)",
    "as curves (Figures 3 and 6)",
    f"*{100 * SOLVED:.0f} % to*",
    "(Section 4.3.1)",
    f"at least {100 * SOLVED:.0f} % are right at every depth measured from {DEPTH} on",
    f"at most {100 * LEARNED:.0f} % are right at depth {DEPTH}",
)
Cells = Mapping[str, Result]  # the run of each distribution


@cache
def cells(group: str = "distributions") -> dict[str, Cells]:
    """Returns the runs of a group by placement of norms and by distribution, one seed each."""
    runs = {label: run for label, (run,) in runs_of()[group].items()}
    return {
        place: {label.removeprefix(f"{place} "): run for label, run in runs.items() if label.startswith(f"{place} ")}
        for place in PLACES
    }


def on(*places: str) -> list[Result]:
    """Returns the runs of some placements."""
    return [run for place in places for run in cells()[place].values()]


def held(run: Result) -> int:
    """Returns the last depth of the stretch at which a run is right; 0 where it is not."""
    return holds_from_to(accuracy(run), DEPTH, SOLVED) or 0


def exact(run: Result, depth: int = LAST) -> float:
    """Returns exact match in per cent."""
    return 100 * accuracy(run)[depth]


def most(run: Result) -> int:
    """Returns the largest depth that the distribution of a run allows."""
    return int(run["recipe"]["depth"]["most"])


def tail(run: Result) -> int:
    """Returns the depth that one draw in a hundred exceeds."""
    return int(build_kind(run["recipe"]["depth"], RULES).span[-1])


def mean(place: str, rule: str) -> int:
    """Returns the mean depth of a distribution, about."""
    return depth_rules(place)[rule][1]


def updates_of(runs: Sequence[Result]) -> str:
    """Returns how many updates all of them had."""
    (updates,) = {run["recipe"]["updates"] for run in runs}
    return f"{updates:,}"


def times_as_deep(runs: Sequence[Result]) -> str:
    """Returns how many times the largest depth allowed in training the stretches are: "2.2 to 33"."""
    times = [held(run) / most(run) for run in runs]
    return f"{min(times):.2g} to {max(times):.2g}"


def spans(values: Sequence[float], digits: int = 3) -> str:
    """Returns from where to where percentages go."""
    return f"{min(values):.{digits}g} to {max(values):.{digits}g} %"


def claims() -> Iterator[str]:
    """Yields what the section says: its head, the table, and what is below."""
    every = on(*PLACES)
    (seed,) = {run["seed"] for run in every}
    yield when(seed == 0, f"all {len(every)} cells, with its model, rate, batch and dropout and {updates_of(every)} updates")
    yield made(every)
    yield when(len({run["seed"] for run in every}) == 1, "**one seed**, so no difference here is decided")
    ((near, far),) = {(run["near"]["rows"], run["far"]["rows"]) for run in every}
    least = 100 * wilson_interval(far, far)[0]
    yield f"{near:,} test sums to depth 100, the first {far:,} of them beyond (100 % of these is {least:.1f} to 100, Wilson)"
    for pair in zip(BRANCHES, RESIDUAL, strict=True):
        for rule in cells()[pair[0]]:
            yield line(rule, *(cell for place in pair for cell in (place, *row(cells()[place][rule]))))
    yield from branch_claims()
    yield from residual_claims()
    yield from state_claims()
    yield from finding_claims()
    yield from short_claims()
    kept = [place for place in PLACES if all(run.get("path") for run in on(place))]
    none = words([place for place in PLACES if place not in kept])
    yield f"Paths were kept of {len(on(*kept))} of the {len(every)} runs: those on {none} kept none"


def made(every: Sequence[Result]) -> str:
    """Returns how the runs differ from the paper's beside their number of updates, and at which versions they were made."""
    ((warmup, precision),) = {(run["recipe"]["schedule"]["warmup"], run["recipe"]["precision"]) for run in every}
    told, versions = f"Products are in {precision}, the warm-up has {warmup:,} updates", []
    for places in (["post-sandwich"], [place for place in PLACES if place != "post-sandwich"]):
        (commit,) = {run["origin"]["commit"][:7] for run in on(*places)}
        versions.append((len(on(*places)), commit))
    (first, own), (rest, other) = versions
    return f"{told}. The {WORDS[first]} cells on post-sandwich were made at {own}, the other {rest} at {other}"


def row(run: Result) -> list[str]:
    """Returns what the table has of a run."""
    return [*(side_by_side([exact(run, depth)]) for depth in SHOWN), f"{held(run):,}" if learned(run) else "not learned"]


def branch_claims() -> Iterator[str]:
    """Yields what came of norms on branches."""
    runs, sandwich, pre = on(*BRANCHES), on("pre-sandwich"), cells()["pre"]
    right = all(learned(run) and exact(run, 32) == 100 for run in runs)
    yield when(right, f"**On branches all {WORDS[len(runs)]} runs learn, and all are 100 % right at depth 32.**")
    (lost,) = [rule for rule, run in pre.items() if exact(run, 100) < 100]
    told = f"{of(len(pre) - 1, len(pre))} on pre ({lost}: {exact(pre[lost], 100):.1f} %)"
    right = all(exact(run, 100) == 100 for run in sandwich)
    yield when(right, f"At depth 100 all {WORDS[len(sandwich)]} on pre-sandwich are, and {told}")
    far, rest = ([run for run in runs if (held(run) == LAST) == so] for so in (True, False))
    told = f"{WORDS[len(far)].capitalize()} of the {WORDS[len(runs)]} stretches go to depth {LAST:,}, the last one measured"
    yield f"{told} ({min(map(exact, far)):.1f} to 100 % there); the others have {spans([*map(exact, rest)])} there"
    beyond = all(held(run) >= FAR * most(run) for run in sandwich)
    told = "On pre-sandwich every distribution lasts far beyond the depths of training, as the paper says"
    yield when(beyond, told)
    told = f"the stretch is {times_as_deep(sandwich)} times the largest depth that the distribution allows"
    yield f"{told} (a lower bound where it ends at {LAST:,}). On pre it is {times_as_deep([*pre.values()])} times"
    shallow, deeper = (cells()["pre-sandwich"][rule] for rule in ("uniform(1, 10)", "poisson(10)"))
    told = f"on pre-sandwich uniform(1, 10) is right to {held(shallow):,} and poisson(10) to {held(deeper):,}"
    further = held(shallow) > held(deeper) and most(shallow) < most(deeper) and tail(shallow) < tail(deeper)
    yield when(further, f"A larger depth in training does not always reach further: {told}")


def residual_claims() -> Iterator[str]:
    """Yields what came of norms on the residual stream."""
    sandwich, post = cells()["post-sandwich"], cells()["post"]
    runs = [run for run in on(*RESIDUAL) if learned(run)]
    yield f"**On the residual stream {of(len(runs), len(on(*RESIDUAL)))} learn.**"
    yes, no = ([rule for rule, run in sandwich.items() if learned(run) == so] for so in (True, False))
    less, more = (sorted(mean("post-sandwich", rule) for rule in rules) for rules in (yes, no))
    told = (
        f"On post-sandwich the {WORDS[len(yes)]} of least mean depth learn, the {WORDS[len(no)]} of greatest ({words(more)}) do not"
    )
    yield when(less[-1] < more[0], told)
    widest = max(sandwich, key=lambda rule: most(sandwich[rule]))
    yield when(widest in yes, f"The widest range of all, {widest}, is learned")
    reach = sorted(yes, key=lambda rule: held(sandwich[rule]))
    told = words([f"{rule.partition(' to ')[0]} to {held(sandwich[rule])}" for rule in reach])
    grows = all(tail(sandwich[first]) < tail(sandwich[second]) for first, second in pairwise(reach))
    yield when(grows, f"The {WORDS[len(yes)]} stay right the longer, the deeper the tail of their distribution: {told}")
    (only,) = [rule for rule, run in post.items() if learned(run)]
    means = [mean("post", rule) for rule in post]
    told = f"On post {only} alone learns, which is neither the shallowest nor the deepest, and is right to {held(post[only])}"
    yield when(min(means) < mean("post", only) < max(means), told)
    yield f"All {WORDS[len(runs)]} stretches are short: {times_as_deep(runs)} times the largest depth allowed"


def state_claims() -> Iterator[str]:
    """Yields what the states do."""
    branches = on(*BRANCHES)
    (radius,) = {f"{radius_at_100(run):.2f}" for run in branches}
    yield when(float(radius) > 1, "**Random depth does not stop the drift.**")
    told = f"after a hundred steps it is {times_larger(branches)} times as large as after one, and ρ is {radius}"
    yield when(float(radius) > 1, f"On branches the state of one sum runs away in all {WORDS[len(branches)]}: {told}")
    yield f"On post its size changes by at most {100 * most_growth(on('post')):.2g} %"
    late = {(place, rule): run for place in RESIDUAL for rule, run in cells()[place].items() if learned(run)}
    (still,) = [key for key, run in late.items() if run["far"]["change_largest"][-1] < REST]
    told = f"Of the {WORDS[len(late)]} that learned on the residual stream one is at rest at depth {LAST:,} ({' '.join(still)})"
    yield when(exact(late[still]) == 0, f"{told}, with no sum right")
    others = [run for key, run in late.items() if key != still]
    moved = spans([100 * run["far"]["change_largest"][-1] for run in others], 2)
    told = f"In the other {WORDS[len(others)]} some state still moves by {moved} a step there"
    yield f"{told}, and {spans([*map(exact, others)])} are right"
    (calm,) = [rule for rule, run in cells()["post-sandwich"].items() if change_at_100(run) < REST]
    told = f"One run that did not learn, {calm} on post-sandwich, is at rest by depth 100"
    yield when(not learned(cells()["post-sandwich"][calm]), told)


def finding_claims() -> Iterator[str]:
    """Yields the three parts of the paper's Finding 4."""
    done, every = [run for run in on(*PLACES) if learned(run)], on(*PLACES)
    fixed = [run for runs in runs_of()["norms"].values() for run in runs]
    before, lasting = max(exact(run, FIXED_AT) for run in fixed), sum(exact(run, FIXED_AT) >= 100 * SOLVED for run in done)
    alike = runs_of()["main"]["fixed"]
    none = max(exact(run, FIXED_AT) for run in alike) == 0 and updates_of(alike) == updates_of(every)
    told = f"trained at depth 4 alone, with as many updates, post-sandwich has no sum right at depth {FIXED_AT}"
    told = f"{told} ({WORDS[len(alike)]} seeds)"
    more = f"and {WORDS[len(fixed)]} layouts of norms after {updates_of(fixed)} updates at most {before:.2g} %"
    yield when(none, f"*Accuracy lasts*: {told}, {more}")
    yield f"with random depth {len(done)} of {len(every)} runs learn, and {lasting} of these have at least 99 % there"
    runaway = all(radius_at_100(run) > 1 for run in on(*BRANCHES))
    some = 0 < sum(map(learned, on("post-sandwich"))) < len(on("post-sandwich"))
    apart = len({held(run) for run in on(*BRANCHES)}) > 1
    told = "on post-sandwich it goes with whether a run learns, on branches with how far it stays right"
    yield when(some and apart, told)
    seen = none and before < 1 and lasting > len(done) / 2 and runaway and {run["seed"] for run in every} == {0}
    yield when(
        seen,
        "**Of the paper's Finding 4 the first two parts were seen at these settings too (one seed); the third is not decided.**",
    )


def short_claims() -> Iterator[str]:
    """Yields what differs from the short runs."""
    short = cells("brief_distributions")
    pairs = {f"{place} {rule}": (run, short[place][rule]) for place, runs in cells().items() for rule, run in runs.items()}
    both = [pair for pair in pairs.values() if learned(pair[1])]
    more = [label for label, (run, other) in pairs.items() if learned(run) and not learned(other)]
    (updates,) = {updates_of([other]) for _, other in pairs.values()}
    yield f"(our rate and batch, {updates} updates, also one seed): {len(both) + len(more)} learn here, {len(both)} there"
    yield when(all(learned(run) for run, _ in both), f"They are the same and {words(more)}")
    longer, equal = (sum(each(held(run), held(other)) for run, other in both) for each in (gt, eq))
    told = f"In the {len(both)} that learn in both the stretch is longer here in {WORDS[longer]} and as long in {WORDS[equal]}"
    yield when(longer + equal == len(both), told)
    signs = [exact(run) - exact(other) for run, other in both]
    higher, lower = (WORDS[sum(sign * each > 0 for each in signs)] for sign in (1, -1))
    run, other = pairs["pre poisson(5)"]
    told = f"at depth {LAST:,} {higher} have more right here and {lower} less"
    yield f"{told}, and pre poisson(5) has {exact(run, 100):.1f} % at depth 100 here and {exact(other, 100):.1f} % there"


def brief_claims() -> Iterator[str]:
    """Yields what the section on the short runs says of these."""
    sandwich, post = (of(sum(map(learned, on(place))), len(on(place))) for place in RESIDUAL)
    told = f"With the paper's rate, batch and dropout and {updates_of(on(*PLACES))} updates {sandwich} learn on post-sandwich"
    yield f"{told} and {post} on post"


def page_claims() -> Iterator[str]:
    """Yields which seeds were not run."""
    missing = sorted({run.seed for run in GROUPS["distributions"]()} - {run["seed"] for run in on(*PLACES)})
    yield f"seeds {words(missing)} of the depth distributions at the paper's settings"
