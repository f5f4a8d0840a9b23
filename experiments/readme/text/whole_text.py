"""What the pages say of looped and plain arms of width 256 on all of the text, read four times, at the rates of little text."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from experiments.pages import Result
from experiments.readme.rows import WORDS, when
from experiments.readme.text.repeats import FLOPS, PARAMETERS, agree, beside, kept, losses, on_ood
from experiments.repeats.plan import BATCH, WHOLE, WHOLE_BATCH, WHOLE_UPDATES
from experiments.repeats.tables import LOOPED
from experiments.seeds import DECIDED, Pooled, over_seeds

NAMES = {arm: label for label, arm in WHOLE.items()}
TIMES = 4


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
    low, high = (f"{each:+.3f}".replace("-", "−") for each in found.over_seeds)
    return f"{agree(found)} seeds; {low} to {high}, {DECIDED[found.verdict]}"


def verdicts() -> tuple[Pooled, Pooled, Pooled, Pooled]:
    """Returns ASURA and the Huginn-like model, each less twelve and less four plain layers, where they stand as the pages say."""
    flops, few, huginn, near = (against(arm, rival) for arm in LOOPED for rival in (FLOPS, PARAMETERS))
    if [each.verdict for each in (flops, few, huginn, near)] != [
        "higher",
        "lower",
        "higher",
        "not resolved",
    ] or near.difference > 0:
        raise ValueError("whole text: the arms do not stand as the pages say")
    return flops, few, huginn, near


def claims() -> Iterator[str]:
    """Yields what the section says."""
    flops, few, huginn, near = verdicts()
    plain = {FLOPS: "twelve plain layers", PARAMETERS: "four plain layers"}
    by_arm = ", ".join(f"{plain.get(arm, arm)} {losses(runs_of(arm))}" for arm in NAMES)
    yield f"Losses on `test`, seeds 0 and 1: {by_arm}"
    first = kept()["ASURA", 1][0]
    ours = runs_of("ASURA")[0]
    more = f"{text() / (first['tokens'] / first['epochs'] / 1e6):.1f} times the fresh text"
    updates = f"{WHOLE_UPDATES * TIMES:,} updates of {WHOLE_BATCH} × 256 tokens"
    batch = f"with a batch {WORDS[WHOLE_BATCH // BATCH]} times as large"
    yield f"{text():.1f} million tokens, {more}, in {updates} ({ours['tokens'] / 1e6:.0f} million tokens read, {batch}"
    rates = {arm: {run["rate"] for run in runs_of(arm)} for arm in NAMES}
    own = {arm: {run["rate"] for run in kept()[arm, TIMES]} for arm in NAMES}
    yield when(rates == own, "Rates are those of four readings of 1.3 million tokens; none was tuned on this text")
    halted = [
        (run["label"], run["seed"], run["origin"]["resumed"])
        for arm in NAMES
        for run in runs_of(arm)
        if run["origin"].get("resumed")
    ]
    ((label, seed, (update,)),) = halted
    assert WHOLE[label] == "Huginn-like"
    yield f"Its run of seed {seed} was stopped after {update:,} updates and resumed"
    loop = f"the Huginn-like model {huginn.difference:.3f} ({words_of(huginn)})"
    yield f"ASURA is {flops.difference:.3f} behind twelve plain layers ({words_of(flops)}), {loop}"
    before = beside("ASURA", FLOPS, TIMES)
    assert before is not None and before.verdict == "lower"
    ratio = ours["tokens"] / kept()["ASURA", TIMES][0]["tokens"]
    ahead = f"ASURA was {-before.difference:.3f} ahead of them, in runs of 1/{ratio:.0f} of these tokens"
    yield f"On 1.3 million tokens read four times {ahead}"
    cost = ours["flops"] / runs_of(PARAMETERS)[0]["flops"]
    yield f"ASURA is {-few.difference:.3f} ahead of four plain layers ({words_of(few)}), for {cost:.1f} times the FLOPs"
    yield f"The Huginn-like model is {-near.difference:.3f} ahead of them ({words_of(near)})"
    layers = against(FLOPS, PARAMETERS)
    yield f"Twelve plain layers are {-layers.difference:.3f} ahead of four ({words_of(layers)})"
    loops = against("Huginn-like", "ASURA")
    yield f"{loops.difference:.3f} behind ASURA ({words_of(loops)})"
    yield from regulariser()
    other = [on_ood(NAMES["ASURA"], NAMES[rival], TIMES) for rival in (FLOPS, PARAMETERS)]
    out = all(low * high > 0 for low, high in map(over_seeds, other))
    told = f"On `ood` ASURA is {mean(other[0]):.3f} behind twelve plain layers and {-mean(other[1]):.3f} ahead of four"
    yield when(out, f"{told}; the intervals over seeds leave 0 out")
    last = on_ood(NAMES["Huginn-like"], NAMES[FLOPS], TIMES)
    low, high = over_seeds(last)
    wide = f"{low:+.3f} to {high:+.3f}, undecided".replace("-", "−")
    told = f"The Huginn-like model is {mean(last):.3f} behind twelve there ({wide})"
    only = f"its deficit is decided on `test` alone, where the interval over seeds begins at {huginn.over_seeds[0]:.3f}"
    yield when(low < 0 < high and huginn.verdict == "higher", f"{told}: {only}")


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
    where = f"On all {text():.1f} million tokens, read four times at the rates of the short runs"
    both = f"{flops.difference:.3f} behind twelve plain layers of nearly equal FLOPs and {-few.difference:.3f} ahead of four"
    yield f"{where}, ASURA is {both} ({seeds()}, both decided)"
    yield f"On all of the text, read four times, it is {huginn.difference:.3f} behind twelve plain layers ({seeds()}, decided)"
    ours = f"ASURA **behind** by {flops.difference:.3f}, ahead by {-few.difference:.3f} (both decided)"
    theirs = f"**behind** by {huginn.difference:.3f} (decided), ahead by {-near.difference:.3f} (undecided)"
    yield f"{ours}; the Huginn-like model {theirs}; {seeds()}"


def page_claims() -> Iterator[str]:
    """Yields what other parts of docs/when-to-loop-text.md say."""
    flops, *_ = verdicts()
    law = f"it is {flops.difference:.3f} behind twelve plain layers, as the law says"
    yield f"On all of the text, read four times, {law} ({seeds()}, decided)"
    seconds = [run["train_seconds"] for arm in NAMES for run in runs_of(arm)]
    yield f"one on all of the text {min(seconds):.0f} to {max(seconds):.0f} s beside {WORDS[len(NAMES) - 1]} others"
    limit = f"it is {flops.difference:.3f} behind plain layers of nearly equal FLOPs"
    yield f"nor on all of the text read four times, where {limit} ({seeds()}, decided"


def asura_claims() -> Iterator[str]:
    """Yields what docs/asura.md says."""
    flops, few, *_ = verdicts()
    run, once = runs_of("ASURA")[0], kept()["ASURA", 1][0]
    where = f"In runs of {run['tokens'] / once['tokens']:.0f} times these tokens (all of the text, read four times, the same rates"
    both = f"{flops.difference:.3f} behind twelve plain layers and {-few.difference:.3f} ahead of four (both decided)"
    yield f"{where}, {seeds()}) it is {both}"
    yield f"it is behind twelve plain layers of nearly equal FLOPs and ahead of four ({seeds()}, decided)"


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
