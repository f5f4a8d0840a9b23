"""What docs/when-to-loop.md says to someone who decides: the answers of the other pages in short, from the same rows.

A row of its table is held whole, with what is compared; of "What to do" every verdict is.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments import overview
from experiments.hops.reading import TRAINED, solved_hops
from experiments.readme.retrofit import cores, language, thirds, wide
from experiments.readme.rows import WORDS, line, of, sizes, when
from experiments.readme.tasks import exits, hops, stars, swaps
from experiments.readme.text import asura, depths, repeats, test_time, whole_text
from experiments.repeats.plan import FLOPS, LONGER, PARAMETERS, STOPPED
from experiments.seeds import over_seeds

# numbers beside the table that no row decides
SETTINGS = (
    "where its 95 % interval over three seeds leaves 0 out",
    "must leave 0 out as well",
    "*solves* 16 hops where it is right on at least 95 % of the rows of each number up to 16",
    "*1⊗8* is one layer",
)
LOOPED = "1⊗8"
TWELVE, FOUR = "twelve layers, nearly equal FLOPs", "four, nearly equal parameters"


def table_claims() -> Iterator[str]:
    """Yields the rows of the table, and what "nearly equal" is in them."""
    yield from task_rows()
    yield from text_rows()
    yield from huginn_rows()
    yield from retrofit_rows()
    yield from test_time_rows()
    yield nearly()


def task_rows() -> Iterator[str]:
    """Yields the rows on tasks."""
    loop, layer = hops.arms_of()[LOOPED], hops.arms_of()["plain 1"]
    told = f"**loop**: solves {TRAINED[-1]} hops, the layer none; for {loop[0]['flops'] / layer[0]['flops']:.0f} times the FLOPs"
    cells = "a task of many steps, few parameters", "1⊗8 on [hops](when-to-loop-tasks.md#hops)", "one layer, equal parameters"
    yield when(pays_on_hops(), line(*cells, told))
    longer = [run for run in hops.found() if run["group"] == "longer" and run["parameters"] == layer[0]["parameters"]]
    mean, low, _, seeds = hops.less(loop, longer)
    (few,) = {solved_hops(run) for run in longer}
    beside = f"one layer, equal parameters, {WORDS[longer[0]['updates'] // loop[0]['updates']]} times the updates"
    told = f"**loop**: {mean:.1f} points ahead (decided); the layer solves {few} hop"
    spent = (longer[0]["updates"] * longer[0]["flops"]) / (loop[0]["updates"] * loop[0]["flops"])
    yield when(low > 0 and seeds == 3 and abs(spent - 1) < 0.01, line("the same, equal training FLOPs", LOOPED, beside, told))
    told = f"**both solve it**; the loop has 1/{hops.times_smaller()} of the parameters"
    yield line("the same task, a budget of FLOPs", LOOPED, "eight layers, equal FLOPs", told)
    mean, low, high, _ = hops.less(*swaps.own())
    part = swaps.times_smaller(*swaps.own())
    told = f"**no difference found**: {mean:.1f} points ahead ({hops.interval(low, high, 1)}, undecided)"
    cells = "a second such task, a budget of FLOPs", "1⊗8 on [swaps](when-to-loop-tasks.md#swaps)", "eight layers, equal FLOPs"
    yield when(no_difference(), line(*cells, f"{told}; the loop has 1/{part} of the parameters"))


def pays_on_hops() -> bool:
    """Returns whether the looped layer solves all trained hops, and the same layer run once none."""
    loop, layer = (hops.arms_of()[arm] for arm in (LOOPED, "plain 1"))
    return {solved_hops(run) for run in layer} == {0} and {solved_hops(run) for run in loop} == {TRAINED[-1]}


def no_difference() -> bool:
    """Returns whether the looped layer is ahead of eight layers on swaps, undecided."""
    mean, low, high, _ = hops.less(*swaps.own())
    return low <= 0 <= high and mean > 0


def text_rows() -> Iterator[str]:
    """Yields the rows on ASURA, trained on text from scratch."""
    small, middle = asura.both(asura.WHOLE, asura.PARAMETERS)
    cost = " and ".join(f"{each:.1f}" for each in asura.times(asura.WHOLE, asura.PARAMETERS, "flops"))
    cells = (
        "text, a budget of parameters",
        "[ASURA](asura.md), two sizes, one rate for all",
        "plain layers, nearly equal parameters",
    )
    told = f"**ahead** by {sizes([small, middle])} (decided), for {cost} times the FLOPs"
    yield when({small.verdict, middle.verdict} == {"lower"}, line(*cells, told))
    small, middle = asura.both(asura.WHOLE, asura.FLOPS)
    cells = "text, a budget of FLOPs", "ASURA, the same runs", "plain layers, nearly equal FLOPs"
    told = f"**behind** by {sizes([small])} at the small size (decided), ahead by {sizes([middle])} at the middle size (undecided)"
    yield when((small.verdict, middle.verdict) == ("higher", "not resolved") and middle.difference < 0, line(*cells, told))
    lead, less, more = (repeats.stands("ASURA", rival, 1) for rival in (FLOPS, PARAMETERS, LONGER))
    cells = "text, short runs, rates tuned on text read four times", f"[ASURA](when-to-loop-text.md), {read_once()}", TWELVE
    weak = "a weak control: four layers have less loss than these twelve"
    told = f"**ahead** by {-lead.difference:.2f} (decided); {weak}"
    yield when(lead.verdict == "lower" and less.difference > lead.difference, line(*cells, told))
    cells = "text, FLOPs that may go into updates", "ASURA, the same runs", f"four layers, {repeats.spent()}"
    yield when(more.verdict == "higher", line(*cells, f"**behind** by {more.difference:.2f} (decided)"))
    unlooped = depths.less_plain(1, depths.calm())
    name = "[ASURA at depth 1](when-to-loop-text.md#asura-by-depth), which runs no layer twice"
    cells = "text read once: is it the loop?", name, "four layers; both at the layers' best rate"
    told = f"**not shown**: ahead by {sizes([unlooped])} without a loop (decided); no greater depth that was tried"
    told = f"{told} (up to {max(depths.BY_DEPTH)}) adds a decided amount"
    yield when(unlooped.verdict == "lower" and depths.none_decided(depths.calm()), line(*cells, told))
    flops, few, *_ = whole_text.verdicts()
    name = f"[ASURA](when-to-loop-text.md), {all_text()}, at the rates of short runs"
    yield line(
        "text, longer runs", name, f"{TWELVE}; {FOUR}", f"**behind** by {sizes([flops])}, ahead by {sizes([few])} (both decided)"
    )
    yield whole_text.loop_row()
    flops, few = (repeats.stands("ASURA", rival, STOPPED, early=True) for rival in (FLOPS, PARAMETERS))
    told = f"**behind** by {sizes([flops])} (decided on `test` alone), ahead by {sizes([few])} (undecided)"
    alone = open_on_ood("ASURA", FLOPS, STOPPED, early=True) and (flops.verdict, few.verdict) == ("higher", "not resolved")
    name = f"ASURA, {overview.million('ASURA', STOPPED):.2f} million tokens read sixteen times, stopped early"
    yield when(alone and few.difference < 0, line("little text, read again and again", name, f"{TWELVE}; {FOUR}", told))


def huginn_rows() -> Iterator[str]:
    """Yields the row on another loop, trained on text from scratch."""
    _, _, huginn, _ = whole_text.verdicts()
    near = repeats.stands("Huginn-like", FLOPS, 1)
    told = f"behind by {sizes([near])} (undecided); **behind** by {sizes([huginn])} (decided)"
    both = not open_on_ood(*(whole_text.NAMES[arm] for arm in ("Huginn-like", FLOPS)), whole_text.TIMES)
    name = f"a Huginn-like model, {read_once()}; {all_text().replace(' tokens', '')}"
    open_near = near.verdict == "not resolved" and near.difference > 0
    yield when(both and open_near, line("text, another loop", name, TWELVE, told))


def read_once() -> str:
    """Returns how long the text of short runs is."""
    return f"{overview.million('ASURA', 1):.1f} million tokens read once"


def all_text() -> str:
    """Returns how long all of the text is."""
    return f"{whole_text.text():.1f} million tokens read four times"


def nearly() -> str:
    """Returns how near to those of the loops of the table the parameters and FLOPs of plain layers are."""
    ours = {arm: repeats.kept()[arm, 1][0] for arm in overview.LOOPS}
    theirs = {arm: repeats.kept()[arm, 1][0] for arm in (PARAMETERS, FLOPS)}
    parameters = [1 / each for each in asura.times(asura.WHOLE, asura.PARAMETERS, "parameters")]
    parameters += [theirs[PARAMETERS]["parameters"] / each["parameters"] for each in ours.values()]
    flops = [1 / each for each in asura.times(asura.WHOLE, asura.FLOPS, "flops")]
    flops += [theirs[FLOPS]["flops"] / each["flops"] for each in ours.values()]
    first, second = (f"{min(each):.2f} to {max(each):.2f}" for each in (parameters, flops))
    return f"*Nearly equal*: plain layers have {first} of the loop's parameters, or {second} of its FLOPs."


def retrofit_rows() -> Iterator[str]:
    """Yields the rows on pretrained models that were cut and looped."""
    tokens, flops = (wide.beside(arm) for arm in (wide.EQUAL, wide.LONGER))
    told = f"ahead by {sizes([tokens])}, for {wide.cost():.1f} times the FLOPs; **behind** by {sizes([flops])}"
    answers = "On answers of GSM8K ahead of both (one seed, one rate for all)"
    told = f"{told} (both {wide.decided([tokens, flops])}). {answers}"
    cells = (
        "a pretrained model, all weights trained",
        "[six layers of SmolLM2 run four times](when-to-loop-retrofit.md)",
        "the same layers run once: equal tokens; equal training FLOPs",
    )
    sides = (wide.side([tokens]), wide.side([flops])) == ("ahead", "behind") and language.answer_sides() == {"ahead"}
    yield when(sides, line(*cells, told))
    lead, six = -cores.beside(cores.best(), cores.ONCE_EQUAL).apart[0], WORDS[len(cores.LOOPED)]
    left = when(cores.holds_corrected() == [True, False], f"corrected for {six} tries on one of two texts only")
    told = f"one of {six} ahead, by {lead:.3f} (decided; {left}); all {six} **behind**, {cores.all_behind(2)} (decided)"
    cells = (
        "a pretrained model, adapters trained",
        "[1, 3 or 6 layers looped](ouroboros.md#cores-of-1-3-and-6-layers), at two places",
        "the same layers run once: equal tokens; equal training FLOPs",
    )
    yield when(cores.standing("ahead") == [cores.best()], line(*cells, told))


def test_time_rows() -> Iterator[str]:
    """Yields the rows on more steps at test time and on leaving the loop early."""
    far = f"longer ones solved in {of(len(swaps.learned()), len(swaps.runs_with_window()))} runs"
    told = f"**hops**: not answered; **swaps**, seen through a window: {far}"
    sums = "**[sums in columns](longer.md)**: yes, 64 digits after 4 to 8, nearly all rows right"
    cells = "problems longer than those trained", "more steps at test time", "itself at other depths"
    yield when(hops.none_far() and min(stars.longer()[1]) > 0.95, line(*cells, f"{told}; {sums}"))
    left = wide.all_at(wide.TRAINED)
    text = f"{wide.sizes_of(left)} behind on two texts ({wide.decided(left)})"
    told = f"**tasks**: works in {working()} models; **text**, in the retrofit: {text}; {test_time.in_short()}"
    cells = (
        "easy and hard problems mixed",
        "[a rule that leaves the loop early](when-to-loop-tasks.md#depth-at-test-time)",
        "itself at full depth, on text at equal mean depth",
    )
    yield when(wide.side(left) == "behind", line(*cells, told))


def working() -> str:
    """Returns in how many models an exit rule works."""
    return of(len(exits.working()), len(exits.SHOWN))


def claims() -> Iterator[str]:
    """Yields what the rest of the page says."""
    yield from what_to_do()
    yield when(whole_text.seeds() == "three seeds", "Lines have the 95 % interval over three seeds. A hollow point has one seed")
    takes = f"takes {exits.steps_of('easy')} steps for easy rows and {exits.steps_of('hard')} for hard ones"
    yield f"In {working()} models a rule that watches the entropy of the output {takes}"
    yield thirds.in_short()
    yield test_time.steps_in_short()
    yield whole_text.limit()
    most = max(run["tokens"] for run in repeats.all_runs()) / 1e6
    yield f"the longest on text read {most:.0f} million tokens"


def what_to_do() -> Iterator[str]:
    """Yields the advice, as far as the rows bear it out."""
    told = "On one synthetic task of this kind (*hops*) one layer that ran eight times did what eight layers did, with an eighth of"
    none = "On a second (*swaps*) no difference from eight layers was found."
    same = pays_on_hops() and no_difference() and hops.times_smaller() == 8
    yield when(same, f"**Few parameters, and a task of many steps in a row: loop.** {told} the parameters. {none}")
    lead, more = (repeats.stands("ASURA", rival, 1) for rival in (FLOPS, LONGER))
    cost, _ = repeats.spent().split(" on ")
    four = f"Four plain layers that spent {cost}, on more updates, beat it"
    short = f"In short runs ASURA beat plain layers of nearly equal FLOPs that had as many updates. {four}"
    beaten = (lead.verdict, more.verdict) == ("lower", "higher")
    yield when(beaten, f"**Text, and a budget of FLOPs: take plain layers.** {short} while there was text enough for them.")
    flops, _, huginn, _ = whole_text.verdicts()
    longer = [*asura.both(asura.WHOLE, asura.FLOPS), flops, huginn]
    none = not any(each.verdict == "lower" for each in longer)
    yield when(none, "In longer runs neither ASURA nor a Huginn-like loop was ahead by a decided amount")
    yield f"One variant of ASURA was, by {asura.plain_lead()}; after a correction for all variants"
    yield from few_parameters([each for each in overview.equal_parameters() if each.name.startswith("ASURA")])
    once = "**A pretrained model to cut and train again: run the kept layers once, and train longer.** At equal training FLOPs"
    yield when(every_retrofit_behind(), f"{once} every loop was behind on held-out text, where no text was read twice.")
    tokens = wide.beside(wide.EQUAL)
    ahead = f"with all weights trained the loop was {sizes([tokens])} {wide.side([tokens])} at equal tokens"
    yield f"{ahead}, for {wide.cost():.1f} times the FLOPs"
    yield when(language.answer_sides() == {"ahead"}, "(On answers of GSM8K it was ahead at both; one seed.)")
    mixed = 0 < len(exits.working()) < len(exits.SHOWN) and 0 < len(swaps.learned()) < len(swaps.runs_with_window())
    measure = "**More steps at test time, or leaving the loop early: measure it on your own model first.**"
    yield when(mixed, f"{measure} Both worked in some models and failed in others.")
    useless = wide.side(wide.all_at(wide.TRAINED)) == "behind"
    told = "On text no rule for leaving early was of use in the two models of this page that were tried."
    yield when(useless and test_time.no_lead(), told)


def every_retrofit_behind() -> bool:
    """Returns whether every loop is behind on text the layers run once, at equal training FLOPs."""
    one_rate = language.side_of(language.gap(("heal", "unlooped-flops"), "text"))
    return one_rate == wide.side([wide.beside(wide.LONGER)]) == "behind" and cores.every_behind()


def loop_alone() -> bool:
    """Returns whether something decided shows that ASURA's loop pays at equal FLOPs.

    It would be a lead over layers of equal FLOPs at one rate or on all of the text; or, in the short runs where it has one, a depth
    that is ahead of depth 1, depth 1 that is not ahead of four plain layers, or a lead over those when they spend its FLOPs.
    """
    without = depths.less_plain(1, depths.calm()).verdict == "lower"
    dearer = repeats.stands("ASURA", LONGER, 1).verdict == "higher"
    equal = any(each.verdict == "lower" for each in (*asura.both(asura.WHOLE, asura.FLOPS), whole_text.verdicts()[0]))
    return equal or not (without and dearer and depths.none_decided(depths.calm()))


def few_parameters(lines: list[overview.Line]) -> Iterator[str]:
    """Yields the advice for a budget of parameters, from the comparisons of ASURA with plain layers of nearly its size."""
    led = sum(each.verdict == "lower" for each in lines)
    (rest,) = (each.verdict for each in lines if each.verdict != "lower")
    cost = [*asura.times(asura.WHOLE, asura.PARAMETERS, "flops"), overview.spent_by("ASURA") / overview.spent_by(PARAMETERS)]
    told = f"ahead of plain layers of nearly its size in {WORDS[led]} of the {WORDS[len(lines)]} comparisons"
    sixth = "of the second picture below (the sixth is undecided)"
    first = "**Text, and a budget of parameters: try ASURA, and try it without its loop, too.** At equal updates ASURA, with three"
    told = f"{first} steps, was {told} {sixth}, for {min(cost):.1f} to {max(cost):.1f} times the FLOPs."
    yield when(rest == "not resolved" and len(lines) == 6, told)
    once, thrice = (depths.less_plain(depth, depths.calm()) for depth in (1, 3))
    told = f"On text read once, at the learning rate of the plain layers, it was {-once.difference:.2f} ahead without its loop, too"
    yield when({once.verdict, thrice.verdict} == {"lower"}, f"{told} (with three steps {-thrice.difference:.2f})")
    yield whole_text.without_the_loop()


def open_on_ood(label: str, rival: str, times: int, *, early: bool = False) -> bool:
    """Returns whether the interval over seeds holds 0 on the second text."""
    low, high = over_seeds(repeats.on_ood(label, rival, times, early=early))
    return low <= 0 <= high
