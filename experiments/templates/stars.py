"""What pages ask of the rows on four-digit addition: exact match by depth, whether states come to rest, the penalty off and on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

from experiments.pages import Result
from experiments.seeds import paired_p
from experiments.stars.plan import GROUPS, PLACES, depth_rules
from experiments.stars.tables import PAIRS, SOLVED, Runs, accuracy, change_at_100, radius_at_100, read, shared
from experiments.templates.rows import RESULTS, only, rows_of
from experiments.templates.words import Gaps, same
from loopwright.metrics.intervals import wilson_interval
from loopwright.metrics.score import holds_from_to
from loopwright.schema import build_kind
from loopwright.training.depth import RULES

OURS, RELEASED, RANDOM = ("target", "addition-stable"), ("main", "random + penalty"), ("main", "random")
MAIN = {
    "ours": OURS,
    "paper: random depth + penalty": RELEASED,
    "paper: random depth": RANDOM,
    "paper: fixed depth 4": ("main", "fixed"),
    "paper: fixed depth 4 + penalty": ("main", "fixed + penalty"),
}
BARE = ("ablation", "injection + embedding norm + every step")  # ours without the penalty
FINITE = [label for label in PAIRS if "finite" in label]
WITHOUT_PARTS = [label for label in PAIRS if label.startswith("no other part")]
SHOWN, LAST = (8, 100, 1000), 1000  # depths
STRETCH = (8, 16, 32)
WEIGHTS = [0.05, 0.1, 0.15, 0.2]  # of the exact penalty
ROWS = [0, *WEIGHTS]
L2 = (0, 0.001, 0.01, 0.1)
REST = 1e-6  # a relative change of the state below which it is rounding
LEARNED, DEPTH = 0.9, 8  # a run learned the task if so many sums are right at this depth
BRANCHES, RESIDUAL = ("pre-sandwich", "pre"), ("post-sandwich", "post")
AROUND = ("1+core+0", "0+core+1", "1+core+1", "")  # a prelude, a coda, both, neither
PRECISIONS = ("bf16", "tf32", "fp32")
UPDATES = (("fixed depth 4", 4, None), ("depth 10 with the penalty as released", 10, "released"))
Where = tuple[str, str]  # a group and a label
Pair = tuple[Runs, Runs]  # without the penalty and with it


@cache
def runs_of() -> dict[str, dict[str, Runs]]:
    """Returns the study's runs by group and label."""
    return read([str(RESULTS / "stars/runs.jsonl")])


def runs(where: Where) -> Runs:
    """Returns the seeds of a row."""
    return runs_of()[where[0]][where[1]]


def one(group: str, label: str) -> Result:
    """Returns a run of which there is one seed."""
    (found,) = runs((group, label))
    return found


def exact(found: Runs | Result, depth: int = LAST) -> list[float]:
    """Returns exact match in percent at a depth, seed by seed."""
    return [100 * accuracy(run)[depth] for run in ([found] if isinstance(found, dict) else found)]


def all_right(found: Iterable[Result], *depths: int) -> int:
    """Returns how many runs have every sum right at some depths."""
    return sum(all(accuracy(run)[depth] == 1 for depth in depths) for run in found)


def changes(found: Iterable[Result]) -> list[float]:
    """Returns the largest relative change of a state by step 100, seed by seed."""
    return [change_at_100(run) for run in found]


def late(found: Iterable[Result]) -> list[float]:
    """Returns the same by the deepest step measured."""
    return [run["far"]["change_largest"][-1] for run in found]


def radii(found: Iterable[Result]) -> list[float]:
    """Returns the spectral radius at depth 100, the mean over sums, seed by seed."""
    return [radius_at_100(run) for run in found]


def largest_radius(found: Runs) -> float:
    """Returns the largest radius of any sum and seed."""
    return max(run["radius"]["100"]["radius_largest"] for run in found)


def readings(found: Runs) -> list[float]:
    """Returns the penalty's own reading at depth 100, seed by seed."""
    return [run["radius"]["100"]["reading"] for run in found]


def held(found: Iterable[Result]) -> list[int]:
    """Returns the last depth of the stretch from 8 on at which a run is right, run by run; 0 where it is not."""
    return [holds_from_to(accuracy(run), DEPTH, SOLVED) or 0 for run in found]


def wilson(share: float, count: int) -> tuple[float, float]:
    """Returns the interval of a share of so many sums, in percent."""
    low, high = wilson_interval(round(share * count), count)
    return 100 * low, 100 * high


def sums(found: Iterable[Result], part: str = "near") -> int:
    """Returns of how many sums accuracy is: `near` to depth 100, `far` beyond."""
    return int(same(run[part]["rows"] for run in found))


def updates(found: Iterable[Result]) -> int:
    """Returns the updates that all runs had."""
    return int(same(run["recipe"]["updates"] for run in found))


def pair(label: str) -> Pair:
    """Returns the runs of a setting without the penalty and with it, of the same seeds."""
    off, on = PAIRS[label]
    found = shared(runs(off), runs(on))
    if found is None or len(found[0]) != 3:
        raise ValueError(f"{label}: not three seeds without the penalty and with it")
    return found


def ahead(off: Sequence[Result], on: Sequence[Result], depth: int = LAST) -> Gaps:
    """Returns what the second has more right than the first, in points."""
    return Gaps(tuple(b - a for a, b in zip(exact([*off], depth), exact([*on], depth), strict=True)))


def ratio(off: Sequence[float], on: Sequence[float]) -> Gaps:
    """Returns the logarithm of the second over the first, seed by seed."""
    return Gaps(tuple(math.log(b / a) for a, b in zip(off, on, strict=True)))


def undecided() -> bool:
    """Whether the penalty's gain at depth 1,000 is decided in no setting."""
    return all(ahead(*pair(label)).verdict == "not resolved" for label in PAIRS)


def finite() -> Pair:
    """Returns the runs without and with the penalty by finite difference, of every setting."""
    pairs = [pair(label) for label in FINITE]
    return [run for off, _ in pairs for run in off], [run for _, on in pairs for run in on]


def fewer(off: Sequence[float], on: Sequence[float]) -> int:
    """Returns in how many pairs the second number is the smaller one."""
    return sum(b < a for a, b in zip(off, on, strict=True))


def calm_p() -> list[float]:
    """Returns the p of the penalty's effect on the largest change (of its logarithm), by setting."""
    return [paired_p(ratio(*map(changes, pair(label))).of_seeds) for label in FINITE]


def at_rest(found: Sequence[float], limit: float = REST) -> int:
    """Returns how many changes are so small that they are rounding."""
    return sum(each < limit for each in found)


def rests_from() -> int:
    """Returns from which depth measured on no state of ours moves, with any seed."""
    far = [run["far"] for run in runs(OURS)]
    depths = same(tuple(each["depth"]) for each in far)
    moving = [depth for depth, *moved in zip(depths, *(each["change_largest"] for each in far), strict=True) if max(moved) > REST]
    return min(depth for depth in depths if depth > max(moving))


def ablation() -> dict[str, Runs]:
    """Returns the rows at our settings by what is switched on, those without the penalty first."""
    found = runs_of()["ablation"]
    order = sorted(found, key=lambda label: ("penalty" in label, label != "none", label.count("+"), label))
    rows = {label: found[label] for label in order} | {f"{BARE[1]} + penalty": runs(OURS)}
    return {label.replace("every step", "every-step loss"): each for label, each in rows.items()}


def others() -> dict[str, Runs]:
    """Returns the rows without the penalty that have no row with it."""
    paired = [runs(off) for off, _ in PAIRS.values()]
    return {label: each for label, each in ablation().items() if "penalty" not in label and each not in paired}


def with_parts(count: int) -> list[Result]:
    """Returns the runs at our settings that have so many of injection and embedding norm."""
    rows = ablation().items()
    return [run for label, each in rows for run in each if ("injection" in label) + ("norm" in label) == count]


def near(found: Iterable[Result], depth: int = LAST) -> int:
    """Returns how many runs have at least 99 % of the sums right at a depth."""
    return sum(accuracy(run)[depth] >= SOLVED for run in found)


def right_without() -> list[Result]:
    """Returns the runs at our settings without a penalty that are right at depths 100 and 1,000."""
    found = [run for label, each in ablation().items() if "penalty" not in label for run in each]
    return [run for run in found if all_right([run], 100, LAST)]


def begun(weight: float) -> Runs:
    """Returns the runs with the exact penalty of a weight, begun once the task is solved; without it for 0."""
    return runs(("once_solved", f"λ={weight}")) if weight else runs(RANDOM)


def by_weight(depth: int = LAST) -> dict[float, Gaps]:
    """Returns what each weight has more right than none, in points."""
    return {weight: ahead(runs(RANDOM), begun(weight), depth) for weight in WEIGHTS}


def worst() -> list[float]:
    """Returns what the worst seed of each weight has right at depth 1,000."""
    return [min(exact(begun(weight))) for weight in WEIGHTS]


def start(found: Iterable[Result]) -> int:
    """Returns the update at which the penalty of all runs begins."""
    return int(same(penalty["start"] for run in found for penalty in run["recipe"]["penalties"]))


def before(found: Iterable[Result]) -> float:
    """Returns the largest exact match, in percent and at any depth, of the last validation before the penalty begins."""
    looks = [[seen for update, seen in run["looks"] if update < start([run])][-1] for run in found]
    return 100 * max(max(each.values()) for each in looks)


def learned(run: Result) -> bool:
    """Whether a run learned to add."""
    return accuracy(run)[DEPTH] > LEARNED


def learn(found: Iterable[Result]) -> list[Result]:
    """Returns the runs that did."""
    return [run for run in found if learned(run)]


def group(name: str, ends: str = "") -> list[Result]:
    """Returns the runs of a group, of labels with this end, one seed each."""
    return [run for label, (run,) in runs_of()[name].items() if label.endswith(ends)]


@cache
def cells(name: str = "distributions") -> dict[str, dict[str, Result]]:
    """Returns the runs of a group by placement of norms and by what follows in the label, one seed each."""
    found = {label: run for label, (run,) in runs_of()[name].items()}
    return {
        place: {label[len(place) + 1 :]: run for label, run in found.items() if f"{label} ".startswith(f"{place} ")}
        for place in PLACES
    }


def rules() -> list[str]:
    """Returns the depth distributions, the deepest first."""
    means = {rule: mean for place in PLACES for rule, (_, mean) in depth_rules(place).items()}
    return sorted(means, key=lambda rule: -means[rule])


def on(*places: str, name: str = "distributions") -> list[Result]:
    """Returns the runs of some placements."""
    return [run for place in places for run in cells(name)[place].values()]


def post_sandwich_as_told() -> bool:
    """Whether on post-sandwich the four of least mean depth learn, the widest range among them, and reach the further the deeper
    the tail of their distribution (what one draw in a hundred exceeds)."""
    found, rules = cells()["post-sandwich"], depth_rules("post-sandwich")
    order = sorted(found, key=lambda rule: rules[rule][1])
    tails = sorted(order[:4], key=lambda rule: build_kind(found[rule]["recipe"]["depth"], RULES).span[-1])
    reach = held(found[rule] for rule in tails)
    wide = max(found, key=lambda rule: found[rule]["recipe"]["depth"]["most"])
    return [rule for rule in order if learned(found[rule])] == order[:4] and wide in order[:4] and reach == sorted(reach)


def beside_short() -> tuple[int, int, int]:
    """Returns in how many runs that learn at both settings the stretch is longer at the paper's, and as long; and the number of
    runs that learn in the short ones alone."""
    both = [(run, cells("brief_distributions")[place][rule]) for place, each in cells().items() for rule, run in each.items()]
    stretches = [held(pair) for pair in both if all(map(learned, pair))]
    alone = sum(learned(short) and not learned(run) for run, short in both)
    return sum(a > b for a, b in stretches), sum(a == b for a, b in stretches), alone


def times_as_deep(found: Sequence[Result]) -> list[float]:
    """Returns how many times the largest depth allowed in training the stretches are."""
    return [last / run["recipe"]["depth"]["most"] for last, run in zip(held(found), found, strict=True)]


def grown(found: Iterable[Result]) -> list[float]:
    """Returns how many times as large the state of one sum is after a hundred steps as after one, run by run."""
    return [run["path"]["size"][-1] / run["path"]["size"][1] for run in found]


def varies(found: Iterable[Result]) -> float:
    """Returns by how many percent the size of that state changes at most after the first step."""
    sizes = [run["path"]["size"][1:] for run in found]
    return 100 * max(max(each) / min(each) - 1 for each in sizes)


def around(place: str, name: str = "brief") -> list[Result]:
    """Returns the runs with a prelude, a coda, both and neither, at fixed depth 4."""
    groups = ("brief_static", "brief_norms", "") if name == "brief" else ("stacks", "norms", " layer")
    return [one(groups[0], f"{place} {each}") if each else one(groups[1], f"{place}{groups[2]}") for each in AROUND]


def l2(place: str, weight: float, *, brief: bool = False) -> Result:
    """Returns the run with the L2 penalty at fixed depth 4 (`brief`: at random depth in the short runs); without it for 0."""
    if brief:
        return one("brief_changes", f"{place} + {weight} L2") if weight else cells("brief_distributions")[place]["poisson(5)"]
    return one("changes", f"{place}, fixed + {weight} L2") if weight else one("norms", f"{place} layer")


def l2s(place: str, *, brief: bool = False) -> list[Result]:
    """Returns the runs of a placement with that penalty at its smaller weights."""
    return [l2(place, weight, brief=brief) for weight in L2[1:]]


def stands_from(run: Result) -> int:
    """Returns the step from which on the path drawn is within a thousandth of the state's size of its end."""
    far = [step for step, away in enumerate(from_end(run)) if away > 0.1]
    return 1 + max(far, default=-1)


def from_end(run: Result) -> list[float]:
    """Returns how far the path drawn is from its end at each step, in percent of the state's size."""
    points, size = run["path"]["points"], run["path"]["size"][-1]
    return [100 * math.dist(point, points[-1]) / size for point in points]


def paths() -> dict[str, Result]:
    """Returns the runs made once more for their paths."""
    return {label: run for label, (run,) in runs_of()["paths"].items()}


def path_pair(end: str = "") -> list[Result]:
    """Returns those with no part and with all parts at our settings, without the penalty, or with it."""
    return [paths()[f"{parts}{end}"] for parts in ("no part", "all parts")]


def missing(name: str) -> list[int]:
    """Returns the seeds of a group that were planned and not run."""
    return sorted({run.seed for run in GROUPS[name]()} - {run["seed"] for each in runs_of()[name].values() for run in each})


def origins() -> tuple[int, int]:
    """Returns how many rows there are, all with recipe, device and version of PyTorch, and how many hold their commit."""
    rows = rows_of("stars/runs.jsonl")
    origin = [row.get("origin") or {"commit": None, "devices": row.get("device"), "torch": row.get("torch")} for row in rows]
    if not all(row["recipe"] and each["devices"] and each["torch"] for row, each in zip(rows, origin, strict=True)):
        raise ValueError("stars/runs.jsonl: a row lacks its recipe, its device or its version of PyTorch")
    return len(rows), sum(bool(each["commit"]) for each in origin)


def update(precision: str, depth: int, penalty: str | None) -> Result:
    """Returns what an update of the addition model took, and how long the public code takes."""
    return only("training/stars-update-h200.jsonl", precision=precision, depth=depth, penalty=penalty)


def ouro(what: str, mode: str | None) -> Result:
    """Returns a cell of the paper's Table 4: the cost beside fine-tuning at depth 4."""
    return only("training/ouro-cost-h200.jsonl", benchmark=f"Table 4: {what} / fine-tuning at depth 4", mode=mode)


def faster(precision: str) -> list[float]:
    """Returns how many times as fast as the public code these updates are."""
    return [update(precision, depth, penalty)["times_faster"] for _, depth, penalty in UPDATES]


def slower(precision: str) -> list[float]:
    """Returns the same the other way round: the time of ours over that of the public code."""
    found = [update(precision, depth, penalty) for _, depth, penalty in UPDATES]
    return [row["ms"] / row["public_ms"] for row in found]
