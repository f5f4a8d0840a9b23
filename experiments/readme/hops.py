"""What docs/when-to-loop.md says about hops."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from experiments.hops.plan import ARMS
from experiments.hops.reading import SOLVED, TRAINED, best_anywhere, by_arm, mean_exact, solved_hops
from experiments.pages import Result
from experiments.readme.rows import line, of, rows_of
from experiments.seeds import over_seeds

LOOPED, PLAIN = "1⊗8", "plain 8"
SHOWN = ("1⊗8", "2⊗4", "plain 8", "plain 1", "plain 2")
FAR = (24, 32)  # hops that were not trained
GUESS = 1 / 3  # of rows: hops that a model right on fewer does not answer
LEARNED = 0.1  # loss on the validation rows


@cache
def arms_of() -> dict[str, list[Result]]:
    """Returns the runs of the comparison by arm."""
    return by_arm(row for row in rows_of("hops/runs.jsonl") if row["group"] == "compared")


def sizes() -> tuple[str, str]:
    """Returns the parameters of the looped layer and of eight layers, in millions."""
    looped, plain = (f"{arms_of()[arm][0]['parameters'] / 1e6:.2f}" for arm in (LOOPED, PLAIN))
    return looped, plain


def apart() -> tuple[float, float, float, str]:
    """Returns the looped layer less eight layers in mean exact match (points), its interval over seeds and the verdict."""
    points = [100 * (mean_exact(a) - mean_exact(b)) for a, b in zip(arms_of()[LOOPED], arms_of()[PLAIN], strict=True)]
    low, high = over_seeds(points)
    return sum(points) / len(points), low, high, "not decided" if low <= 0 <= high else "decided"


def far() -> tuple[float, str]:
    """Returns the best exact match of any looped run at hops beyond the trained ones, at any depth, and the deepest depth."""
    rows = [row for row in rows_of("hops/runs.jsonl") if "32" in row["tests"] and ARMS[row["arm"]][1] > 1]
    depths = {test["depth"][-1] for row in rows for test in row["tests"].values()}
    best = max(best_anywhere(row, hops) for row in rows for hops in FAR)
    return best, " and ".join(map(str, sorted(depths)))


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    (count,) = {test["rows"] for runs in arms_of().values() for run in runs for test in run["tests"].values()}
    yield f"the last letter of {count} rows for each p, and on p = {FAR[0]} and {FAR[1]}, which were not trained"
    yield f"right on at least {100 * SOLVED:.0f} % of their rows. {count} of {count} rows"
    for arm in SHOWN:
        one = arms_of()[arm][0]
        solved = " / ".join(str(min(solved_hops(run), TRAINED[-1])) for run in arms_of()[arm])
        yield line(arm, f"{one['parameters'] / 1e6:.2f} M", f"{one['flops'] / 1e6:.1f} M", solved)
    looped, plain = sizes()
    if arms_of()[LOOPED][0]["flops"] == arms_of()[PLAIN][0]["flops"]:
        yield f"| 1⊗8 ({looped} M) and 2⊗4 (1.58 M) | eight layers ({plain} M), equal FLOPs |"
    mean, low, high, verdict = apart()
    signed = " ".join(f"{mean:+.2f} points ({low:+.2f} to {high:+.2f})".split()).replace("-", "−")
    yield f"1⊗8 less plain 8: {signed}"
    if verdict == "not decided":
        yield "Neither is decided."
    later = sum(learned(a) > learned(b) for a, b in zip(arms_of()[LOOPED], arms_of()[PLAIN], strict=True))
    yield f"It learned later on {of(later, len(arms_of()[LOOPED]))} seeds"
    best, depths = far()
    yield f"{FAR[0]} and {FAR[1]} hops are right on at most {100 * best:.0f} % of the rows at every depth from 1 to {depths}"


def learned(row: Result) -> float:
    """Returns the update from which on the loss on the validation rows stays small."""
    high = [update for update, loss in row["valid"] if loss >= LEARNED]
    return max(high, default=0)
