"""What the pages say of ASURA's parts one by one: three seeds each; the skip of the middle size at calmer schedules with one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from statistics import mean, median

from experiments.asura.pairing import files_of, wholes
from experiments.asura.plan import CALMER, LARGER_START, ONE_PROJECTION, SIZES, TWELVE, WHOLE, WITHOUT_SKIP, at_schedule
from experiments.asura.run import TEXTS
from experiments.pages import Result
from experiments.readme.rows import WORDS, line, rows_of, when
from experiments.readme.text.asura import FLOPS, NAIVE, PARAMETERS, sizes, times
from experiments.readme.text.asura import losses as losses_of
from experiments.readme.text.depths import signs
from experiments.readme.text.repeats import agree
from experiments.seeds import DECIDED, Pooled, paired_p, pooled
from loopwright import preset

LORA, ONE_NORM, NO_NORMS = "ASURA with LoRA", "one norm for all steps", "without norms after layers"
NO_ADAPTERS = "without adapters"
PARTS = (WITHOUT_SKIP, NO_NORMS, NO_ADAPTERS, LORA, ONE_NORM, ONE_PROJECTION, LARGER_START)
ON_TWELVE = f"{WHOLE}{TWELVE}"
MARKS = {5: "", 12: " ¹"}  # by the training files of a row
STRICT = 0.05 / (len(PARTS) * len(SIZES))  # Bonferroni: all parts at both sizes
STILL = 6.0  # nats: a model that does not train stays above


@cache
def less(size: str, label: str, other: str = WHOLE, text: str = "test") -> Pooled:
    """Returns one row of a size less another; less ASURA: less the rows of ASURA that read the same batches."""
    labels = sizes()[size]
    runs = labels[label]
    found = pooled(runs, wholes(runs, labels) if other == WHOLE else labels[other], text)
    assert found is not None and found.seeds == tuple(run["seed"] for run in runs)
    return found


def both(label: str, other: str = WHOLE) -> tuple[Pooled, Pooled]:
    """Returns one row less another on `test`, at the small and at the middle size."""
    small, middle = (less(size, label, other) for size in SIZES)
    return small, middle


def word(found: Pooled) -> str:
    """Returns whether a difference is decided."""
    return DECIDED[found.verdict]


def survives(size: str, label: str) -> bool:
    """Whether a difference is decided on both texts after a Bonferroni correction for all parts at both sizes."""
    tests = [less(size, label, text=text) for text in TEXTS]
    return {word(each) for each in tests} == {"decided"} and max(paired_p(each.of_seeds) for each in tests) < STRICT


def cell(size: str, label: str) -> str:
    """Returns a row's loss and what it has above ASURA's, bold where that is decided on both texts; `ood` where it alone is."""
    test, ood = (less(size, label, text=text) for text in TEXTS)
    digits = 2 if abs(test.difference) > 1 else 3
    shown = f"{test.difference:+.{digits}f}"
    if test.verdict == ood.verdict:
        shown = shown if word(test) == "undecided" else f"**{shown}**"
    else:
        shown += f" (ood {ood.difference:+.3f}, {word(ood)})"
    return f"{loss_cell(size, label)} | {shown}".replace("-", "−")


def loss_cell(size: str, label: str) -> str:
    """Returns a row's loss, marked where it read all twelve files."""
    (files,) = {files_of(run) for run in sizes()[size][label]}
    return f"{mean(losses_of(sizes()[size], label)):.3f}{MARKS[files]}"


def share(label: str, what: str, digits: int = 2) -> str:
    """Returns which part of ASURA's parameters or FLOPs a row has, at both sizes."""
    return " and ".join(f"{each:.{digits}f}" for each in times(label, WHOLE, what))


def lines() -> Iterator[str]:
    """Yields the rows of the table, with their bold marks."""
    for label, name in ((WHOLE, WHOLE), (ON_TWELVE, "ASURA, on twelve training files")):
        yield line(name, *(f"{loss_cell(size, label)} | –" for size in SIZES))
    names = {
        FLOPS: f"plain, nearly equal FLOPs ({share(FLOPS, 'flops')} of them; {share(FLOPS, 'parameters', 1)} times the parameters)",
        PARAMETERS: f"plain, nearly equal parameters ({share(PARAMETERS, 'parameters')} of them; {share(PARAMETERS, 'flops')} of "
        "the FLOPs)",
        NAIVE: f"naive universal ({share(NAIVE, 'parameters')} of the parameters)",
        LORA: "with LoRA instead of ABBA",
        LARGER_START: "the same, from a larger start",
    }
    for label in (FLOPS, PARAMETERS, NAIVE, *PARTS):
        yield line(names.get(label, label), *(cell(size, label) for size in SIZES))


def medians(label: str, *, whole: bool = False) -> list[float]:
    """Returns the median gradient norm, the mean over seeds, at both sizes; or that of the ASURA rows it is compared with."""
    groups = [wholes(labels[label], labels) if whole else labels[label] for labels in sizes().values()]
    return [mean([median(run["gradient_norms"]) for run in runs]) for runs in groups]


def highest(labels: Iterable[str]) -> float:
    """Returns the largest gradient norm of some rows of the middle size, rounded up to one digit."""
    norms = [max(run["gradient_norms"]) for label in labels for run in sizes()["middle"][label]]
    return math.ceil(10 * max(norms)) / 10


def claims() -> Iterator[str]:
    """Yields what docs/asura.md says of the parts."""
    yield from summary()
    yield from lines()
    yield from skip_claims()
    yield from calmer_claims()
    small, middle = both(NO_NORMS)
    all_of = [less(size, NAIVE).difference for size in SIZES]
    yield when(
        small.verdict == middle.verdict == "higher",
        f"without them the loss is {small.difference:.3f} higher at the small size and {middle.difference:.3f} at the middle one "
        f"({agree(small, middle)} seeds each, decided; without all four parts {all_of[0]:.3f} and {all_of[1]:.3f})",
    )
    without, whole = medians(NO_NORMS), medians(NO_NORMS, whole=True)
    yield f"(median {without[0]:.2f} and {without[1]:.2f} without, {whole[0]:.2f} and {whole[1]:.2f} with)"
    yield from adapter_claims()
    yield from projection_claims()
    yield from start_claims()
    yield from plain_claims()
    yield from calm_claims()
    yield from read_claims()
    yield naive_longer()
    yield again()


def summary() -> Iterator[str]:
    """Yields the verdicts that the page begins with."""
    verdicts = {label: tuple(each.verdict for each in both(label)) for label in (PARAMETERS, FLOPS, *PARTS)}
    beside = verdicts[PARAMETERS] == ("higher", "higher") and verdicts[FLOPS] == ("lower", "not resolved")
    yield when(beside, "ahead at both sizes (decided). Beside one of nearly equal FLOPs it is behind at the small size (decided)")
    gains = [label for label in PARTS if verdicts[label] == ("higher", "higher")]
    left = [size for size in SIZES if survives(size, NO_NORMS)]
    told = (
        "Only the norms after layers show a decided gain in loss at both sizes (after a correction for all parts at the middle one"
    )
    yield when(gains == [NO_NORMS] and left == ["middle"], f"{told} alone)")
    nothing = {verdicts[label] for label in (NO_ADAPTERS, LORA, ONE_NORM)} == {("not resolved", "not resolved")}
    yield when(nothing, "The adapters, their kind, and a norm of its own for each step show no decided gain")
    better = verdicts[ONE_PROJECTION] == ("lower", "not resolved") and not survives("small", ONE_PROJECTION)
    yield when(
        better, "One projection for all steps is better than one each at the small size (decided; not after that correction)"
    )


def skip_claims() -> Iterator[str]:
    """Yields how the small size does without its skip."""
    found = less("small", WITHOUT_SKIP)
    first, later = (" / ".join(f"{a['losses'][at] - b['losses'][at]:.2f}" for a, b in _beside_whole(WITHOUT_SKIP)) for at in (3, 5))
    yield (
        f"At the small size it learns more slowly ({first} nats behind in updates 61 to 80, {later} in 101 to 120, seed by seed) "
        f"and is {found.difference:.3f} behind at the end ({signs(found.of_seeds)}, {word(found)})"
    )
    yield f"with larger gradients (median {medians(WITHOUT_SKIP)[0]:.2f} instead of {medians(WITHOUT_SKIP, whole=True)[0]:.2f})"
    early = [max(run["gradient_norms"][:4]) for run in sizes()["middle"][WITHOUT_SKIP]]
    calm = highest((WHOLE, ON_TWELVE))
    yield f"reaches {math.floor(min(early))} to {math.floor(max(early))}, where ASURA's stays below {calm:.1f} (six runs)"


def _beside_whole(label: str) -> list[tuple[Result, Result]]:
    small = sizes()["small"]
    return list(zip(small[label], wholes(small[label], small), strict=True))


def calmer_claims() -> Iterator[str]:
    """Yields what the skip is worth to the middle size at calmer schedules, seed 0."""
    middle = sizes()["middle"]
    names = {key: at_schedule(WITHOUT_SKIP, *key) for key in CALMER}
    trains = all(run["losses"][-1] < STILL for name in names.values() for run in middle[name])
    found = {key: less("middle", name) for key, name in names.items()}
    spread = max(
        max(losses) - min(losses)
        for losses in (losses_of(middle, row) for row in (WHOLE, FLOPS, PARAMETERS, NAIVE, *PARTS, ON_TWELVE))
    )
    open_ = all(abs(each.difference) < spread for each in found.values()) and {each.seeds for each in found.values()} == {(0,)}
    yield when(trains and open_, "At three calmer schedules it trains, and a gain from the skip is not shown there (seed 0)")
    yield when(open_, f"None of the three is resolved: each is of one seed, and two seeds of one row lie up to {spread:.3f} apart")
    told = []
    for key, schedule in (
        ((1e-3, 200), "1e-3 with a warm-up of 200"),
        ((3e-4, 60), "3e-4 with 60"),
        ((3e-4, 200), "3e-4 with 200"),
    ):
        without, whole = (losses_of(middle, at_schedule(label, *key))[0] for label in (WITHOUT_SKIP, WHOLE))
        told.append(f"{signs([found[key].difference])} at {schedule} ({without:.3f} and {whole:.3f})")
    yield f"The loss without the skip less that with it, on the same batches, is {told[0]}, {told[1]}, and {told[2]}"
    own = [highest([at_schedule(label, *key) for key in CALMER]) for label in (WITHOUT_SKIP, WHOLE)]
    yield f"no gradient norm is above {own[0]:.1f} ({own[1]:.1f} with the skip)"


def adapter_claims() -> Iterator[str]:
    """Yields what adapters, their kind and norms of their own for each step are worth."""
    for label, name in ((NO_ADAPTERS, "Without adapters"), (ONE_NORM, "With one norm for all steps")):
        small, middle = both(label)
        undecided = small.verdict == middle.verdict == "not resolved"
        told = " and ".join(signs([each.difference]) for each in (small, middle))
        yield when(undecided, f"{name} the loss changes by {told} (undecided)")
    rows = [(label, text) for label in (NO_ADAPTERS, ONE_NORM) for text in TEXTS]
    most = [max(less(size, label, text=text).over_seeds[1] for label, text in rows) for size in SIZES]
    small_most, middle_most = (math.ceil(1000 * each) / 1000 for each in most)
    yield f"leave room for a gain of at most {small_most:.3f} from either at the small size and {middle_most:.3f} at the middle one"
    small, middle = both(LORA)
    undecided = small.verdict == middle.verdict == "not resolved"
    told = f"LoRA less ABBA is {signs([small.difference])} at the small size ({signs(small.of_seeds)}) and"
    yield when(undecided, f"{told} {signs([middle.difference])} at the middle one ({signs(middle.of_seeds)}), both undecided")
    bare = less("middle", LORA, NO_ADAPTERS)
    shown = f"At the middle size LoRA is {bare.difference:.3f} behind no adapters at all ({agree(bare)} seeds, {word(bare)})"
    yield when(bare.difference > 0, shown)


def projection_claims() -> Iterator[str]:
    """Yields how one projection for all steps does beside one each, from the smaller start."""
    small, middle = both(ONE_PROJECTION)
    low, high = (-each for each in small.over_seeds[::-1])
    yield when(
        small.verdict == "lower",
        f"it is {-small.difference:.3f} ahead of ASURA at the small size ({low:.3f} to {high:.3f} over seeds, {agree(small)} "
        "seeds, decided)",
    )
    yield f"At the middle size the seeds disagree ({signs(middle.of_seeds)}; mean {signs([middle.difference])}, {word(middle)})"
    parts = {f"{each:.2f}" for each in times(ONE_PROJECTION, WHOLE, "parameters")}
    yield when(len(parts) == 1, f"with {min(parts)} of the parameters")
    shared, large, own = medians(ONE_PROJECTION), medians(LARGER_START), medians(ONE_PROJECTION, whole=True)
    yield (
        f"(median {shared[0]:.2f} and {shared[1]:.2f} from the smaller start and {large[0]:.2f} and {large[1]:.2f} from the larger "
        f"one; ASURA's {own[0]:.2f} and {own[1]:.2f})"
    )
    norms = [run["gradient_norms"] for run in sizes()["middle"][ONE_PROJECTION]]
    largest, early = [*map(max, norms)], {each.index(max(each)) for each in norms} == {1}
    told = f"At the middle size they reach {min(largest):.1f} to {max(largest):.1f} in updates 21 to 40 from the smaller start"
    yield when(early, f"{told} and stay below {highest([LARGER_START]):.1f} from the larger one")


def start_claims() -> Iterator[str]:
    """Yields how one projection does from the start of those of each step."""
    starts = [1 / math.sqrt(2 * int(shape["hidden_size"])) for shape in SIZES.values()]
    yield f"a standard deviation of {starts[0]:.3f} and {starts[1]:.3f} instead of {preset('asura').initializer_range:g}"
    small, middle = both(LARGER_START)
    ood = less("small", LARGER_START, text="ood")
    yield when(
        max(small.difference, middle.difference) < 0 and ood.verdict == "lower" and word(small) == word(middle) == "undecided",
        f"it is {-small.difference:.3f} ahead at the small size ({signs(small.of_seeds)}, undecided; on `ood` "
        f"{-ood.difference:.3f}, decided) and {-middle.difference:.3f} at the middle one ({signs(middle.of_seeds)}, undecided)",
    )
    small, middle = both(LARGER_START, ONE_PROJECTION)
    ood = less("small", LARGER_START, ONE_PROJECTION, "ood")
    yield (
        f"The larger start less the smaller one is {signs([small.difference])} at the small size ({word(small)}; on `ood` "
        f"{signs([ood.difference])}, {word(ood)}) and {signs([middle.difference])} at the middle one ({signs(middle.of_seeds)}, "
        f"{word(middle)})"
    )


def plain_claims() -> Iterator[str]:
    """Yields how one projection for all steps does beside plain layers of nearly equal FLOPs, which read other batches."""
    lead, (low, high) = plain_lead(), (-each for each in less("middle", LARGER_START, FLOPS).over_seeds[::-1])
    behind, ood = (less("small", LARGER_START, FLOPS, text) for text in TEXTS)
    yield when(
        behind.difference > 0 and ood.difference > 0,
        f"From the larger start it is {lead} ahead at the middle size ({low:.3f} to {high:.3f} over seeds, decided; not after the "
        f"correction above) and {behind.difference:.3f} behind at the small one ({word(behind)}; on `ood` {ood.difference:.3f}, "
        f"{word(ood)})",
    )
    small, middle = both(ONE_PROJECTION, FLOPS)
    yield when(
        middle.difference < 0 and small.verdict == middle.verdict == "not resolved",
        f"From the smaller start it is {-middle.difference:.3f} ahead at the middle size and within "
        f"{math.ceil(1000 * abs(small.difference)) / 1000:.3f} at the small one (both undecided)",
    )
    four = [less(size, label, FLOPS) for size in SIZES for label in (ONE_PROJECTION, LARGER_START)]
    count = WORDS[sum(each.verdict == "lower" for each in four)]
    yield f"With one projection for all steps ASURA has a decided lead in {count} of {WORDS[len(four)]} cases"


def plain_lead() -> str:
    """Returns the lead of the middle size from the larger start, which is decided on both texts until it is corrected."""
    found = [less("middle", LARGER_START, FLOPS, text) for text in TEXTS]
    corrected = max(paired_p(each.of_seeds) for each in found) < STRICT
    return when({each.verdict for each in found} == {"lower"} and not corrected, f"{-found[0].difference:.3f}")


def loop_claims() -> Iterator[str]:
    """Yields what docs/when-to-loop-text.md says of it."""
    start = "With one projection for all its steps, from the larger of two starts"
    yield f"{start}, the middle size was {plain_lead()} ahead on 9.8 million tokens"


def calm_claims() -> Iterator[str]:
    """Yields that no other row has a spike."""
    rough = {(run["size"], run["label"]) for run in rows_of("asura/runs.jsonl") if run["spikes"] or run["skipped"]}
    calm = rough == {("middle", WITHOUT_SKIP)}
    yield when(calm, "No spike and no skipped update in any other row")


def read_claims() -> Iterator[str]:
    """Yields how the table is to be read: what a correction leaves, where the texts part, how long rows took."""
    left = {(size, label) for size in SIZES for label in PARTS if survives(size, label)}
    count = len(PARTS) * len(SIZES)
    yield f"{WORDS[len(PARTS)].capitalize()} rows of parts at two sizes make {count} differences"
    told = (
        f"After a Bonferroni correction for {count}, two stay decided: the skip and the norms after layers, both at the middle size"
    )
    yield when(left == {("middle", WITHOUT_SKIP), ("middle", NO_NORMS)}, told)
    test, ood = (paired_p(less("small", NO_NORMS, text=text).of_seeds) for text in TEXTS)
    yield when(test < STRICT <= ood, "At the small size the norms stay decided on `test` alone")
    rows = [(size, label) for size in SIZES for label in (FLOPS, PARAMETERS, NAIVE, *PARTS)]
    parted = [row for row in rows if len({less(*row, text=text).verdict for text in TEXTS}) > 1]
    yield f"The verdict is the same on both texts, but for {WORDS[len(parted)]} cell, which gives its `ood` number"
    seconds = [run["train_seconds"] for run in rows_of("asura/runs.jsonl") if run["size"] in SIZES]
    yield f"{min(seconds) // 10 * 10:.0f} seconds to {WORDS[math.ceil(max(seconds) / 60)]} minutes a row"


def naive_longer() -> str:
    """Returns how ASURA and the naive loop stand after twice the updates."""
    losses = {run["label"]: run["texts"]["test"]["loss"][-1] for run in rows_of("asura/longer.jsonl")}
    whole, lora, naive = (losses[label] for label in (WHOLE, LORA, NAIVE))
    return f"{abs(naive - whole):.3f} apart (one seed): ASURA {whole:.3f}, with LoRA {lora:.3f}, naive {naive:.3f}"


def again() -> str:
    """Returns how far apart a row came out when it was made again, of the compiled rows whose gradients were right."""
    now = {run["name"]: run["valid"] for run in rows_of("asura/runs.jsonl") if "valid" in run}
    apart = [abs(run["valid"] - now[run["name"]]) for run in rows_of("asura/wrong-gradients.jsonl")]
    near = [each for each in apart if each < 1]
    shown = f"The other {len(near)} runs, made again as written, came out up to {max(near):.3f} nats away on `valid`"
    return when((len(apart), len(near)) == (25, 15), shown)


def short() -> str:
    """Returns what the README says of the parts."""
    gain = {label for label in PARTS if {each.verdict for each in both(label)} == {"higher"}}
    small, middle = both(NO_NORMS)
    left = "after a Bonferroni correction at the middle size alone"
    at_middle = [size for size in SIZES if survives(size, NO_NORMS)] == ["middle"]
    told = f"({small.difference:.2f} and {middle.difference:.2f}; {left})"
    return when(gain == {NO_NORMS} and at_middle, f"only the norms after layers show a decided gain at both sizes {told}")
