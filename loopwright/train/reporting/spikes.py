"""Spikes of a training loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

DEVIATIONS, BEFORE = 4.0, 50


def spikes(losses: Sequence[float | None], deviations: float = DEVIATIONS, before: int = BEFORE) -> list[int]:
    """Returns the places of losses that stand more than `deviations` standard deviations above the mean of the `before` ahead of
    them. Losses that are not finite (of updates that were skipped) are left out."""
    finite = [(place, loss) for place, loss in enumerate(losses) if loss is not None and math.isfinite(loss)]
    values = [loss for _, loss in finite]
    found = []
    for i in range(before, len(values)):
        last = values[i - before : i]
        mean = sum(last) / before
        if values[i] > mean + deviations * math.sqrt(sum((x - mean) ** 2 for x in last) / before):
            found.append(finite[i][0])
    return found


def spikes_in_words(updates: Sequence[int]) -> str:
    """Returns how many spikes there were, and at which updates."""
    listed = ", ".join(map(str, updates[:8])) + (" …" if len(updates) > 8 else "")
    spiked = "1 spike" if len(updates) == 1 else f"{len(updates)} spikes"
    return f"{spiked} of the loss (above the {BEFORE} updates before by more than {DEVIATIONS:g} deviations), at update {listed}"
