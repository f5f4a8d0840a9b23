"""What docs/stars.md says about addition."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from experiments.pages import Result, words
from experiments.readme.rows import RESULTS, WORDS, line, of, rows_of, when
from experiments.seeds import over_seeds, paired_p
from experiments.stars.plan import AGAIN
from experiments.stars.tables import SOLVED, Runs, accuracy, change_at_100, radius_at_100, read, side_by_side
from loopwright.metrics.intervals import wilson_interval
from loopwright.metrics.score import holds_from_to

LINES = {
    "ours": ("target", "addition-stable"),
    "paper: random depth + penalty": ("main", "random + penalty"),
    "paper: random depth": ("main", "random"),
    "paper: fixed depth 4": ("main", "fixed"),
    "paper: fixed depth 4 + penalty": ("main", "fixed + penalty"),
}
DEPTHS = (4, 8, 32, 100, 1000)
PENALTY_DEPTHS = (8, 32, 100, 1000)
REST = 1e-6  # a relative change of the state below which it is rounding
STACKS = ("1+core+0", "0+core+1", "1+core+1")
TABLE_SETTINGS = (
    "| run | 4 | 8 | 32 | 100 | 1,000 | ρ at depth 100, mean (largest) | K = 1 reading |",
    "95 % intervals (Wilson) over sums",
    "of 1,000 sums (depth 1,000, all but ours)",
    "The fixed arms had 5,000 updates, the random ones 10,000.",
)


@cache
def runs_of() -> dict[str, dict[str, Runs]]:
    """Returns the study's runs by group and label."""
    return read([str(RESULTS / "stars/runs.jsonl")])


def exact_at(label: str, depth: int) -> str:
    """Returns exact match (%) at a depth, seeds side by side."""
    group, name = LINES[label]
    return side_by_side(100 * accuracy(run)[depth] for run in runs_of()[group][name])


def table_claims() -> Iterator[str]:
    """Yields what the rows say in the first table and below it."""
    for label, (group, name) in LINES.items():
        radius = [run["radius"]["100"] for run in runs_of()[group][name]]
        mean, largest = sum(each["radius_mean"] for each in radius) / len(radius), max(each["radius_largest"] for each in radius)
        reading = sum(each["reading"] for each in radius) / len(radius)
        yield line(label, *(exact_at(label, depth) for depth in DEPTHS), f"{mean:.2f} ({largest:.2f})", f"{reading:.3f}")
    yield f"100 % right to depth 1,000 on {without_penalty()} seeds too"
    yield rest()
    depth, before = rests_from()
    (sums,) = {run["far"]["rows"] for run in runs_of()["target"]["addition-stable"]}
    still = f"no state of {sums:,} sums moves by more than {REST:.0e} of its size".replace("e-0", "e-")
    yield f"At every depth measured from {depth} on it rests on all three seeds ({still}); {before}"
    rows = {run["near"]["rows"] for group, name in LINES.values() for run in runs_of()[group][name]}
    (sums,) = rows
    yield f"100 % of {sums:,} is {100 * wilson_interval(sums, sums)[0]:.2f} to 100"
    yield f"at 99.7 % they are within {reach(0.997, sums):.1f} points"
    yield f"within {reach(0.85, 1000):.1f} points at 85 %"


def reach(share: float, count: int) -> float:
    """Returns how far the farther end of Wilson's interval is from a share, in points, rounded up to a tenth."""
    low, high = wilson_interval(round(share * count), count)
    return math.ceil(1000 * max(share - low, high - share)) / 10


def without_penalty() -> str:
    """Returns on how many seeds our settings are right at depths 100 and 1,000 without the penalty: "three of three"."""
    runs = runs_of()["ablation"]["injection + embedding norm + every step"]
    return of(sum(accuracy(run)[100] == accuracy(run)[1000] == 1 for run in runs), len(runs))


def rest() -> str:
    """Returns how far states move by the hundredth step, without and with the penalty."""
    off, on = runs_of()["ablation"]["injection + embedding norm + every step"], runs_of()["target"]["addition-stable"]
    moved, still = [100 * change_at_100(run) for run in off], max(100 * change_at_100(run) for run in on)
    return f"some state still changes by {min(moved):.2g} to {max(moved):.2g} % without it, by at most {still:.2g} % with it"


def rests_from() -> tuple[int, str]:
    """Returns from which measured depth on no state moves with the penalty at our settings, and what moves at the depth before."""
    runs = {run["seed"]: run["far"] for run in runs_of()["target"]["addition-stable"]}
    (depths,) = {tuple(run["depth"]) for run in runs.values()}
    still = [depth for depth in depths if max(run["change_largest"][depths.index(depth)] for run in runs.values()) > REST]
    last = max(still)
    moved = {seed: run["change_largest"][depths.index(last)] for seed, run in runs.items()}
    ((seed, most),) = ((seed, change) for seed, change in moved.items() if change > REST)
    before = f"at depth {last} some state of seed {seed} still moves by {100 * most:.2f} %"
    return min(depth for depth in depths if depth > last), before


def released() -> tuple[list[float], str, float]:
    """Returns by how much the released penalty is ahead at depth 1,000, seed by seed, whether that is decided, and its p."""
    random, penalty = runs_of()["main"]["random"], runs_of()["main"]["random + penalty"]
    apart = [accuracy(b)[1000] - accuracy(a)[1000] for a, b in zip(random, penalty, strict=True)]
    low, high = over_seeds(apart)
    return apart, "not decided" if low <= 0 <= high else "decided", paired_p(apart)


def claims() -> Iterator[str]:
    """Yields what the rows say elsewhere on the page."""
    ahead, verdict, p = released()
    points = f"{100 * min(ahead):.1f} to {100 * max(ahead):.0f} points"
    yield when(
        min(ahead) > 0 and verdict == "not decided",
        f"With the penalty each seed is better, by {points} at depth 1,000, which three seeds do not decide.",
    )
    yield f"at depth 1,000 (paired t-test p = {p:.2f})"
    readings = [[run["radius"]["100"]["reading"] for run in runs_of()["main"][label]] for label in ("random", "random + penalty")]
    chance = paired_p([math.log(on / off) for off, on in zip(*readings, strict=True)])
    first, second = (f"{sum(each) / len(each):.2f}" for each in readings)
    fewer = of(sum(on < off for off, on in zip(*readings, strict=True)), len(readings[0]))
    told = f"on {fewer} seeds (paired t-test of the logarithm p = {chance:.3f})"
    yield f"It takes its own reading from {first} to {second}, {told}"
    yield from weight_claims()


def weight_claims() -> Iterator[str]:
    """Yields the worst seed at depth 1,000 by weight of the penalty, begun once the task is solved."""
    begun = runs_of()["once_solved"]
    worst = {weight: min(100 * accuracy(run)[1000] for run in begun[f"λ={weight}"]) for weight in (0.05, 0.1, 0.15, 0.2)}
    without = min(100 * accuracy(run)[1000] for run in runs_of()["main"]["random"])
    even = min(worst[0.1], worst[0.15])
    yield f"the worst has {even:.1f} % at depth 1,000, the worst without a penalty {without:.1f} %"
    yield f"the worst seed has {worst[0.05]:.1f} % with 0.05 and {worst[0.2]:.1f} % with 0.2"


def brief_claims() -> Iterator[str]:
    """Yields the table of the short runs: exact match by depth, how far it holds, the state's size after one step and a hundred."""
    for label, runs in runs_of()["brief_distributions"].items():
        exact = [side_by_side(100 * accuracy(run)[depth] for run in runs) for depth in (1, 8, 32, 100, 1000)]
        held = [holds_from_to(accuracy(run), 8, SOLVED) for run in runs]
        yield line(label, *exact, " / ".join("–" if h is None else f"{h:,}" for h in held), " / ".join(map(grown, runs)))
    changes, weights = runs_of()["brief_changes"], runs_of()["brief_weights"]
    for weight in (0.001, 0.01, 0.1):
        both = [changes[f"{place} + {weight} L2"][0] for place in ("post-sandwich", "pre-sandwich")]
        yield line(f"{weight}", *[cell for run in both for cell in (*_at(run, PENALTY_DEPTHS), grown(run))])
    for weight in (0.05, 0.1, 0.15, 0.2):
        early, late = (weights[f"λ={weight} {begun}"][0] for begun in ("early", "once solved"))
        radii = [f"{radius_at_100(run):.2f}" for run in (early, late)]
        yield line(
            f"{weight}", *_at(early, PENALTY_DEPTHS), radii[0], f"{late['solved_at']:,}", *_at(late, PENALTY_DEPTHS), radii[1]
        )
    yield from fixed_claims()
    yield from path_claims()


def fixed_claims() -> Iterator[str]:
    """Yields the table of the short runs at fixed depth 4 and what is said below it."""
    norms, static = ({label: run for label, (run,) in runs_of()[group].items()} for group in ("brief_norms", "brief_static"))
    for label, run in (norms | static).items():
        moved = (small(change_at_100(run)), small(run["far"]["change_largest"][-1]))
        yield line(label, *_at(run, (1, 4, 8, 16, 32, 100)), *moved, f"{radius_at_100(run):.2f}", grown(run))
    gone = all(accuracy(run)[1000] == 0 for run in (norms | static).values())
    yield when(gone, "all are at 0 % at depth 1,000")
    yield from norm_claims(norms)
    yield from around_claims(norms, static)
    yield from l2_claims(norms, static)


def norm_claims(norms: Mapping[str, Result]) -> Iterator[str]:
    """Yields what kinds of norm do at fixed depth."""
    on_branches = [run for label, run in norms.items() if label.startswith("pre")]
    bounded = [run for label, run in norms.items() if label.startswith("post")]
    share = [100 * run["path"]["explained"][0] for run in on_branches]
    yield f"the state is {times_larger(on_branches)} times as large after a hundred steps as after one"
    yield f"{min(share):.0f} to {max(share):.0f} % of the path's variance lies in one direction"
    yield f"On the residual stream its size changes by at most {100 * most_growth(bounded):.2g} %"
    late = {label: run["far"]["change_largest"][-1] for label, run in norms.items()}
    at_rest = all(late[label] < REST for label in late if label.startswith("post-sandwich"))
    yield when(at_rest, "On post-sandwich all three come to rest by depth 1,000")
    yield when(
        late["post simple"] < REST < min(late["post"], late["post rms"]),
        f"On post simple norms do too; with layer norms and RMS norms some state still moves by {100 * late['post']:.0f} and "
        f"{100 * late['post rms']:.0f} % a step",
    )
    yield when(
        all(accuracy(run)[4] == 1 and accuracy(run)[32] == 0 for run in norms.values()),
        f"All {WORDS[len(norms)]} are 100 % right at depth 4 and 0 % right at 32",
    )


def around_claims(norms: Mapping[str, Result], static: Mapping[str, Result]) -> Iterator[str]:
    """Yields what layers before and behind the loop do at fixed depth."""
    pre, post = ([static[f"{place} {each}"] for each in STACKS] for place in ("pre-sandwich", "post-sandwich"))
    bare = norms["post-sandwich"]
    alone = times_larger([norms["pre-sandwich"]])
    yield (
        f"on pre-sandwich the state becomes {times_larger(pre)} times as large ({alone} without them), "
        f"on post-sandwich its size changes by at most {100 * most_growth(post):.2g} %"
    )
    right = [f"{100 * accuracy(run)[8]:.4g} %" for run in (*post, bare)]
    yield (
        f"On post-sandwich {right[0]} are right at depth 8 with a prelude, {right[1]} with a coda, {right[2]} with both and "
        f"{right[3]} with neither"
    )
    late = [run["far"]["change_largest"][-1] for run in (*post, bare)]
    yield when(
        max(late[0], late[3]) < REST < min(late[1:3]),
        f"With a coda some state still moves by {100 * late[1]:.1f} % a step at depth 1,000, with both layers by "
        f"{100 * late[2]:.1f} %; with a prelude and with neither all are at rest",
    )
    deeper = [f"{100 * accuracy(run)[16]:.4g}" for run in (*pre, norms["pre-sandwich"])]
    yield f"On pre-sandwich at depth 16 it is {words(deeper)} % in this order"
    before = [
        [accuracy(runs_of()["stacks"][f"{place} {each}"][0])[depth] for each in STACKS]
        + [accuracy(runs_of()["norms"][f"{place} layer"][0])[depth]]
        for place, depth in (("pre-sandwich", 16), ("post-sandwich", 8))
    ]
    yield when(
        all(each[0] == max(each) and each[1] < each[3] for each in before),
        "a prelude was the best on both, and a coda alone was worse than neither on both",
    )


def l2_claims(norms: Mapping[str, Result], static: Mapping[str, Result]) -> Iterator[str]:
    """Yields what L2 does at fixed depth."""
    light, heavy = (static[f"pre-sandwich + {weight} L2"] for weight in ("0.1", "1"))
    yield f"{grown(light)} at 0.1, {grown(heavy)} at 1, {grown(norms['pre-sandwich'])} without it"
    reach = holds_from_to(accuracy(light), 8, SOLVED)
    yield when(
        all(accuracy(light)[depth] == 1 for depth in accuracy(light) if depth <= 100),
        f"At 0.1 a model trained at depth 4 alone is 100 % right at every depth measured to 100, at least 99 % right to {reach} "
        f"and {100 * accuracy(light)[1000]:.4g} % right at 1,000",
    )
    yield f"at 1 it is {100 * accuracy(heavy)[16]:.4g} % right at 16 and {100 * accuracy(heavy)[100]:.4g} % at 100"
    lost = [static[f"post-sandwich + {weight} L2"] for weight in ("0.1", "1")]
    yield when(
        all(change_at_100(run) < REST and not any(accuracy(run).values()) for run in lost),
        "On post-sandwich neither weight gets a single sum right, and all states are at rest by depth 100",
    )


def path_claims() -> Iterator[str]:
    """Yields the table of the runs made for their paths, and what is said below it."""
    runs = {label: run for label, (run,) in runs_of()["paths"].items()}
    for label, run in runs.items():
        changes = (small(change_at_100(run)), small(run["far"]["change_largest"][-1]))
        yield line(label, *_at(run, (8, 100, 1000)), f"{stands_from(run)}", *changes, f"{radius_at_100(run):.2f}", grown(run))
    off, on = ([runs[label + end] for label in ("no part", "all parts")] for end in ("", ", penalty"))
    ((near, far),) = {(f"{run['near']['rows']:,}", f"{run['far']['rows']:,}") for run in (*off, *on)}
    steps = [stands_from(run) for run in (*on, *off)]
    yield (
        f"it stands from step {steps[0]} with no part and from step {steps[1]} with all parts, without the penalty from steps "
        f"{steps[2]} and {steps[3]}"
    )
    moved, still = ([change_at_100(run) for run in each] for each in (off, on))
    yield when(
        min(moved) > max(still),
        f"at depth 100 the fastest of the {near} states still moves by {100 * moved[0]:.0f} % a step with no part and by "
        f"{100 * moved[1]:.1f} % with all parts, with the penalty by at most {small(max(still))} of its size",
    )
    late = [run["far"]["change_largest"][-1] for run in off]
    ended = f"At depth 1,000 ({far} sums) the run with no part is at rest, the one with all parts is not ({100 * late[1]:.1f} %)"
    yield when(late[0] < REST < late[1], ended)
    least = min(accuracy(run)[100] for run in (*off, *on))
    yield when(
        all(accuracy(run)[1000] == 1 for run in (*off, *on)),
        f"All four at our settings are right: at least {100 * least:.1f} % of {near} sums at depth 100 and 100 % of {far} at 1,000",
    )
    radii = [f"{radius_at_100(a):.2f} to {radius_at_100(b):.2f}" for a, b in zip(off, on, strict=True)]
    yield f"With the penalty ρ goes from {radii[0]} with no part and from {radii[1]} with all parts"
    before = [runs_of()[group][name][0] for group, name in map(AGAIN.__getitem__, runs)]
    once, now = ([small(change_at_100(run)) for run in each] for each in (before, runs.values()))
    yield f"the largest change at depth 100 was {words(once)} there and is {words(now)} here"
    yield from paper_path_claims(runs["paper, penalty"], before[-1])


def paper_path_claims(run: Result, before: Result) -> Iterator[str]:
    """Yields what is said of the path at the paper's own settings, and of the first run of its recipe and seed."""
    points, size = run["path"]["points"], run["path"]["size"][-1]
    last = len(points) - 1
    (updates,) = {each["recipe"]["updates"] for each in (run, before)}
    yield f"the paper's own settings with the penalty as released ({updates:,} updates)"
    moved = 100 * math.dist(points[-2], points[-1]) / size
    ((depth, still),) = [each for each in zip(run["far"]["depth"], run["far"]["change_largest"], strict=True) if each[0] == 1000]
    yield when(
        moved > 100 * REST and still < REST,
        "At the paper's own settings, with the penalty as released, the path drawn still moves, slowly, after a hundred steps; at "
        f"depth 1,000 all {run['far']['rows']} states measured are at rest.",
    )
    apart = [f"{100 * math.dist(points[step], points[-1]) / size:.1f} %" for step in (20, 50)]
    yield (
        f"In the plane drawn, after 20 steps the state is {apart[0]} of its size away from where it is after {last}, after 50 "
        f"steps {apart[1]}, and the last step is {moved:.2f} %"
    )
    yield f"so {stands_from(run)} in the table only says that"
    near, far = run["near"]["rows"], run["far"]["rows"]
    right, early = accuracy(run)[depth], accuracy(run)[100]
    low, high = (100 * end for end in wilson_interval(round(right * far), far))
    yield when(
        early == 1,
        f"At depth 100 all {near:,} sums are right and the fastest state moves by {100 * change_at_100(run):.1f} % a step; at "
        f"1,000 {100 * right:.1f} % of {far} are right ({low:.1f} to {high:.1f}, Wilson)",
    )
    then = before["far"]
    yield when(
        then["change_largest"][-1] > REST,
        f"The run of the main table with this recipe and seed had {100 * then['exact'][-1]:.1f} % of {then['rows']:,} sums right "
        f"at 1,000, and some of its states still moved by {100 * then['change_largest'][-1]:.1f} % a step there",
    )
    radii = [radius_at_100(each) for each in (run, before)]
    yield f"The mean ρ at depth 100 is {radii[0]:.2f}, and {radii[1]:.2f} in that run"


def stands_from(run: Result) -> int:
    """Returns the step from which on the path drawn is within a thousandth of the state's size of its end."""
    points, near = run["path"]["points"], run["path"]["size"][-1] / 1000
    return 1 + max((step for step, point in enumerate(points) if math.dist(point, points[-1]) > near), default=-1)


def times_larger(runs: Sequence[Result]) -> str:
    """Returns how many times as large states are after a hundred steps as after one: "45 to 55"."""
    times = sorted({f"{run['path']['size'][-1] / run['path']['size'][1]:.0f}" for run in runs}, key=float)
    return times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"


def most_growth(runs: Sequence[Result]) -> float:
    """Returns the largest relative change of a state's size between two of its steps."""
    return max(max(run["path"]["size"][1:]) / min(run["path"]["size"][1:]) - 1 for run in runs)


def small(value: float) -> str:
    """Returns a number with two digits: "0.049", "1.2e-7"."""
    return f"{value:.2g}".replace("e-0", "e-")


def origin_claims() -> Iterator[str]:
    """Yields what docs/stars.md says of where its rows were made."""
    rows = rows_of("stars/runs.jsonl")
    first = [row for row in rows if not row.get("origin")]
    short = [row for row in rows if row.get("origin") and not row["origin"]["commit"]]
    groups = [words([f"`{name}`" for name in dict.fromkeys(sorted(row["group"] for row in part))]) for part in (first, short)]
    yield f"Of the {len(rows)} rows {len(rows) - len(first) - len(short)} hold their commit as well."
    yield f"{len(first)} rows of the first groups ({groups[0]}) and {len(short)} of the short runs ({groups[1]})"
    devices = all(row.get("device") or row["origin"]["devices"] for row in rows)
    torches = all(row.get("torch") or row["origin"]["torch"] for row in rows)
    yield when(devices and torches and all(row["recipe"] for row in rows), "A row holds its recipe, device and version of PyTorch.")


def grown(run: Result) -> str:
    """Returns the size of the state of one sum after one step and after a hundred."""
    return f"{run['path']['size'][1]:,.0f} → {run['path']['size'][-1]:,.0f}"


def _at(run: Result, depths: Sequence[int]) -> list[str]:
    return [side_by_side([100 * accuracy(run)[depth]]) for depth in depths]
