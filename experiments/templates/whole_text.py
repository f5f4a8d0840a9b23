"""What pages ask of looped and plain arms of width 256 on all of the text, read four times, at the rates of little text."""

from __future__ import annotations

from statistics import mean

from experiments.pages import Result
from experiments.repeats.deep_tables import NAMES, TIMES
from experiments.repeats.plan import FLOPS, ONCE, PARAMETERS, TUNED, WHOLE_UPDATES
from experiments.repeats.tables import LOOPED, WHOLE_PAIRS
from experiments.seeds import Pooled, stay_decided
from experiments.templates import repeats
from experiments.templates.repeats import kept, stands

PLAIN = {FLOPS: "twelve plain layers", PARAMETERS: "four plain layers", ONCE: "ASURA at depth 1"}


def runs_of(arm: str) -> list[Result]:
    """Returns an arm's runs on all of the text."""
    return kept()[NAMES[arm], TIMES]


def against(arm: str, rival: str) -> Pooled:
    """Returns an arm less another on `test`."""
    return stands(NAMES[arm], NAMES[rival], TIMES)


def on_ood(arm: str, rival: str) -> list[float]:
    """Returns an arm less another on `ood`, seed by seed."""
    return repeats.on_ood(NAMES[arm], NAMES[rival], TIMES)


def fits() -> dict[str, float]:
    """Returns the training loss of each arm at the end, mean of the seeds."""
    return {arm: mean(run["losses"][-1] for run in runs_of(arm)) for arm in NAMES}


def tests() -> dict[str, float]:
    """Returns the loss of each arm on `test`, mean of the seeds."""
    return {arm: mean(run["loss"]["test"] for run in runs_of(arm)) for arm in NAMES}


def text() -> float:
    """Returns how long the text is, in millions of tokens."""
    run = runs_of("ASURA")[0]
    return float(run["tokens"] / run["epochs"] / 1e6)


def updates() -> int:
    """Returns the updates of a run."""
    return WHOLE_UPDATES * TIMES


def verdicts() -> tuple[Pooled, Pooled, Pooled, Pooled]:
    """Returns ASURA and the Huginn-like model, each less twelve and less four plain layers, where they stand as the pages say."""
    flops, few, huginn, near = found = tuple(against(arm, rival) for arm in LOOPED for rival in (FLOPS, PARAMETERS))
    if [each.verdict for each in found] != ["higher", "lower"] * 2:
        raise ValueError("whole text: the arms do not stand as the pages say")
    return flops, few, huginn, near


def added_to() -> tuple[Pooled, Pooled]:
    """Returns ASURA less depth 1 and that less four plain layers: both decided, and the first not after a correction."""
    whole, once = found = against("ASURA", ONCE), against(ONCE, PARAMETERS)
    strict = [pair in after_correction() for pair in (("ASURA", ONCE), (ONCE, PARAMETERS))]
    if {each.verdict for each in found} != {"lower"} or strict != [False, True]:
        raise ValueError("whole text: ASURA's steps do not stand as the pages say")
    return whole, once


def after_correction() -> list[tuple[str, str]]:
    """Returns the pairs that stay decided after a correction for all of them."""
    return stay_decided({pair: against(*pair) for pair in WHOLE_PAIRS})


def lost() -> list[tuple[str, str]]:
    """Returns the decided pairs that do not stay so."""
    return [pair for pair in WHOLE_PAIRS if against(*pair).verdict != "not resolved" and pair not in after_correction()]


def dearer(arm: str, rival: str = PARAMETERS) -> str:
    """Returns how many times the FLOPs of another arm a token takes."""
    return f"{runs_of(arm)[0]['flops'] / runs_of(rival)[0]['flops']:.1f}"


def longer(times: int = 1) -> float:
    """Returns how many times the tokens of a run on little text a run on all of the text has."""
    return float(runs_of("ASURA")[0]["tokens"] / kept()["ASURA", times][0]["tokens"])


def rate(arm: str) -> float:
    """Returns the rate of depth 1, which must be that chosen for depth 3, or of four plain layers, which must be their own."""
    rates = {each: runs_of(each)[0]["rate"] for each in (ONCE, "ASURA", PARAMETERS)}
    if not rates[ONCE] == rates["ASURA"] == 2 * rates[PARAMETERS]:
        raise ValueError("whole text: the rates are not as the pages say")
    return float(rates[arm])


def own_rates() -> bool:
    """Whether each arm has one rate, that of four readings of little text; depth 1 that of ASURA."""
    rates = {arm: {run["rate"] for run in runs_of(arm)} for arm in NAMES}
    return rates == {arm: {run["rate"] for run in kept()[arm, TIMES]} for arm in TUNED} | {ONCE: rates["ASURA"]}


def resumed() -> tuple[int, int]:
    """Returns how many runs were stopped on the way and resumed, bit for bit, and how many there are."""
    runs = [run for arm in NAMES for run in runs_of(arm)]
    halted = [run for run in runs if run["origin"].get("resumed")]
    if any(run["origin"].get("not_bit_for_bit") for run in halted):
        raise ValueError("whole text: a resumed run went on otherwise")
    return len(halted), len(runs)


def seconds() -> list[float]:
    """Returns how long each run took."""
    return [run["train_seconds"] for arm in NAMES for run in runs_of(arm)]
