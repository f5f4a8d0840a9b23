"""What docs/stars.md says of runs of STARS that learned the task, and of those that did not."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.pages import Result, words
from experiments.readme.rows import WORDS, of, when
from experiments.readme.tasks.stars import runs_of
from experiments.seeds import over_seeds, paired_p
from experiments.stars.tables import accuracy

LEARNED, DEPTH = 0.9, 8  # a run learned the task if so many sums are right at this depth


def learned(run: Result) -> bool:
    """Returns whether a run learned to add."""
    return accuracy(run)[DEPTH] > LEARNED


def start(run: Result) -> int:
    """Returns the update from which on a run has its penalty."""
    (penalty,) = run["recipe"]["penalties"]
    return int(penalty["start"])


def before(run: Result) -> float:
    """Returns the largest exact match, in per cent and at any depth, of the last validation before the penalty begins."""
    last = [exact for update, exact in run["looks"] if update < start(run)][-1]
    return 100 * max(last.values())


def early_claims() -> Iterator[str]:
    """Yields what came of a penalty that begins before the task is learned."""
    weights = {label: runs[0] for label, runs in runs_of()["weights"].items()}
    lost = [label for label, run in weights.items() if not learned(run)]
    (begun,) = {start(run) for run in weights.values()}
    kept = [label.removeprefix("λ=") for label in weights if label not in lost]
    ends = words([label.removeprefix("λ=") for label in lost])
    yield f"from update {begun:,} on the task was learned with λ = {words(kept)} and not with {ends} (one seed each)"
    released = runs_of()["main"]["random + penalty"]
    (begun,) = {start(run) for run in released}
    most = max(map(before, released))
    told = f"As released the penalty begins at update {begun:,}, where at most {most:.1f} % were right at any depth"
    yield f"{told}, and {of(sum(map(learned, released)), len(released))} seeds learned it"
    brief = [runs[0] for label, runs in runs_of()["brief_weights"].items() if label.endswith("early")]
    (begun,) = {start(run) for run in brief}
    exact = {penalty["mode"] for run in brief for penalty in run["recipe"]["penalties"]} == {"exact"}
    told = f"Of {WORDS[len(brief)]} short runs with exact products from update {begun} on {WORDS[sum(map(learned, brief))]} did"
    yield when(exact, told)


def price() -> str:
    """Returns for how many weights of the penalty, begun once the task is solved, depth 1 is worse by a decided amount."""
    without = runs_of()["main"]["random"]
    pairs = [zip(runs, without, strict=True) for runs in runs_of()["once_solved"].values()]
    apart = [[accuracy(on)[1] - accuracy(off)[1] for on, off in pair] for pair in pairs]
    worse = sum(max(over_seeds(each)) < 0 for each in apart)
    left = sum(len(apart) * paired_p(each) < 0.05 for each in apart)
    told = f"(decided for {WORDS[worse]}, after a Bonferroni correction for {WORDS[left]})"
    lower = all(sum(each) < 0 for each in apart)
    return when(lower, f"accuracy at depth 1 is lower in the mean for each of {WORDS[len(apart)]} weights {told}")


def finding_claims() -> Iterator[str]:
    """Yields what short runs at random depth say beside those at fixed depth (the paper's Finding 4)."""
    fixed, random = ([runs[0] for runs in runs_of()[group].values()] for group in ("brief_norms", "brief_distributions"))
    none = max(accuracy(run)[32] for run in fixed) < 0.0005
    yield when(none, f"Trained at depth 4 alone, none of the {WORDS[len(fixed)]} layouts is right at 32")
    lasting = [100 * accuracy(run)[100] for run in random if learned(run)]
    told = f"these are {min(lasting):.0f} to {max(lasting):.0f} % right at 100"
    yield f"With random depth {len(lasting)} of {len(random)} runs learn, and {told}"
