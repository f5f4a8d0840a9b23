"""What pages ask of looped and plain arms of width 256, by how often they read their text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from experiments.pages import Result, results
from experiments.repeats.plan import COMPARED_RATES, FLOPS, FRESH, LONGER, PARAMETERS, STOPPED, TUNED, rates
from experiments.repeats.run import best_rates, counts
from experiments.repeats.tables import LOOPED, RIVALS, at_rate, chosen, stopped
from experiments.seeds import Pooled, pooled, shared
from experiments.templates.rows import RESULTS, when
from experiments.templates.words import WORDS

Key = tuple[str, str, int]


@cache
def all_runs() -> list[Result]:
    """Returns all runs."""
    return results([str(RESULTS / "repeats/runs.jsonl")], rates(), counts)


@cache
def kept() -> dict[tuple[str, int], list[Result]]:
    """Returns the runs of every arm at its own rate."""
    return chosen(all_runs())


@cache
def beside(label: str, rival: str, times: int, *, early: bool = False) -> Pooled | None:
    """Returns an arm less another on the same text, each at its end or at its best validation; None where one was not run."""
    runs = stopped(kept()) if early else kept()
    return pooled(runs.get((label, times), []), runs.get((rival, times), []), "test")


def stands(label: str, rival: str, times: int, *, early: bool = False) -> Pooled:
    """Returns the same of arms that were both run."""
    found = beside(label, rival, times, early=early)
    assert found is not None and len(found.seeds) == 3
    return found


def early(label: str, *rivals: str) -> list[Pooled]:
    """Returns an arm less others where the text is read sixteen times, each at its best validation."""
    return [stands(label, rival, STOPPED, early=True) for rival in rivals]


def by_times() -> dict[Key, Pooled]:
    """Returns all differences of the table."""
    found: dict[Key, Pooled] = {}
    for arm, rival in ((arm, rival) for arm in LOOPED for rival in RIVALS):
        cells = {times: beside(arm, rival, times) for times in (1, 4)} | {STOPPED: beside(arm, rival, STOPPED, early=True)}
        found |= {(arm, rival, times): each for times, each in cells.items() if each is not None}
    return found


def on_ood(label: str, rival: str, times: int, *, early: bool = False) -> list[float]:
    """Returns one arm less another on `ood`, seed by seed, each at its end or at its best validation."""
    runs = stopped(kept()) if early else kept()
    pairs = shared(runs[label, times], runs[rival, times])
    return [ours["loss"]["ood"] - theirs["loss"]["ood"] for ours, theirs in pairs]


def on_oods() -> list[list[float]]:
    """Returns ASURA less others on `ood`: both plain arms on fresh text and at four readings, then those with more updates."""
    keys = [(rival, times) for times in (1, 4) for rival in (FLOPS, PARAMETERS)] + [(LONGER, 1), (FRESH, 1), (LONGER, 4)]
    return [on_ood("ASURA", rival, times) for rival, times in keys]


def smaller_lead(rival: str) -> bool:
    """Whether ASURA's lead over a plain arm is smaller the more often the text is read."""
    leads = [*(-stands("ASURA", rival, times).difference for times in (1, 4)), -early("ASURA", rival)[0].difference]
    return leads == sorted(leads, reverse=True)


def columns(label: str) -> list[list[Result]]:
    """Returns an arm's runs on text read once, four times, and sixteen times: stopped early, and at the end."""
    found = [kept().get((label, times), []) for times in (1, 4)]
    return [*found, stopped(kept()).get((label, STOPPED), []), kept().get((label, STOPPED), [])]


def named(label: str) -> str:
    """Returns how the pages call an arm: its FLOPs and parameters are nearly those of the looped ones, not exactly."""
    return label.replace("equal", "nearly equal", 1)


def rates_of(label: str) -> list[str]:
    """Returns the rates of an arm's runs, each once."""
    return [f"{rate:g}" for rate in dict.fromkeys(runs[0]["rate"] for runs in columns(label) if runs)]


def million(arm: str, times: int) -> float:
    """Returns how long the text is that an arm reads so often, in millions of tokens."""
    row = kept()[arm, times][0]
    return float(row["tokens"] / row["epochs"] / 1e6)


def share(label: str, what: str) -> float:
    """Returns which part of ASURA's parameters or FLOPs an arm has."""
    return float(kept()[label, 1][0][what] / kept()["ASURA", 1][0][what])


def dearer() -> float:
    """Returns how many times the FLOPs of four plain layers a token takes in ASURA."""
    return 1 / share(LONGER, "flops")


def spent() -> str:
    """Returns what the plain layers with more updates cost beside ASURA, in words."""
    (ours, *_), (theirs, *_) = kept()["ASURA", 1], kept()[LONGER, 1]
    updates = theirs["tokens"] / ours["tokens"]
    return f"{updates * theirs['flops'] / ours['flops']:.1f} times its FLOPs on {WORDS[round(updates)]} times the updates"


def often() -> str:
    """Returns how often the layers with three times the updates read what others read four times: "twelve"."""
    return WORDS[round(kept()[LONGER, 4][0]["epochs"])]


def tuned_on() -> str:
    """Returns on which text and seed the rates of fresh text were chosen, as long as ASURA alone has a second one there."""
    tried = {run["label"] for run in all_runs() if run["times"] == 1 and run["label"] in TUNED and not at_own(run)}
    return when(tried == {"ASURA"}, "rates chosen on text read four times, seed 0")


def at_own(run: Result) -> bool:
    """Whether a run is at the rate that was chosen for its arm."""
    return any(run["name"] == other["name"] for other in kept().get((run["label"], run["times"]), []))


def tried(label: str, times: int) -> dict[float, float]:
    """Returns an arm's loss on `valid` by rate (seed 0), of text that is read sixteen times at the best validation."""
    runs = [run for run in all_runs() if (run["label"], run["times"], run["seed"]) == (label, times, 0)]
    return {run["rate"]: (run["stopped"] if times == STOPPED else run)["loss"]["valid"] for run in runs}


def best(times: int) -> list[float]:
    """Returns the best rate of each tuned arm, on text read so often."""
    return [best_rates(all_runs())[label, times] for label in TUNED]


def rates_between() -> bool:
    """Whether each best rate lies between two that are worse."""
    keys = [(label, times) for times in COMPARED_RATES for label in TUNED]
    return all(min(tried(*key)) < best_rates(all_runs())[key] < max(tried(*key)) for key in keys)


def huginn_rate() -> float:
    """Returns how far 1e-3 is behind 2e-3 for the Huginn-like model on text read sixteen times."""
    found = tried("Huginn-like", STOPPED)
    return found[1e-3] - found[2e-3]


def rates_tried() -> list[float]:
    """Returns the rates at which ASURA was run on fresh text."""
    return sorted({run["rate"] for run in all_runs() if (run["label"], run["times"]) == ("ASURA", 1)})


def leads_at(rate: float) -> list[Pooled]:
    """Returns ASURA on fresh text at a rate less both plain arms at theirs."""
    both = [pooled(at_rate(all_runs(), rate)["ASURA", 1], kept()[rival, 1], "test") for rival in (FLOPS, PARAMETERS)]
    return [each for each in both if each is not None and len(each.seeds) == 3]


def best_updates(longer: bool) -> list[int]:
    """Returns at which updates runs on little text were at their best: those with three times the updates, or all others."""
    found = stopped(kept())
    return [run["update"] for (label, _), runs in found.items() if (label == LONGER) is longer for run in runs]


def fitted(label: str, times: int, rate: float | None = None) -> list[float]:
    """Returns the training losses at the end, at an arm's own rate where none is given."""
    runs = kept()[label, times] if rate is None else at_given(label, times, rate)
    return [run["losses"][-1] for run in runs]


def at_given(label: str, times: int, rate: float) -> Sequence[Result]:
    """Returns an arm's runs at a rate, seeds in order."""
    found = [run for run in all_runs() if (run["label"], run["times"], run["rate"]) == (label, times, rate)]
    return sorted(found, key=lambda run: int(run["seed"]))


def at_fours() -> list[Pooled | None]:
    """Returns ASURA on text read sixteen times at the rates of four readings: less twelve and less four plain layers at the best
    validation, and less twelve at the end."""
    ends = {label: at_given(label, STOPPED, rate) for label, rate in (("ASURA", 4e-3), (FLOPS, 2e-3), (PARAMETERS, 2e-3))}
    best = {label: [run | run["stopped"] for run in runs if "stopped" in run] for label, runs in ends.items()}
    pairs = [(best["ASURA"], best[FLOPS]), (best["ASURA"], best[PARAMETERS]), (ends["ASURA"], ends[FLOPS])]
    return [pooled(*pair, "test") for pair in pairs]
