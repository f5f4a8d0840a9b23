"""What the README says about hops."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.hops.plan import ARMS
from experiments.hops.reading import SOLVED, TRAINED, best_anywhere, by_arm, mean_exact, solved_hops
from experiments.readme.rows import line, of, rows_of
from experiments.seeds import over_seeds

LINES = {
    "one layer, run eight times": "1⊗8",
    "two layers, run four times": "2⊗4",
    "eight layers, each run once": "plain 8",
    "one layer, run once": "plain 1",
    "two layers, each run once": "plain 2",
}
LEARNED = 0.1  # loss on the validation rows
GUESS = 1 / 3  # of rows: hops that a model right on fewer does not answer
SETTINGS = (
    "Following a trail of up to 16 hops (p-hop induction, width 256, rows of 128 symbols)",
    "hops solved, of 16",
)


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    rows = rows_of("hops/runs.jsonl")
    arms = by_arm(row for row in rows if row["group"] == "compared")
    looped, plain = arms["1⊗8"], arms["plain 8"]
    count = {str(test["rows"]) for runs in arms.values() for run in runs for test in run["tests"].values()}
    yield f"right on {100 * SOLVED:.0f} % of {' and '.join(sorted(count))} rows"
    for label, arm in LINES.items():
        one = arms[arm][0]
        solved = " / ".join(str(min(solved_hops(run), TRAINED[-1])) for run in arms[arm])
        yield line(label, f"{one['parameters'] / 1e6:.2f} M", f"{one['flops'] / 1e6:.1f} M", solved)
    sizes = [f"{runs[0]['parameters'] / 1e6:.2f} million" for runs in (looped, plain)]
    if looped[0]["flops"] == plain[0]["flops"]:
        yield f"with {sizes[0]} parameters what eight layers do with {sizes[1]}, at equal FLOPs"
    apart = [100 * (mean_exact(a) - mean_exact(b)) for a, b in zip(looped, plain, strict=True)]
    low, high = over_seeds(apart)
    verdict = "not decided" if low <= 0 <= high else "decided"
    yield f"their mean exact match differs by {abs(sum(apart) / len(apart)):.2f} points, {verdict}"
    later = sum(learned(a) > learned(b) for a, b in zip(looped, plain, strict=True))
    yield f"on {of(later, len(looped))} seeds takes more updates to learn"
    far = [row for row in rows if "32" in row["tests"]]
    if all(best_anywhere(row, hops) < GUESS for row in far for hops in (24, 32)):
        depths = {test["depth"][-1] for row in far if ARMS[row["arm"]][1] > 1 for test in row["tests"].values()}
        yield f"No model answers 24 or 32 hops, at any depth up to {' and '.join(map(str, sorted(depths)))}."


def learned(row: dict[str, list[list[float]]]) -> float:
    """Returns the update from which on the loss on the validation rows stays small."""
    high = [update for update, loss in row["valid"] if loss >= LEARNED]
    return max(high, default=0)
