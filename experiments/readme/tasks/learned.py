"""What docs/stars.md says of runs of STARS that learned the task, and of those that did not."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.pages import Result, words
from experiments.readme.rows import WORDS, of, when
from experiments.readme.tasks.stars import runs_of
from experiments.seeds import over_seeds
from experiments.stars.tables import accuracy

LEARNED, DEPTH = 0.9, 8  # right at this depth, a little beyond the mean of the depths drawn


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
    yield f"from update {begun:,} on it was never learned with λ = {ends} and was with {words(kept)} (one seed each)"
    released = runs_of()["main"]["random + penalty"]
    (begun,) = {start(run) for run in released}
    most = max(map(before, released))
    told = f"As released the penalty begins at update {begun:,}, where at most {most:.1f} % were right at any depth"
    yield f"{told}, and {of(sum(map(learned, released)), len(released))} seeds learned it"
    brief = [runs[0] for label, runs in runs_of()["brief_weights"].items() if label.endswith("early")]
    (begun,) = {start(run) for run in brief}
    yield f"Of {WORDS[len(brief)]} short runs with it from update {begun} on {WORDS[sum(map(learned, brief))]} did"


def price() -> str:
    """Returns for how many weights of the penalty, begun once the task is solved, depth 1 is worse by a decided amount."""
    without = runs_of()["main"]["random"]
    pairs = [zip(runs, without, strict=True) for runs in runs_of()["once_solved"].values()]
    worse = [max(over_seeds([accuracy(on)[1] - accuracy(off)[1] for on, off in pair])) < 0 for pair in pairs]
    return f"it costs accuracy at depth 1 (decided for {WORDS[sum(worse)]} of {WORDS[len(worse)]} weights)"


def finding_claims() -> Iterator[str]:
    """Yields what short runs at random depth say beside those at fixed depth (the paper's Finding 4)."""
    fixed, random = ([runs[0] for runs in runs_of()[group].values()] for group in ("brief_norms", "brief_distributions"))
    none = max(accuracy(run)[32] for run in fixed) < 0.0005
    yield when(none, f"Trained at depth 4 alone, none of the {WORDS[len(fixed)]} layouts is right at 32")
    lasting = [100 * accuracy(run)[100] for run in random if learned(run)]
    told = f"these are {min(lasting):.0f} to {max(lasting):.0f} % right at 100"
    yield f"With random depth {len(lasting)} of {len(random)} runs learn, and {told}"
