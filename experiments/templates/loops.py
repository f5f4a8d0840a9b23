"""What docs/when-to-loop.md asks of the rows of several studies: where a loop pays."""

from __future__ import annotations

from experiments import overview
from experiments.hops.reading import TRAINED, solved_hops
from experiments.ouroboros.plan import AT_ONE, looping
from experiments.pages import Result
from experiments.repeats.plan import FLOPS, LONGER, PARAMETERS
from experiments.templates import asura, cores, depths, hops, repeats, sft, swaps, whole_text
from experiments.templates.words import open_, stands

LOOPED, LAYER = "1⊗8", "plain 1"
ADAPTERS = "retrofit"  # how the names of lines of retrofits begin


def pays_on_hops() -> bool:
    """Whether the looped layer solves all trained hops, and the same layer run once none."""
    loop, layer = (hops.arms_of()[arm] for arm in (LOOPED, LAYER))
    return {solved_hops(run) for run in layer} == {0} and {solved_hops(run) for run in loop} == {TRAINED[-1]}


def longer_layer() -> list[Result]:
    """Returns the runs of the layer run once that spend the loop's FLOPs on more updates."""
    found = hops.longer(LAYER)
    loop = hops.arms_of()[LOOPED][0]
    if abs(found[0]["updates"] * found[0]["flops"] / (loop["updates"] * loop["flops"]) - 1) >= 0.01:
        raise ValueError("hops: the longer runs of the layer run once do not have the loop's FLOPs")
    return found


def solved_by_longer() -> int:
    """Returns how many hops these runs solve."""
    (found,) = {solved_hops(run) for run in longer_layer()}
    return found


def open_on_ood(label: str, rival: str, times: int, *, early: bool = False) -> bool:
    """Whether the interval over seeds holds 0 on the second text."""
    return open_(repeats.on_ood(label, rival, times, early=early))


def nearly(rival: str, what: str) -> list[float]:
    """Returns which parts of the loops' parameters or FLOPs the plain layers of the table have."""
    study = {FLOPS: asura.FLOPS, PARAMETERS: asura.PARAMETERS}[rival]
    plain, arms = repeats.kept()[rival, 1][0], [repeats.kept()[arm, 1][0] for arm in overview.LOOPS]
    return [*asura.times(study, asura.WHOLE, what), *(plain[what] / run[what] for run in arms)]


def sizes() -> list[overview.Line]:
    """Returns the comparisons of ASURA with plain layers of nearly its size."""
    return [each for each in overview.equal_parameters() if each.name.startswith("ASURA")]


def dearer() -> list[float]:
    """Returns how many times the FLOPs of these layers ASURA has."""
    short = overview.spent_by("ASURA") / overview.spent_by(PARAMETERS)
    return [*asura.times(asura.WHOLE, asura.PARAMETERS, "flops"), short]


def every_retrofit_behind() -> bool:
    """Whether every loop is behind on text the layers run once, at equal training FLOPs."""
    found = sft.once_less("heal", "unlooped-flops", "text").difference, sft.beside(sft.LONGER).difference
    return stands(found) == "behind" and cores.every_behind()


def loop_alone() -> bool:
    """Whether something decided shows that ASURA's loop pays at equal FLOPs.

    It would be a lead over layers of equal FLOPs at one rate or on all of the text; or, in the short runs where it has one, a depth
    that is ahead of depth 1, depth 1 that is not ahead of four plain layers, or a lead over those when they spend its FLOPs.
    """
    without = depths.less_plain(1, calm=True).verdict == "lower"
    dearer = repeats.stands("ASURA", LONGER, 1).verdict == "higher"
    equal = any(each.verdict == "lower" for each in (*asura.both(asura.WHOLE, asura.FLOPS), whole_text.verdicts()[0]))
    return equal or not (without and dearer and depths.none_decided(calm=True))


def drawn(picture: str, verdict: str, begins: str) -> list[str]:
    """Returns the lines of a picture (of those with seeds) that have a verdict and whose names begin so; adapters alone, where
    retrofits are asked for."""
    found = overview.named(overview.FIGURES[picture](), verdict)
    return [name for name in found if name.startswith(begins) and (begins != ADAPTERS or name != overview.WIDE)]


def three_from_eight() -> bool:
    """Whether three layers from layer 8 are behind in the second picture, and undecided by both texts."""
    name = f"retrofit, 3 layers looped, {overview.PLACES[AT_ONE]}"
    return name in drawn("equal-parameters", "higher", ADAPTERS) and looping(3, AT_ONE) in cores.standing("undecided")


def in_part(wins: int, of: int) -> bool:
    """Whether something worked in some cases and failed in others."""
    return 0 < wins < of


def window() -> tuple[int, int]:
    """Returns in how many runs of swaps with a window all trained swaps were learned, and how many there are."""
    return len(swaps.learned()), len(swaps.runs_with_window())
