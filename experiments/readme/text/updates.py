"""What the pages say of plain layers with three times the updates on text that the others read four times."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from experiments.readme.rows import WORDS, when
from experiments.readme.text.repeats import PARAMETERS, agree, beside, kept, on_ood
from experiments.repeats.plan import LONGER
from experiments.seeds import DECIDED, Pooled, over_seeds


def behind(rival: str) -> Pooled:
    """Returns the layers with three times the updates less another arm."""
    found = beside(LONGER, rival, 4)
    assert found is not None and len(found.seeds) == 3
    return found


def often() -> str:
    """Returns how often they read the text: "twelve"."""
    return WORDS[round(kept()[LONGER, 4][0]["epochs"])]


def claims() -> Iterator[str]:
    """Yields what docs/when-to-loop-text.md says under its table."""
    few, ours, runs = behind(PARAMETERS), behind("ASURA"), kept()[LONGER, 4]
    fits, held = [run["losses"][-1] for run in runs], [run["loss"]["test"] for run in runs]
    yield (
        f"which they read {often()} times, they overfit: at the end the training loss is {min(fits):.2f} to {max(fits):.2f}, and "
        f"the held-out loss {min(held):.3f} to {max(held):.3f}"
    )
    yield (
        f"They are {few.difference:.3f} behind the same layers with a third of the updates ({agree(few)} seeds, "
        f"{DECIDED[few.verdict]}) and {ours.difference:.3f} behind ASURA ({agree(ours)}, {DECIDED[ours.verdict]})"
    )
    other = on_ood(LONGER, "ASURA", 4)
    yield when(
        over_seeds(other)[0] > 0, f"ahead of these layers with three times the updates at four readings by {mean(other):.2f}"
    )


def brief_claims() -> Iterator[str]:
    """Yields the same in short: the first part of the page."""
    ours = behind("ASURA")
    so = ours.verdict == "higher"
    told = f"they overfit and are {ours.difference:.2f} behind it (decided; not stopped early)"
    yield when(so, f"which they read {often()} times (ASURA four), {told}")
    other = behind("Huginn-like")
    told = f"where these read the text {often()} times and overfit (decided; not stopped early)"
    yield when(
        other.verdict == "higher", f"It is {other.difference:.2f} ahead of four plain layers with three times the updates {told}"
    )
    yield when(so, f"**ahead** by {ours.difference:.2f} (decided): the layers read it {often()} times and overfit")
