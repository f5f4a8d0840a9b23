"""What docs/when-to-loop.md says to someone who decides: the answers of the other pages in short, from the same rows."""

from __future__ import annotations

from collections.abc import Iterator

from experiments import overview
from experiments.hops.reading import TRAINED, solved_hops
from experiments.readme.retrofit import cores, language, thirds, wide
from experiments.readme.rows import WORDS, of, sizes, when
from experiments.readme.tasks import exits, hops, stars, swaps
from experiments.readme.text import asura, asura_parts, depths, repeats, whole_text
from experiments.readme.text.repeats import FLOPS, PARAMETERS
from experiments.repeats.plan import LONGER, STOPPED
from experiments.seeds import over_seeds

# numbers of the table that no row decides: what was asked, sizes, depths
SETTINGS = (
    "where its 95 % interval over three seeds leaves 0 out",
    "must leave 0 out as well ([rule] ). *Nearly equal* is within 10 %",
    "*solves* 16 hops where it is right on at least 95 % of the rows of each number up to 16",
    "*1⊗8* is one layer",
    "| 1⊗8 on [hops]",
    "| 1⊗8 |",
    "| 1⊗8 on [swaps]",
    "[ASURA] , 5.3 million tokens read once",
    "ASURA at depth 1",
    "six layers of SmolLM2",
    "ASURA, 0.33 million tokens read sixteen times",
    "a Huginn-like model, 5.3 million tokens read once; 39.8 million read four times",
    "1, 3 or 6 layers looped",
)


def table_claims() -> Iterator[str]:
    """Yields the results of the table."""
    yield from task_claims()
    yield from text_claims()
    tokens = [wide.beside(wide.EQUAL)]
    yield when(wide.side(tokens) == "ahead", f"ahead by {sizes(tokens)}, for {wide.cost():.1f} times the FLOPs")
    both = [wide.beside(arm) for arm in (wide.EQUAL, wide.LONGER)]
    yield when(wide.side(both[1:]) == "behind", f"behind by {sizes(both[1:])} (both {wide.decided(both)})")
    sides = " and ".join(sorted(language.answer_sides()))
    yield f"On answers of GSM8K {sides} of both (one seed, one rate for all)"
    one = cores.standing("ahead") == [cores.best()]
    lead, six = -cores.beside(cores.best(), cores.ONCE_EQUAL).apart[0], WORDS[len(cores.LOOPED)]
    told = f"one of {six} ahead, by {lead:.3f} (decided; {cores.corrected('on one of two texts only')})"
    yield when(one, f"{told}; all {six} behind, {cores.all_behind(2)} (decided)")


def task_claims() -> Iterator[str]:
    """Yields the results on tasks."""
    loop, layer = hops.arms_of()["1⊗8"], hops.arms_of()["plain 1"]
    none = {solved_hops(run) for run in layer} == {0} and {solved_hops(run) for run in loop} == {TRAINED[-1]}
    yield when(none, f"solves {TRAINED[-1]} hops, the layer none; for {loop[0]['flops'] / layer[0]['flops']:.0f} times the FLOPs")
    yield f"both solve it; the loop has 1/{hops.times_smaller()} of the parameters"
    mean, low, high, _ = hops.less(*swaps.own())
    part = round(swaps.own()[1][0]["parameters"] / swaps.own()[0][0]["parameters"])
    told = f"no difference found: {mean:.1f} points ahead ({hops.interval(low, high, 1)}, undecided)"
    yield when(low <= 0 <= high and mean > 0, f"{told}; the loop has 1/{part} of the parameters")
    yield f"longer ones solved in {of(len(swaps.learned()), len(swaps.runs_with_window()))} runs"
    yield when(hops.none_far(), "hops: not answered")
    yield when(stars.longer()[0] > 0.99, "yes, 64 digits after 4 to 8")
    yield f"works in {of(len(exits.working()), len(exits.SHOWN))} models"
    left = wide.all_at(wide.TRAINED)
    yield when(wide.side(left) == "behind", f"{wide.sizes_of(left)} behind ({wide.decided(left)})")


def text_claims() -> Iterator[str]:
    """Yields the results on text from scratch."""
    small, middle = asura.against(asura.WHOLE, asura.PARAMETERS)
    cost = " and ".join(f"{each:.1f}" for each in asura.times(asura.WHOLE, asura.PARAMETERS, "flops"))
    ahead = {small.verdict, middle.verdict} == {"lower"}
    yield when(ahead, f"ahead by {sizes([small, middle])} (decided), for {cost} times the FLOPs")
    small, middle = asura.against(asura.WHOLE, asura.FLOPS)
    told = f"behind by {sizes([small])} at the small size (decided), ahead by {sizes([middle])} at the middle size (undecided)"
    yield when((small.verdict, middle.verdict) == ("higher", "not resolved") and middle.difference < 0, told)
    lead, more = (repeats.stands("ASURA", rival, 1) for rival in (FLOPS, LONGER))
    yield when(lead.verdict == "lower", f"twelve layers, nearly equal FLOPs | ahead by {-lead.difference:.2f} (decided)")
    yield when(more.verdict == "higher", f"four layers, {repeats.spent()} | behind by {more.difference:.2f} (decided)")
    unlooped = depths.less_plain(1, depths.calm())
    told = f"ahead by {sizes([unlooped])} without a loop (decided); no greater depth that was tried (up to {max(depths.BY_DEPTH)})"
    yield when(unlooped.verdict == "lower" and depths.none_decided(depths.calm()), f"{told} adds a decided amount")
    flops, few, huginn, _ = whole_text.verdicts()
    where = f"{whole_text.text():.1f} million tokens read four times, at the rates of short runs"
    yield f"{where} | twelve layers, nearly equal FLOPs; four, nearly equal parameters"
    yield f"behind by {sizes([flops])}, ahead by {sizes([few])} (both decided, {whole_text.seeds()})"
    flops, few = (repeats.stands("ASURA", rival, STOPPED, early=True) for rival in (FLOPS, PARAMETERS))
    told = f"behind by {sizes([flops])} (decided on test alone), ahead by {sizes([few])} (undecided)"
    alone = open_on_ood("ASURA", FLOPS, STOPPED, early=True)
    yield when(alone and (flops.verdict, few.verdict) == ("higher", "not resolved") and few.difference < 0, told)
    near = repeats.stands("Huginn-like", FLOPS, 1)
    told = f"behind by {sizes([near])} (undecided); behind by {sizes([huginn])} (decided on test alone, {whole_text.seeds()})"
    alone = open_on_ood(*(whole_text.NAMES[arm] for arm in ("Huginn-like", FLOPS)), whole_text.TIMES)
    yield when(alone and near.verdict == "not resolved" and near.difference > 0, told)


def claims() -> Iterator[str]:
    """Yields what the rest of the page says."""
    yield from overview_claims()
    yield f"over three seeds (on all of the text read four times, {whole_text.seeds()})"
    takes = f"takes {exits.steps_of('easy')} steps for easy rows and {exits.steps_of('hard')} for hard ones"
    yield f"In {of(len(exits.working()), len(exits.SHOWN))} models a rule that watches the entropy of the output {takes}"
    yield thirds.in_short()
    most = max(run["tokens"] for run in repeats.all_runs()) / 1e6
    yield f"the longest on text read {most:.0f} million tokens"
    yield when(
        hops.times_smaller() == 8, "one layer that ran eight times did what eight layers did, with an eighth of the parameters"
    )


def overview_claims() -> Iterator[str]:
    """Yields the sentences on budgets: where ASURA and the other loops stand beside plain layers."""
    led = [each.verdict for each in overview.equal_parameters() if each.name.startswith("ASURA")]
    told = "in every line of the second picture below but one, which is undecided"
    yield when(sorted(led) == [*["lower"] * (len(led) - 1), "not resolved"], told)
    flops, _, huginn, _ = whole_text.verdicts()
    longer = [*asura.against(asura.WHOLE, asura.FLOPS), flops, huginn]
    ahead = any(each.verdict == "lower" for each in longer)
    yield when(not ahead, "In longer runs neither ASURA nor a Huginn-like loop was ahead by a decided amount")
    yield f"One variant of ASURA was, by {asura_parts.plain_lead()}; after a correction for all variants"
    without = depths.less_plain(1, depths.calm()).verdict == "lower"
    yield when(without, "at the learning rate of the plain layers, it had this lead without its loop, too")
    one_rate = language.side_of(language.gap(("heal", "unlooped-flops"), "text"))
    every = wide.side([wide.beside(wide.LONGER)]) == one_rate == "behind" and not cores.all_behind(2).startswith("not so")
    yield when(every, "At equal training FLOPs every loop was behind on held-out text, where no text was read twice")


def open_on_ood(label: str, rival: str, times: int, *, early: bool = False) -> bool:
    """Returns whether the interval over seeds holds 0 on the second text."""
    low, high = over_seeds(repeats.on_ood(label, rival, times, early=early))
    return low <= 0 <= high
