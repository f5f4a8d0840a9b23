"""The retrofit study's tables and figures, from its results alone.

    python -m experiments.ouroboros.tables experiments/results/ouroboros/runs.jsonl experiments/results/ouroboros

Every share of a gap is on the same passages, worse = the truncated model, better = the full one, or the full one trained the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from experiments.ouroboros.answers import diverged
from experiments.ouroboros.plan import (
    BEST,
    BEST_ONCE,
    BEST_STATIC,
    BLIND,
    CONTROLLER,
    CUT,
    DIAGONAL,
    FULL,
    GATE,
    GROUPS,
    HEALED,
    NORMED,
    ONCE,
    STATIC,
    TRUNCATED,
    Row,
)
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.pages import Result, by_label, percent, table
from experiments.seeds import RULE, Pooled, Share, best_depth, held, pooled, reports, share_of_gap
from experiments.tables import Columns, Page, arm_table, columns_of, loss_columns, named_pairs, of, pair_table
from loopwright.evaluation.text import HeldOut
from loopwright.plot.drawing import Drawing

# the question against low-rank tables per step, against the very same controller that reads nothing, then what bears on it
BY_DEPTH = ((CONTROLLER, STATIC), (CONTROLLER, BLIND), (NORMED, STATIC), (NORMED, BLIND), (NORMED, CONTROLLER))
PAIRS = (
    *BY_DEPTH, (BLIND, STATIC), (BLIND, DIAGONAL), (CONTROLLER, DIAGONAL), (CONTROLLER, GATE), (DIAGONAL, GATE),
    (DIAGONAL, STATIC), (GATE, STATIC), (CONTROLLER, ONCE), (STATIC, ONCE), (BEST, BEST_ONCE), (BEST, BEST_STATIC),
)  # fmt: skip
PAPER = "The paper's Table 5, 12 sentences: its retrofit beats the truncated model on 3, the full one on none; its share is −6.8 %."
ENDS = (TRUNCATED, FULL)
COLUMNS: Columns = {
    **columns_of("trainable", "kept", "tokens", "skipped"), "diverged": diverged, "training loss: first": of("losses", 0),
    "last": of("losses", -1),
    **{f"diagonals: {name}": of("diagonals", *keys) for name, keys in {
        "size (RMS)": ("size",), **{f"variance between {what}": ("shares", what) for what in ("steps", "kinds", "passages")},
    }.items()},
}  # fmt: skip
ABOUT = (
    RULE,
    "The gap goes from the truncated model to the full one. Training on this text can pass the full model, so the healed gap goes "
    "from the truncated model to the full one trained on the same tokens with as many parameters (one seed), and that of the own "
    "layout from the truncated model of the searched layout. Depth 16 was not trained. Of the parameters that the blind controller "
    "trains, about 213 thousand would read the state and are idle. A row whose loss is no likelihood sees the future.",
)

Runs = Mapping[str, Sequence[Result]]
Shares = Mapping[str, Mapping[str, Share]]  # by label and text
Pairs = dict[tuple[str, str], dict[int | None, dict[str, Pooled]]]  # by labels, depth and text


def planned() -> Iterator[Row]:
    """All rows of the plan."""
    for group in GROUPS.values():
        yield from group()


def shown_depth(label: str, found: Sequence[HeldOut]) -> int:
    """Returns the depth a row is told at: its best, and for the truncated model, which is not looped, its first."""
    return found[0].depth[0] if label in (TRUNCATED, CUT) else best_depth(found)


def shares_to(runs: Runs, better: str, worse: str = TRUNCATED) -> Shares:
    """Returns what each row recovers of the gap from a truncated model to a better one."""
    ends = of(0)(runs.get(worse, [])), of(0)(runs.get(better, []))
    found: dict[str, dict[str, Share]] = {}
    for label, of_label in runs.items():
        for text in TEXTS:
            depth = shown_depth(label, reports(of_label, text))
            if (share := share_of_gap(of_label, *ends, text, depth)) is not None:
                found.setdefault(label, {})[text] = share
    return found


def all_pairs(runs: Runs, asked: Sequence[tuple[str, str]] = PAIRS) -> Pairs:
    """Returns every pair on every text: both rows at each depth that they share, and (under None) each at its best."""
    found: Pairs = {}
    for first, second in asked:
        if runs.get(first) and runs.get(second):
            for depth in (*DEPTHS, None):
                both = {text: pooled(runs[first], runs[second], text, depth) for text in TEXTS}
                if kept := {text: each for text, each in both.items() if each is not None}:
                    found.setdefault((first, second), {})[depth] = kept
    return found


def share_table(runs: Runs) -> str:
    """Returns what each row recovers of every gap at its best depth, with the interval over documents and seed by seed."""
    gaps = {"": shares_to(runs, FULL), "healed": shares_to(runs, HEALED), "own layout": shares_to(runs, FULL, CUT)}
    lines = []
    for gap, found in gaps.items():
        for label, texts in found.items():
            if gap != "own layout" or label.endswith("searched layout"):
                for text, share in texts.items():
                    told = f"{percent(share.share)} ({percent(share.low)} to {percent(share.high)})"
                    depth = shown_depth(label, reports(runs[label], text))
                    lines.append([label, gap, text, str(depth), told, " / ".join(map(percent, share.of_seeds))])
    return table(["row", "gap", "text", "depth", "gap recovered (95 %, documents)", "by seed"], lines)


def honest_columns(text: str) -> Columns:
    """Returns the columns of rows that see the future: by depth, in one pass, and what they lose prefix by prefix."""

    def told(name: str, place: int, run: Result) -> Any:
        honest = held(run, text).honest
        return None if honest is None else getattr(honest, name)[place]

    numbers = {"one pass": "forced", "prefix by prefix": "loss", "gain": "gain", "low": "gain_low", "high": "gain_high"}
    return {
        f"depth {depth}: {what}": partial(told, name, place)
        for place, depth in enumerate(DEPTHS) for what, name in numbers.items()
    }  # fmt: skip


def parts(found: list[Result]) -> dict[str, str]:
    """Returns the tables of the page."""
    runs = by_label(found)
    main = [label for label, of_label in runs.items() if of_label[0]["group"] != "others"]
    won = named_pairs(runs, ((label, end) for label in main for end in ENDS if label != end))
    made = {"Rows": arm_table(runs, COLUMNS, "row")}
    made |= {f"{text}: loss by depth": arm_table(runs, loss_columns((text,), DEPTHS), "row") for text in TEXTS}
    made |= {
        "The gap recovered": share_table(runs),
        "Pair by pair, each row at its best depth": pair_table(named_pairs(runs, PAIRS), [*TEXTS]),
        "Pair by pair, at equal depths": pair_table(named_pairs(runs, BY_DEPTH), [*TEXTS], DEPTHS),
        "Passages won": f"{PAPER}\n\n{pair_table(won, [*TEXTS])}",
    }
    leaking = {label: of_label for label, of_label in runs.items() if held(of_label[0], "test").honest is not None}
    return made | {f"{text}: seeing the future": arm_table(leaking, honest_columns(text), "row") for text in TEXTS}


def draw(found: list[Result]) -> dict[str, Drawing]:
    """Returns the figures by name."""
    from experiments.ouroboros.figures import draw_all

    runs = by_label(found)
    return draw_all(runs, shares_to(runs, FULL), all_pairs(runs))


PAGE = Page("The retrofit study", ("ouroboros/runs.jsonl",), parts, lambda found: planned(), draw, about=ABOUT)


if __name__ == "__main__":
    PAGE.main(__doc__, "experiments.ouroboros.tables")
