"""What the pages on text say of their families of comparisons after a Bonferroni correction, where each is judged by itself."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.readme.rows import WORDS, when
from experiments.readme.text import depths, repeats
from experiments.repeats.plan import FRESH, LONGER, PARAMETERS, STOPPED
from experiments.repeats.tables import LOOPED, RIVALS
from experiments.seeds import Pooled, stay_decided


def text_claims() -> Iterator[str]:
    """Yields what docs/when-to-loop-text.md says of text that runs out, and of ASURA by depth."""
    found = {}
    for arm in LOOPED:
        for rival in RIVALS:
            cells = {times: repeats.beside(arm, rival, times) for times in (1, 4)}
            cells[STOPPED] = repeats.beside(arm, rival, STOPPED, early=True)
            found |= {(arm, rival, times): each for times, each in cells.items() if each is not None}
    decided = [each for each in found.values() if each.verdict != "not resolved"]
    told = f"After a Bonferroni correction for the {len(found)} differences two of the {WORDS[len(decided)]} decided ones stay"
    names = "ASURA ahead of the layers that read the text twelve times, and behind those with three times the text"
    yield when(stay_decided(found) == [("ASURA", LONGER, 4), ("ASURA", FRESH, 1)], f"{told}: {names}")
    own, calm = by_depth(None), by_depth(depths.calm())
    stay = [[depth for depth, rival in stay_decided(each) if rival == PARAMETERS] for each in (own, calm)]
    told = f"After a Bonferroni correction for the {len(calm)} differences at a rate the leads over four plain layers that stay are"
    same = stay == [[4], [4, 6]] and [len(stay_decided(each)) for each in (own, calm)] == [1, 2] and len(own) == len(calm)
    yield when(same, f"{told} those of depth 4 at 4e-3 and of depths 4 and 6 at 2e-3; that of depth 1 does not")


def by_depth(runs: depths.Chosen | None) -> dict[tuple[int, int | str], Pooled]:
    """Returns each depth less depth 1, less half of it and less four plain layers, at one rate."""
    found: dict[tuple[int, int | str], Pooled] = {}
    for depth in depths.BY_DEPTH:
        found[depth, PARAMETERS] = depths.less_plain(depth, runs)
        if depth > 1:
            found[depth, 1] = depths.less(depth, 1, runs)
        if (half := depths.half_of(depth, runs)) is not None:
            found[depth, depth // 2] = half
    return found
