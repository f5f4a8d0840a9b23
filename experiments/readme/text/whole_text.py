"""What the pages say of looped and plain arms of width 256 on all of the text, read four times, at the rates of little text."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from experiments.pages import Result, words
from experiments.readme.rows import WORDS, interval, when
from experiments.readme.text import depths
from experiments.readme.text.repeats import agree, beside, kept, losses, on_ood
from experiments.repeats.deep_tables import NAMES, TIMES
from experiments.repeats.plan import BATCH, FLOPS, ONCE, PARAMETERS, TUNED, WHOLE_BATCH, WHOLE_UPDATES
from experiments.repeats.tables import LOOPED, WHOLE_PAIRS
from experiments.seeds import DECIDED, Pooled, over_seeds, stay_decided, verdict

PLAIN = {FLOPS: "twelve plain layers", PARAMETERS: "four plain layers", ONCE: "ASURA at depth 1"}


def runs_of(arm: str) -> list[Result]:
    """Returns an arm's runs on all of the text."""
    return kept()[NAMES[arm], TIMES]


def against(arm: str, rival: str) -> Pooled:
    """Returns an arm less another on `test`."""
    found = beside(NAMES[arm], NAMES[rival], TIMES)
    assert found is not None
    return found


def at_end(arm: str) -> float:
    """Returns the training loss at the end, mean of the seeds."""
    return mean(run["losses"][-1] for run in runs_of(arm))


def tested(arm: str) -> float:
    """Returns the loss on `test`, mean of the seeds."""
    return mean(run["loss"]["test"] for run in runs_of(arm))


def seeds() -> str:
    """Returns how many seeds all arms have: "two seeds"."""
    (count,) = {len(runs_of(arm)) for arm in NAMES}
    return f"{WORDS[count]} seeds"


def text() -> float:
    """Returns how long the text is, in millions of tokens."""
    run = runs_of("ASURA")[0]
    return float(run["tokens"] / run["epochs"] / 1e6)


def words_of(found: Pooled) -> str:
    """Returns on how many seeds a difference has its sign, its interval over seeds and what is decided."""
    return f"{agree(found)} seeds; {interval(*found.over_seeds)}, {DECIDED[found.verdict]}"


def verdicts() -> tuple[Pooled, Pooled, Pooled, Pooled]:
    """Returns ASURA and the Huginn-like model, each less twelve and less four plain layers, where they stand as the pages say."""
    flops, few, huginn, near = found = tuple(against(arm, rival) for arm in LOOPED for rival in (FLOPS, PARAMETERS))
    if [each.verdict for each in found] != ["higher", "lower"] * 2:
        raise ValueError("whole text: the arms do not stand as the pages say")
    return flops, few, huginn, near


def claims() -> Iterator[str]:
    """Yields what the section says."""
    flops, few, huginn, near = verdicts()
    by_arm = ", ".join(f"{PLAIN.get(arm, arm)} {losses(runs_of(arm))}" for arm in NAMES)
    (numbers,) = {tuple(run["seed"] for run in runs_of(arm)) for arm in NAMES}
    yield f"Losses on `test`, seeds {words([*map(str, numbers)])}: {by_arm}"
    first = kept()["ASURA", 1][0]
    ours = runs_of("ASURA")[0]
    more = f"{text() / (first['tokens'] / first['epochs'] / 1e6):.1f} times the fresh text"
    updates = f"{WHOLE_UPDATES * TIMES:,} updates of {WHOLE_BATCH} × 256 tokens"
    batch = f"with a batch {WORDS[WHOLE_BATCH // BATCH]} times as large"
    yield f"{text():.1f} million tokens, {more}, in {updates} ({ours['tokens'] / 1e6:.0f} million tokens read, {batch}"
    rates = {arm: {run["rate"] for run in runs_of(arm)} for arm in NAMES}
    own = {arm: {run["rate"] for run in kept()[arm, TIMES]} for arm in TUNED} | {ONCE: rates["ASURA"]}
    told = "Rates are those of four readings of 1.3 million tokens, at depth 1 that of ASURA; none was tuned on this text"
    yield when(rates == own, told)
    yield from resumed()
    loop = f"the Huginn-like model {huginn.difference:.3f} ({words_of(huginn)})"
    yield f"ASURA is {flops.difference:.3f} behind twelve plain layers ({words_of(flops)}), {loop}"
    before = beside("ASURA", FLOPS, TIMES)
    assert before is not None and before.verdict == "lower"
    ratio = ours["tokens"] / kept()["ASURA", TIMES][0]["tokens"]
    ahead = f"ASURA was {-before.difference:.3f} ahead of them, in runs of 1/{ratio:.0f} of these tokens"
    yield f"On 1.3 million tokens read four times {ahead}"
    yield f"ASURA is {-few.difference:.3f} ahead of four plain layers ({words_of(few)}), for {dearer('ASURA')} times the FLOPs"
    yield f"The Huginn-like model is {-near.difference:.3f} ahead of them ({words_of(near)}), for {dearer('Huginn-like')} times"
    layers = against(FLOPS, PARAMETERS)
    told = f"Twelve plain layers are {-layers.difference:.3f} ahead of four ({words_of(layers)})"
    yield when(layers.verdict == "lower", f"{told}, so they are no weak control here")
    yield "**On all of the text, read four times, both loops are behind at nearly equal FLOPs.**"  # or `verdicts` refuses
    loops = against("Huginn-like", "ASURA")
    yield f"{loops.difference:.3f} behind ASURA ({words_of(loops)})"
    yield from steps()
    yield from regulariser()
    yield from elsewhere()
    yield from corrected()


def resumed() -> Iterator[str]:
    """Yields how many runs did not run in one piece."""
    runs = [run for arm in NAMES for run in runs_of(arm)]
    halted = [run for run in runs if run["origin"].get("resumed")]
    same = not any(run["origin"].get("not_bit_for_bit") for run in halted)
    yield when(same, f"{WORDS[len(halted)].capitalize()} of the {len(runs)} runs were stopped on the way and resumed")


def dearer(arm: str, rival: str = PARAMETERS) -> str:
    """Returns how many times the FLOPs of another arm a token takes."""
    return f"{runs_of(arm)[0]['flops'] / runs_of(rival)[0]['flops']:.1f}"


def steps() -> Iterator[str]:
    """Yields what ASURA's steps add to what it is without them."""
    whole, once, few = against("ASURA", ONCE), against(ONCE, PARAMETERS), verdicts()[1]
    yield when(whole.verdict == once.verdict == "lower", "**Here ASURA's steps add a decided amount.**")
    yield f"It is {-once.difference:.3f} ahead of four plain layers ({words_of(once)}) and {behind(whole)}"
    yield f"Of ASURA's lead of {-few.difference:.3f} over four plain layers {-whole.difference:.3f} come with its steps"
    deep, flat = (runs_of(arm)[0]["parameters"] for arm in ("ASURA", ONCE))
    more = f"{100 * (deep / flat - 1):.0f} % more parameters ({deep / 1e6:.2f} M and {flat / 1e6:.2f} M)"
    yield f"for {dearer('ASURA', ONCE)} times the FLOPs of depth 1 and {more}"
    rates = {arm: runs_of(arm)[0]["rate"] for arm in (ONCE, "ASURA", PARAMETERS)}
    yield when(rates[ONCE] == rates["ASURA"] == 2 * rates[PARAMETERS], rates_told())
    near = against(ONCE, "Huginn-like")
    yield f"It is {-near.difference:.3f} ahead of the Huginn-like model ({words_of(near)})"
    far = against(ONCE, FLOPS)
    yield f"Twelve plain layers are {far.difference:.3f} ahead of it ({words_of(against(FLOPS, ONCE))})"
    other = on_ood(NAMES["ASURA"], NAMES[ONCE], TIMES)
    low, high = over_seeds(other)
    yield when(high < 0, f"on `ood` its steps are worth {-mean(other):.3f} ({interval(low, high)} over seeds)")


def rates_told() -> str:
    """Returns at which rates depth 1 and its rivals were trained."""
    ours, theirs = (runs_of(arm)[0]["rate"] for arm in (ONCE, PARAMETERS))
    return f"Depth 1 has the rate that was chosen for depth 3 ({ours:g}), four plain layers theirs ({theirs:g})"


def added() -> str:
    """Returns what ASURA's other parts bring, and what its steps."""
    whole, once = added_to()
    return f"{-once.difference:.3f} ahead of four plain layers, and ASURA's three steps add {-whole.difference:.3f} ({seeds()}"


def added_to() -> tuple[Pooled, Pooled]:
    """Returns ASURA less depth 1 and that less four plain layers: both decided, and the first not after a correction."""
    whole, once = found = against("ASURA", ONCE), against(ONCE, PARAMETERS)
    strict = [pair in after_correction() for pair in (("ASURA", ONCE), (ONCE, PARAMETERS))]
    if {each.verdict for each in found} != {"lower"} or strict != [False, True]:
        raise ValueError("whole text: ASURA's steps do not stand as the pages say")
    return whole, once


def steps_in_short() -> str:
    """Returns the same for the README."""
    whole, once = added_to()
    read = f"{runs_of(ONCE)[0]['tokens'] / 1e6:.0f} million tokens read"
    told = f"In longer runs ({read}) ASURA at depth 1 leads four plain layers by {-once.difference:.2f}"
    more = f"and its three steps add {-whole.difference:.2f} for {dearer('ASURA', ONCE)} times the FLOPs"
    return f"{told}, {more} (both decided; the steps not after a correction for many comparisons)"


def behind(found: Pooled) -> str:
    """Returns that depth 1 is behind ASURA, of ASURA less depth 1."""
    low, high = found.over_seeds
    told = f"{agree(found)} seeds; {interval(-high, -low)}, {DECIDED[found.verdict]}"
    return f"{-found.difference:.3f} behind ASURA at depth 3 ({told})"


def elsewhere() -> Iterator[str]:
    """Yields what the second text says."""
    other = {pair: on_ood(*(NAMES[arm] for arm in pair), TIMES) for pair in WHOLE_PAIRS}
    twelve, four, theirs = (mean(other["ASURA", FLOPS]), mean(other["ASURA", PARAMETERS]), mean(other["Huginn-like", FLOPS]))
    open_there = {pair: over_seeds(found) for pair, found in other.items() if verdict(over_seeds(found)) == "not resolved"}
    told = f"On `ood` ASURA is {twelve:.3f} behind twelve plain layers and {-four:.3f} ahead of four"
    told = f"{told}, and the Huginn-like model {theirs:.3f} behind twelve; the intervals over seeds leave 0 out"
    few, once, near = alone = [("Huginn-like", PARAMETERS), ("Huginn-like", ONCE), ("Huginn-like", "ASURA")]
    yield when([*open_there] == alone and against(*once).verdict == "not resolved", told)
    lead = f"The Huginn-like model is {-mean(other[few]):.3f} ahead of four there ({interval(*open_there[few])})"
    yield f"{lead} and {mean(other[near]):.3f} behind ASURA ({interval(*open_there[near])}): these two are decided on `test` alone"


def after_correction() -> list[tuple[str, str]]:
    """Returns the pairs that stay decided after a correction for all of them."""
    return stay_decided({pair: against(*pair) for pair in WHOLE_PAIRS})


def corrected() -> Iterator[str]:
    """Yields what is left after a correction for the pairs of the section."""
    decided = [pair for pair in WHOLE_PAIRS if against(*pair).verdict != "not resolved"]
    lost = [pair for pair in decided if pair not in after_correction()]
    told = f"After a Bonferroni correction for the {WORDS[len(WHOLE_PAIRS)]} pairs of this section three are not decided"
    names = "what ASURA's steps add, and that the Huginn-like model is ahead of four plain layers and behind ASURA"
    yield when(lost == [("Huginn-like", PARAMETERS), ("ASURA", ONCE), ("Huginn-like", "ASURA")], f"{told}: {names}")


def regulariser() -> Iterator[str]:
    """Yields how far held-out losses lie above the training losses at the end."""
    fits = {arm: at_end(arm) for arm in NAMES}
    gaps = {arm: tested(arm) - fits[arm] for arm in NAMES}
    best = all(min(found, key=lambda arm: found[arm]) == FLOPS for found in (fits, {arm: tested(arm) for arm in NAMES}))
    yield when(best, "Twelve plain layers fit their text best and have the lowest held-out loss")
    lead = [fits["ASURA"] - fits[FLOPS], tested("ASURA") - tested(FLOPS)]
    yield f"Their lead over ASURA is {lead[0]:.3f} on the training text at the end and {lead[1]:.3f} on `test`"
    told = (
        f"{gaps[FLOPS]:.2f} with twelve plain layers, {gaps['ASURA']:.2f} with ASURA, {gaps[PARAMETERS]:.2f} with four plain layers"
    )
    yield f"The held-out loss is above the training loss by {told} and {gaps['Huginn-like']:.2f} with the Huginn-like model"


def brief_claims() -> Iterator[str]:
    """Yields the same in short: the first part of the page."""
    flops, few, huginn, near = verdicts()
    whole, once = added_to()
    yield f"There depth 1 is {added()}, both decided), for {dearer('ASURA', ONCE)} times the FLOPs"
    yield f"After a correction for the {WORDS[len(WHOLE_PAIRS)]} pairs of that section what the steps add is not decided"
    open_once = depths.none_decided() and depths.none_decided(depths.calm())
    told = "On text read once ASURA's lead is not shown to come from its loop; in longer runs a part of it does, by one comparison."
    yield when(open_once, f"**{told}**")
    cells = f"{-once.difference:.3f} ahead of four plain layers; {-whole.difference:.3f} **behind** ASURA with its three steps"
    yield f"{cells} (both decided; the second not after a correction for {WORDS[len(WHOLE_PAIRS)]} pairs)"
    where = f"On all {text():.1f} million tokens, read four times at the rates of the short runs"
    both = f"{flops.difference:.3f} behind twelve plain layers of nearly equal FLOPs and {-few.difference:.3f} ahead of four"
    yield f"{where}, ASURA is {both} ({seeds()}, both decided)"
    yield f"On all of the text, read four times, it is {huginn.difference:.3f} behind twelve plain layers ({seeds()}, decided)"
    ours = f"ASURA **behind** by {flops.difference:.3f}, ahead by {-few.difference:.3f} (both decided)"
    alone = f"ahead by {-near.difference:.3f} (decided on `test` alone)"
    theirs = f"**behind** by {huginn.difference:.3f} (decided), {alone}"
    yield f"{ours}; the Huginn-like model {theirs}; {seeds()}"


def page_claims() -> Iterator[str]:
    """Yields what other parts of docs/when-to-loop-text.md say."""
    flops, *_ = verdicts()
    law = f"it is {flops.difference:.3f} behind twelve plain layers, as the law says"
    yield f"On all of the text, read four times, {law} ({seeds()}, decided)"
    seconds = [run["train_seconds"] for arm in NAMES for run in runs_of(arm)]
    yield f"one on all of the text {min(seconds):.0f} to {max(seconds):.0f} s beside others"
    limit = f"it is {flops.difference:.3f} behind plain layers of nearly equal FLOPs"
    yield f"nor on all of the text read four times, where {limit} ({seeds()}, decided"


def longer() -> float:
    """Returns how many times the tokens of a run on fresh text a run on all of the text has."""
    return float(runs_of("ASURA")[0]["tokens"] / kept()["ASURA", 1][0]["tokens"])


def rate(arm: str) -> float:
    """Returns the rate of depth 1, which must be that chosen for depth 3, or of four plain layers, which must be their own."""
    rates = {each: runs_of(each)[0]["rate"] for each in (ONCE, "ASURA", PARAMETERS)}
    if not rates[ONCE] == rates["ASURA"] == 2 * rates[PARAMETERS]:
        raise ValueError("whole text: the rates are not as the pages say")
    return float(rates[arm])


def limit() -> str:
    """Returns what the decision page says of rates."""
    tuned = {run["rate"] for arm in TUNED for run in runs_of(arm)} - {run["rate"] for arm in TUNED for run in kept()[arm, TIMES]}
    alone = all(len({run["rate"] for run in runs_of(arm)}) == 1 for arm in NAMES)
    return when(alone and not tuned, "On all of the text read four times no learning rate was tuned")


def norms_claims() -> Iterator[str]:
    """Yields what docs/inside-training.md says beside its own models with Huginn's norms."""
    *_, huginn, _ = verdicts()
    told = f"it is {huginn.difference:.3f} behind plain layers of nearly equal FLOPs ({seeds()}, decided)"
    yield f"On all of the text, read four times, {told}"


def short() -> str:
    """Returns what the README says."""
    flops, few, *_ = verdicts()
    where = f"On {text():.1f} million tokens read four times, at rates chosen on little text, the small size"
    both = f"{flops.difference:.2f} behind plain layers of nearly equal FLOPs and {-few.difference:.2f} ahead of those of"
    return f"{where} is {both} nearly equal parameters ({seeds()}, both decided)"
