"""What docs/when-to-loop-text.md says about text that runs out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from statistics import mean

from experiments.pages import Result, results
from experiments.readme.rows import RESULTS, WORDS, line, of, sizes, when
from experiments.repeats.plan import COMPARED_RATES, FLOPS, FRESH, LONGER, PARAMETERS, STOPPED, TUNED, rates
from experiments.repeats.run import best_rates, counts
from experiments.repeats.tables import LOOPED, MAIN, RIVALS, at_rate, chosen, stopped
from experiments.seeds import DECIDED, Pooled, over_seeds, pooled, shared


@cache
def all_runs() -> list[Result]:
    """Returns all runs."""
    return results([str(RESULTS / "repeats/runs.jsonl")], rates(), counts)


@cache
def kept() -> dict[tuple[str, int], list[Result]]:
    """Returns the runs of every arm at its own rate."""
    return chosen(all_runs())


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
            yield line(named(label), *sizes, own, *map(losses, texts))
    yield from best_updates(early)
    yield spent()
    yield f"{tuned_on()}; on fresh text ASURA alone was tried at a second one"
    for label in LOOPED:
        for rival in RIVALS:
            cells = [beside(label, rival, times) for times in (1, 4)] + [beside(label, rival, STOPPED, early=True)]
            if any(cells):
                yield line(f"{label} less {named(rival)}", *map(told, cells))
    yield from rate_claims()
    yield from lead_claims()
    yield weak_control()
    yield from more_claims()
    yield from little_claims()
    yield from ood_claims()


def named(label: str) -> str:
    """Returns how the pages call an arm: its FLOPs and parameters are nearly those of the looped ones, not exactly."""
    return label.replace("equal", "nearly equal", 1)


def brief_claims() -> Iterator[str]:
    """Yields what the page says in short: its first sentences and its first table."""
    fresh, again = ([stands("ASURA", rival, times) for rival in (FLOPS, PARAMETERS)] for times in (1, 4))
    cell = f"ahead by {sizes(fresh, 2)}; by {sizes(again, 2)}"
    all_of = {each.verdict for each in (*fresh, *again)} == {"lower"}
    yield when(all_of, f"{cell} nats (all decided)")
    yield when(all_of, f"nearly equal FLOPs by {abs(fresh[0].difference):.2f} nats")
    yield when(all_of, f"nearly equal parameters by {abs(fresh[1].difference):.2f} (both decided)")
    more = [stands("ASURA", rival, 1) for rival in (LONGER, FRESH)]
    both = {each.verdict for each in more} == {"higher"} and {len(each.seeds) for each in more} == {3}
    yield when(both, f"behind by {more[0].difference:.2f} and {more[1].difference:.2f} (both decided)")
    yield when(both, f"by {more[0].difference:.2f} on the same text and by {more[1].difference:.2f} on three times the text (both")
    flops, parameters = (stands("ASURA", rival, STOPPED, early=True) for rival in (FLOPS, PARAMETERS))
    seeds = f"on {of(*agreeing(parameters))} seeds, {DECIDED[parameters.verdict]}"
    yield (f"behind by {flops.difference:.3f} nats ({DECIDED[flops.verdict]}); ahead by {-parameters.difference:.3f} ({seeds})")
    yield (
        f"{flops.difference:.3f} behind plain layers of nearly equal FLOPs ({DECIDED[flops.verdict]}) and "
        f"{-parameters.difference:.3f} ahead of those of nearly equal parameters ({seeds})"
    )
    leads = [
        [*(-stands("ASURA", rival, times).difference for times in (1, 4)), -stands("ASURA", rival, STOPPED, early=True).difference]
        for rival in (FLOPS, PARAMETERS)
    ]
    smaller = all(each == sorted(each, reverse=True) for each in leads)
    yield when(smaller, "Its lead is smaller the more often the text is read")
    yield f"{tuned_on()} (on fresh text ASURA alone was tried at a second one)"
    yield f"Four plain layers that spend {spent()} are ahead of it"
    yield f"{spent()}: on the same text"
    yield from huginn_claims()
    behind = stands(FLOPS, PARAMETERS, 1)
    seeds = of(sum(each > 0 for each in behind.of_seeds), len(behind.seeds))
    yield f"twelve plain layers are a weak control: they are behind four on {seeds} seeds ({DECIDED[behind.verdict]})"


def shares() -> Iterator[str]:
    """Yields which part of ASURA's FLOPs and parameters the plain arms have, and what more updates cost beside it."""
    ours, flops, parameters = (kept()[label, 1][0] for label in ("ASURA", FLOPS, PARAMETERS))
    yield (
        f"twelve plain layers have {flops['flops'] / ours['flops']:.2f} of ASURA's FLOPs, four have "
        f"{parameters['parameters'] / ours['parameters']:.2f} of its parameters"
    )


def huginn_claims() -> Iterator[str]:
    """Yields the row of the Huginn-like model in the first table."""
    near = [stands("Huginn-like", rival, 1) for rival in (FLOPS, PARAMETERS)]
    more = [stands("Huginn-like", rival, 1) for rival in (LONGER, FRESH)]
    undecided = {each.verdict for each in near} == {"not resolved"}
    yield when(
        undecided, f"behind by {' and '.join(f'{each.difference:.3f}' for each in near)} (undecided): **no difference found**"
    )
    yield when(
        {each.verdict for each in more} == {"higher"},
        f"**behind** by {' and '.join(f'{each.difference:.2f}' for each in more)} (both decided)",
    )
    yield when(undecided, "A Huginn-like loop shows no decided difference from either")


def rate_claims() -> Iterator[str]:
    """Yields which rates are best, on text read four and sixteen times, and by how little one of them is."""
    best, losses_at = best_rates(all_runs()), {}
    for run in all_runs():
        if run["seed"] == 0:
            end = run["stopped"] if run["times"] == STOPPED else run
            losses_at.setdefault((run["label"], run["times"]), {})[run["rate"]] = end["loss"]["valid"]
    keys = [(label, times) for times in COMPARED_RATES for label in TUNED]
    between = all(min(losses_at[key]) < best[key] < max(losses_at[key]) for key in keys)
    four, sixteen = ([best[label, times] for label in TUNED] for times in COMPARED_RATES)
    yield when(between and four == [4e-3, 2e-3, 2e-3, 2e-3], "The best is 4e-3 for ASURA and 2e-3 for the other three, and each is")
    huginn = losses_at["Huginn-like", STOPPED]
    yield when(
        between and sixteen == [1e-3, 2e-3, 1e-3, 1e-3],
        "the best is 1e-3 for ASURA and both plain models, and 2e-3 for the Huginn-like one (1e-3 is "
        f"{huginn[1e-3] - huginn[2e-3]:.3f} behind), each between two that are worse",
    )


def lead_claims() -> Iterator[str]:
    """Yields ASURA's lead over both plain arms, on fresh text and at four readings."""
    for times, said in ((1, "On fresh text"), (4, "At four readings")):
        flops, parameters = (stands("ASURA", rival, times) for rival in (FLOPS, PARAMETERS))
        seeds = of(*agreeing(flops, parameters))
        both = DECIDED[flops.verdict] if flops.verdict == parameters.verdict else "not both decided"
        ahead = f"ahead of twelve plain layers by {-flops.difference:.3f} and of four by {-parameters.difference:.3f}"
        yield f"{said} it is {ahead} ({seeds} seeds each, {both})"


def weak_control() -> str:
    """Returns how twelve plain layers stand to four on fresh text, and at four readings."""
    fresh, again = (stands(FLOPS, PARAMETERS, times) for times in (1, 4))
    behind = sum(each > 0 for each in fresh.of_seeds)
    by_seed = " / ".join(f"{each:+.3f}" for each in fresh.of_seeds)
    low, high = (f"{each:+.3f}".replace("-", "−") for each in fresh.over_seeds)
    return (
        f"On fresh text twelve plain layers are behind four on {of(behind, len(fresh.seeds))} seeds ({by_seed}; mean "
        f"{fresh.difference:+.3f}, {low} to {high}, {DECIDED[fresh.verdict]}); at four readings they are ahead of them by "
        f"{-again.difference:.3f} ({DECIDED[again.verdict]})"
    )


def more_claims() -> Iterator[str]:
    """Yields what the section says of more updates, of little text, of ASURA's second rate and of the Huginn-like model."""
    same, more = (stands("ASURA", rival, 1) for rival in (LONGER, FRESH))
    first, second = (of(sum(seed > 0 for seed in each.of_seeds), len(each.seeds)) for each in (same, more))
    yield (
        f"are {same.difference:.3f} ahead of ASURA on the same text ({first} seeds, {DECIDED[same.verdict]}) and "
        f"{more.difference:.3f} ahead on three times the text ({second}, {DECIDED[more.verdict]})"
    )
    cost = kept()["ASURA", 1][0]["flops"] / kept()[LONGER, 1][0]["flops"]
    yield f"({cost:.1f} times the updates); ASURA itself with three times the updates, which would take {cost:.1f} times the FLOPs"
    flops, few = (stands("ASURA", rival, STOPPED, early=True) for rival in (FLOPS, PARAMETERS))
    behind, ahead = (of(sum(sign * each > 0 for each in found.of_seeds), 3) for sign, found in ((1, flops), (-1, few)))
    yield (
        f"ASURA is {flops.difference:.3f} behind them ({behind} seeds, {DECIDED[flops.verdict]}) and {-few.difference:.3f} ahead "
        f"of four ({ahead} seeds, {DECIDED[few.verdict]})"
    )
    leads, verdicts = [], set()
    for rate in sorted({run["rate"] for run in all_runs() if (run["label"], run["times"]) == ("ASURA", 1)}):
        both = [pooled(at_rate(all_runs(), rate)["ASURA", 1], kept()[rival, 1], "test") for rival in (FLOPS, PARAMETERS)]
        found = [each for each in both if each is not None and len(each.seeds) == 3]
        verdicts |= {each.verdict for each in found}
        leads.append(f"{' and '.join(f'{-each.difference:.3f}' for each in found)} at {1e3 * rate:g}e-3")
    yield when(verdicts == {"lower"}, f"On fresh text it leads by {' and by '.join(leads)} (all decided)")
    near = {stands("Huginn-like", rival, times).verdict for rival in (FLOPS, PARAMETERS) for times in (1, 4)}
    yield when(near == {"not resolved"}, "shows no decided difference from either plain arm at equal updates")
    much = [stands("Huginn-like", rival, 1) for rival in (LONGER, FRESH)]
    words = " and ".join(dict.fromkeys(DECIDED[each.verdict] for each in much))
    behind = " and ".join(f"{each.difference:.2f}" for each in much)
    yield f"{behind} behind the four layers with three times the updates ({words})"
    fresh = [run["loss"]["test"] for run in kept()["Huginn-like", 1]]
    yield f"its seeds lie up to {max(fresh) - min(fresh):.2f} nats apart on fresh text"
    flops, few, ours = (stands("Huginn-like", rival, STOPPED, early=True) for rival in (FLOPS, PARAMETERS, "ASURA"))
    undecided = few.verdict == ours.verdict == "not resolved"
    yield when(
        undecided,
        f"it is {flops.difference:.3f} behind twelve plain layers ({DECIDED[flops.verdict]}), {-few.difference:.3f} ahead of four "
        f"and {ours.difference:.3f} behind ASURA (both undecided)",
    )


def little_claims() -> Iterator[str]:
    """Yields what the section says of sixteen readings at the rates of four, and of runs that are not stopped."""
    at = {
        label: sorted((run for run in all_runs() if (run["label"], run["times"], run["rate"]) == (label, 16, rate)), key=_seed)
        for label, rate in (("ASURA", 4e-3), (FLOPS, 2e-3), (PARAMETERS, 2e-3))
    }
    early = {label: [run | run["stopped"] for run in runs if "stopped" in run] for label, runs in at.items()}
    flops, few = (pooled(early["ASURA"], early[rival], "test") for rival in (FLOPS, PARAMETERS))
    end = pooled(at["ASURA"], at[FLOPS], "test")
    assert flops is not None and few is not None and end is not None
    told = f"behind by {flops.difference:.3f} ({DECIDED[flops.verdict]}) and {few.difference:.3f} ({DECIDED[few.verdict]}; "
    yield f"{told}{WORDS[len(few.seeds)]} seeds)"
    yield f"ended worst, {end.difference:.2f} nats behind twelve plain layers"
    ours, theirs = ([run["losses"][-1] for run in at[label]] for label in ("ASURA", FLOPS))
    yield f"{min(ours):.2f} to {max(ours):.2f} at the end, twelve plain layers at 2e-3 {min(theirs):.2f} to {max(theirs):.2f}"
    ours, theirs = ([run["losses"][-1] for run in kept()[label, STOPPED]] for label in ("ASURA", FLOPS))
    end = stands("ASURA", FLOPS, STOPPED)
    fits = f"fits its text less ({min(ours):.2f} to {max(ours):.2f}, twelve plain layers {min(theirs):.2f} to {max(theirs):.2f})"
    yield when(min(ours) > max(theirs), f"{fits}, it ends {-end.difference:.2f} **ahead** of them ({DECIDED[end.verdict]})")


def ood_claims() -> Iterator[str]:
    """Yields the differences on `ood`, where single documents have no losses: means over seeds."""
    fresh, again = ([on_ood("ASURA", rival, times) for rival in (FLOPS, PARAMETERS)] for times in (1, 4))
    yield f"ASURA is ahead by {means(fresh, -1)} on fresh text and by {means(again, -1)} at four readings"
    more = [on_ood("ASURA", rival, 1) for rival in (LONGER, FRESH)]
    yield f"behind four layers with three times the updates by {means(more[:1])} and with three times the text by {means(more[1:])}"
    spans = [over_seeds(each) for each in (*fresh, *again, *more)]
    yield when(all(low * high > 0 for low, high in spans), "Over seeds each of these intervals leaves 0 out")
    near = [on_ood("Huginn-like", rival, 1) for rival in (FLOPS, PARAMETERS)]
    yield f"The Huginn-like model is behind by {means(near)} on fresh text"
    straddles = all(low <= 0 <= high for low, high in map(over_seeds, near))
    yield when(straddles, "where the intervals over seeds hold 0")
    behind, ahead = (on_ood("ASURA", rival, STOPPED, early=True) for rival in (FLOPS, PARAMETERS))
    told = f"ASURA is {mean(behind):.3f} behind twelve plain layers and {-mean(ahead):.3f} ahead of four"
    open_ = all(low <= 0 <= high for low, high in map(over_seeds, (behind, ahead)))
    alone = stands("ASURA", FLOPS, STOPPED, early=True).verdict == "higher"
    yield when(open_ and alone, f"{told}, where the intervals over seeds hold 0 too: that it is behind is decided on `test` alone")


def on_ood(label: str, rival: str, times: int, *, early: bool = False) -> list[float]:
    """Returns one arm less another on `ood`, seed by seed, each at its end or at its best validation."""
    runs = stopped(kept()) if early else kept()
    pairs = shared(runs[label, times], runs[rival, times])
    return [ours["loss"]["ood"] - theirs["loss"]["ood"] for ours, theirs in pairs]


def means(differences: list[list[float]], sign: int = 1) -> str:
    """Returns mean differences, or by how much less the first arms have: "0.21 and 0.17"."""
    return " and ".join(f"{sign * mean(each):.2f}" for each in differences)


def agreeing(*differences: Pooled) -> tuple[int, int]:
    """Returns on how many seeds the first arm is ahead in every one of some differences, and how many there are."""
    ahead = [all(each < 0 for each in of_seed) for of_seed in zip(*(each.of_seeds for each in differences), strict=True)]
    return sum(ahead), len(ahead)


def agree(*differences: Pooled) -> str:
    """Returns on how many seeds of each, at the least, a difference has the sign of its mean: "three of three"."""
    counts = [sum(math.copysign(1, seed) == math.copysign(1, each.difference) for seed in each.of_seeds) for each in differences]
    return of(min(counts), len(differences[0].seeds))


def _seed(run: Result) -> int:
    return int(run["seed"])


def stands(label: str, rival: str, times: int, *, early: bool = False) -> Pooled:
    """Returns the same of arms that were both run."""
    found = beside(label, rival, times, early=early)
    assert found is not None
    return found


def best_updates(early: dict[tuple[str, int], list[Result]]) -> Iterator[str]:
    """Yields at which updates runs on little text were at their best."""
    long = [run["update"] for run in early[LONGER, STOPPED]]
    usual = [run["update"] for (label, _), runs in early.items() if label != LONGER for run in runs]
    yield f"(updates {min(usual)} to {max(usual)} of 640; with three times the updates {min(long)} to {max(long)} of 1,920)"


def losses(runs: list[Result]) -> str:
    """Returns the losses on `test`, seed by seed."""
    return " / ".join(f"{run['loss']['test']:.3f}" for run in runs) or "–"


@cache
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


def short() -> Iterator[str]:
    """Yields what the README says: ASURA beside plain layers on fresh text, and beside those with more updates."""
    flops, same, more = (stands("ASURA", rival, 1) for rival in (FLOPS, LONGER, FRESH))
    near = f"ASURA leads plain layers of nearly equal FLOPs by {-flops.difference:.2f} nats at equal updates (decided)"
    yield when(flops.verdict == "lower", near)
    cost, updates = spent().replace("its FLOPs", "the FLOPs of ASURA with its loop").split(" on ")
    yield when(
        {same.verdict, more.verdict} == {"higher"},
        f"four plain layers with {cost}, in {updates}, beat that by {same.difference:.2f} (decided)",
    )


def spent() -> str:
    """Returns what the plain layers with more updates cost beside ASURA, in words."""
    (ours, *_), (theirs, *_) = kept()["ASURA", 1], kept()[LONGER, 1]
    updates = theirs["tokens"] / ours["tokens"]
    return f"{updates * theirs['flops'] / ours['flops']:.1f} times its FLOPs on {WORDS[round(updates)]} times the updates"


def tuned_on() -> str:
    """Returns on which text and seed the rates of fresh text were chosen, as long as ASURA alone has a second one there."""
    tried = {run["label"] for run in all_runs() if run["times"] == 1 and run["label"] in TUNED and not at_own(run)}
    return when(tried == {"ASURA"}, "rates chosen on text read four times, seed 0")


def at_own(run: Result) -> bool:
    """Whether a run is at the rate that was chosen for its arm."""
    return any(run["name"] == other["name"] for other in kept().get((run["label"], run["times"]), []))
