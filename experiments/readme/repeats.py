"""What docs/when-to-loop.md says about text that runs out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from experiments.pages import Result, results
from experiments.readme.rows import RESULTS, WORDS, line
from experiments.repeats.plan import FRESH, LONGER, STOPPED, rates
from experiments.repeats.tables import BY_DEPTH, HALVES, LOOPED, MAIN, RIVALS, chosen, stopped
from experiments.seeds import Pooled, pooled


@cache
def kept() -> dict[tuple[str, int], list[Result]]:
    """Returns the runs of every arm at its own rate."""
    return chosen(results([str(RESULTS / "repeats/runs.jsonl")], rates()))


def claims() -> Iterator[str]:
    """Yields both tables of the section: losses by arm, and looped less plain."""
    early = stopped(kept())
    for label in MAIN:
        texts = [kept().get((label, times), []) for times in (1, 4)]
        texts += [early.get((label, STOPPED), []), kept().get((label, STOPPED), [])]
        if any(texts):
            runs = next(runs for runs in texts if runs)
            sizes = f"{runs[0]['parameters'] / 1e6:.2f} M", f"{runs[0]['flops'] / 1e6:.1f} M"
            own = "; ".join(f"{rate:g}" for rate in dict.fromkeys(runs[0]["rate"] for runs in texts if runs))
            yield line(label, *sizes, own, *map(losses, texts))
    for label in LOOPED:
        for rival in RIVALS:
            cells = [beside(label, rival, times) for times in (1, 4)] + [beside(label, rival, STOPPED, early=True)]
            if any(cells):
                yield line(f"{label} less {rival}", *map(told, cells))
    for depth, label in BY_DEPTH.items():
        if deep := kept().get((label, 1)):
            half = kept().get((BY_DEPTH[depth // 2], 1), []) if depth // 2 in HALVES and depth % 2 == 0 else []
            less = told(pooled(deep, half, "test"))
            yield line(str(depth), f"{deep[0]['parameters'] / 1e6:.2f} M", f"{deep[0]['rate']:g}", losses(deep), less)


def losses(runs: list[Result]) -> str:
    """Returns the losses on `test`, seed by seed."""
    return " / ".join(f"{run['loss']['test']:.3f}" for run in runs) or "–"


def beside(label: str, rival: str, times: int, *, early: bool = False) -> Pooled | None:
    """Returns a looped arm against a plain one on the same text, each at its end or at its best validation; None where one was not
    run."""
    runs = stopped(kept()) if early else kept()
    return pooled(runs.get((label, times), []), runs.get((rival, times), []), "test")


def told(found: Pooled | None) -> str:
    """Returns a difference with its interval over seeds and what is decided; of one seed the difference alone."""
    if found is None:
        return "–"
    if len(found.seeds) == 1:
        return f"{found.difference:+.3f} (one seed)".replace("-", "−")
    low, high = found.over_seeds
    word = {"lower": "**ahead**", "higher": "**behind**"}.get(found.verdict, "undecided")
    return f"{found.difference:+.3f} ({low:+.3f} to {high:+.3f}), {word}".replace("-", "−")


def short(found: Pooled | None, equal: str = "FLOPs") -> str:
    """Returns on which side the looped arm is and by how much, in words."""
    assert found is not None
    side = "ahead of" if found.difference < 0 else "behind"
    return f"{side} plain layers of equal {equal} ({_much(found)})"


def more_updates() -> str:
    """Returns on which side of ASURA plain layers are that make up for its FLOPs by more updates, in words."""
    same, more = (beside("ASURA", rival, 1) for rival in (LONGER, FRESH))
    assert same is not None and more is not None
    sides = {"ahead of" if found.difference > 0 else "behind" for found in (same, more)}
    side = sides.pop() if len(sides) == 1 else "on both sides of"
    return f"that spend its FLOPs on more updates are {side} it (on the same text {_much(same)}; on more text {_much(more)})"


def _much(found: Pooled) -> str:
    count = len(found.seeds)
    decided = "" if count == 1 else ", decided" if found.verdict in ("lower", "higher") else ", not decided"
    return f"by {abs(found.difference):.2f} nats, {WORDS[count]} seed{'s' * (count > 1)}{decided}"
