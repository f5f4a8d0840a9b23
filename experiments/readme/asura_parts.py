"""What the pages say of ASURA's parts one by one: three seeds each, and the middle size without its skip at calmer schedules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from statistics import mean, median, variance

from experiments.asura.pairing import alike, wholes
from experiments.asura.plan import CALMER, LARGER_START, ONE_PROJECTION, SIZES, TWELVE, WHOLE, WITHOUT_SKIP, at_schedule
from experiments.asura.run import TEXTS
from experiments.pages import Result
from experiments.readme.asura import FLOPS, NAIVE, PARAMETERS, sizes, times
from experiments.readme.asura import losses as losses_of
from experiments.readme.depths import signs
from experiments.readme.repeats import DECIDED, agree
from experiments.readme.rows import line, rows_of, when
from experiments.seeds import STUDENT, Pooled, paired_p, pooled
from loopwright import preset

LORA, ONE_NORM, NO_NORMS = "ASURA with LoRA", "one norm for all steps", "without norms after layers"
NO_ADAPTERS = "without adapters"
PARTS = (WITHOUT_SKIP, NO_NORMS, NO_ADAPTERS, LORA, ONE_NORM, ONE_PROJECTION)
OTHER: dict[tuple[int, ...], str] = {(0, 0, 0): "", (0, 1, 1): " ¹", (1, 1, 1): " ²"}  # which seeds read other batches than ASURA's
STILL = 6.0  # nats: a model that does not train stays above


@cache
def less(size: str, label: str, other: str = WHOLE, text: str = "test", seeds: tuple[int, ...] = (0, 1, 2)) -> Pooled:
    """Returns one row of a size less another; less ASURA: less the rows of ASURA that it is compared with."""
    labels = sizes()[size]
    first = [run for run in labels[label] if run["seed"] in seeds]
    found = pooled(first, wholes(first, labels) if other == WHOLE else labels[other], text)
    assert found is not None and found.seeds == tuple(run["seed"] for run in first)
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
    strict = 0.05 / (len(PARTS) * len(SIZES))
    return {word(each) for each in tests} == {"decided"} and max(paired_p(each.of_seeds) for each in tests) < strict


def cell(size: str, label: str) -> str:
    """Returns a row's loss and what it has above ASURA's, bold where that is decided on both texts; `ood` where it alone is."""
    test, ood = (less(size, label, text=text) for text in TEXTS)
    other = tuple(int(not alike(run, sizes()[size])) for run in sizes()[size][label])
    digits = 2 if abs(test.difference) > 1 else 3
    shown = f"{test.difference:+.{digits}f}"
    if test.verdict == ood.verdict:
        shown = shown if word(test) == "undecided" else f"**{shown}**"
    else:
        shown += f" (ood {ood.difference:+.3f}, {word(ood)})"
    return f"{mean(losses_of(sizes()[size], label)):.3f}{OTHER[other]} | {shown}".replace("-", "−")


def share(label: str, what: str, digits: int = 2) -> str:
    """Returns which part of ASURA's parameters or FLOPs a row has, at both sizes."""
    return " and ".join(f"{each:.{digits}f}" for each in times(label, WHOLE, what))


def lines() -> Iterator[str]:
    """Yields the rows of the table, with their bold marks."""
    yield line(WHOLE, *(f"{mean(losses_of(labels, WHOLE)):.3f} | –" for labels in sizes().values()))
    names = {
        FLOPS: f"plain, nearly equal FLOPs ({share(FLOPS, 'flops')} of them; {share(FLOPS, 'parameters', 1)} times the parameters)",
        PARAMETERS: f"plain, nearly equal parameters ({share(PARAMETERS, 'parameters')} of them; {share(PARAMETERS, 'flops')} of "
        "the FLOPs)",
        NAIVE: f"naive universal ({share(NAIVE, 'parameters')} of the parameters)",
        LORA: "with LoRA instead of ABBA",
    }
    for label in (FLOPS, PARAMETERS, NAIVE, *PARTS):
        yield line(names.get(label, label), *(cell(size, label) for size in SIZES))


def medians(label: str) -> list[float]:
    """Returns the median gradient norm, the mean over seeds, at both sizes."""
    return [mean([median(run["gradient_norms"]) for run in labels[label]]) for labels in sizes().values()]


def claims() -> Iterator[str]:
    """Yields what docs/asura.md says of the parts."""
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
    without, whole = medians(NO_NORMS), medians(WHOLE)
    yield f"(median {without[0]:.2f} and {without[1]:.2f} without, {whole[0]:.2f} and {whole[1]:.2f} with)"
    yield from adapter_claims()
    yield from projection_claims()
    yield from start_claims()
    yield from calm_claims()
    yield corrected()
    yield from unpaired()
    yield naive_longer()
    yield again()


def skip_claims() -> Iterator[str]:
    """Yields how the small size does without its skip."""
    found = less("small", WITHOUT_SKIP)
    first, later = (" / ".join(f"{a['losses'][at] - b['losses'][at]:.2f}" for a, b in _beside_whole(WITHOUT_SKIP)) for at in (3, 5))
    yield (
        f"At the small size it learns more slowly ({first} nats behind in updates 61 to 80, {later} in 101 to 120, seed by seed) "
        f"and is {found.difference:.3f} behind at the end ({signs(found.of_seeds)}, {word(found)})"
    )
    yield f"with larger gradients (median {medians(WITHOUT_SKIP)[0]:.2f} instead of {medians(WHOLE)[0]:.2f})"
    middle = sizes()["middle"]
    early = [max(run["gradient_norms"][:4]) for run in middle[WITHOUT_SKIP]]
    calm = max(max(run["gradient_norms"]) for run in middle[WHOLE])
    yield f"goes to {math.floor(min(early))} to {math.floor(max(early))}, where ASURA's stays below {math.ceil(10 * calm) / 10:.1f}"


def _beside_whole(label: str) -> list[tuple[Result, Result]]:
    small = sizes()["small"]
    return list(zip(small[label], wholes(small[label], small), strict=True))


def calmer_claims() -> Iterator[str]:
    """Yields how the middle size does without its skip at calmer schedules, seed 0."""
    middle = sizes()["middle"]
    runs = {key: middle[at_schedule(WITHOUT_SKIP, *key)] for key in CALMER}
    trains = all(run["losses"][-1] < STILL for found in runs.values() for run in found)
    yield when(trains and {len(found) for found in runs.values()} == {1}, "At three calmer schedules it trains (seed 0)")
    long = (1e-3, 200)
    found = less("middle", runs[long][0]["label"])
    loss = losses_of(middle, runs[long][0]["label"])[0]
    spread = max(
        max(found) - min(found) for found in (losses_of(middle, label) for label in (WHOLE, FLOPS, PARAMETERS, NAIVE, *PARTS))
    )
    within = found.difference < spread
    yield when(within, f"(not resolved: two seeds of one row lie up to {spread:.3f} apart at this size)")
    same = at_schedule(WHOLE, *long) in middle
    rival = "ASURA at the same schedule" if same else "ASURA with its warm-up of 60"
    yield when(found.difference > 0, f"at 1e-3 with a warm-up of 200 to {loss:.3f}, {found.difference:.3f} behind {rival}")
    if all(at_schedule(WHOLE, 3e-4, warmup) in middle for warmup in (60, 200)):
        short = [less("middle", at_schedule(WITHOUT_SKIP, 3e-4, warmup)).difference for warmup in (60, 200)]
        yield when(min(short) > 0, f"{short[0]:.3f} and {short[1]:.3f} behind ASURA at the same schedules")
    low = [losses_of(middle, runs[3e-4, warmup][0]["label"])[0] for warmup in (60, 200)]
    yield f"at 3e-4 with 60 to {low[0]:.3f} and with 200 to {low[1]:.3f}"
    highest = max(max(run["gradient_norms"]) for found in runs.values() for run in found)
    yield f"no gradient norm is above {math.ceil(10 * highest) / 10:.1f}"


def adapter_claims() -> Iterator[str]:
    """Yields what adapters, their kind and norms of their own for each step are worth."""
    small, middle = both(LORA)
    yield when(
        middle.verdict == "higher" and small.difference > 0,
        f"With LoRA the middle size is {middle.difference:.3f} behind ASURA ({agree(middle)} seeds, {word(middle)}) and the small "
        f"one {small.difference:.3f} ({word(small)})",
    )
    bare = less("middle", LORA, NO_ADAPTERS)
    yield when(bare.difference > 0, f"it is {bare.difference:.3f} behind the same size without adapters as well ({word(bare)})")
    for label, name in ((NO_ADAPTERS, "Without adapters"), (ONE_NORM, "With one norm for all steps")):
        small, middle = both(label)
        undecided = small.verdict == middle.verdict == "not resolved" and min(small.difference, middle.difference) > 0
        yield when(undecided, f"{name} the loss is {small.difference:.3f} and {middle.difference:.3f} higher (undecided)")
    ood = less("small", NO_ADAPTERS, text="ood")
    yield when(ood.verdict == "higher", f"on `ood` {ood.difference:.3f} at the small size is decided")


def projection_claims() -> Iterator[str]:
    """Yields how one projection for all steps does beside one each."""
    small, middle = both(ONE_PROJECTION)
    yield when(
        small.verdict == "lower", f"is {-small.difference:.3f} ahead of ASURA at the small size ({agree(small)} seeds, decided)"
    )
    yield f"At the middle size the seeds disagree ({signs(middle.of_seeds)}; mean {signs([middle.difference])}, {word(middle)})"
    ours, flops = (mean(losses_of(sizes()["small"], label)) for label in (ONE_PROJECTION, FLOPS))
    undecided = less("small", ONE_PROJECTION, FLOPS).verdict == "not resolved"
    told = f"beside twelve plain layers of nearly equal FLOPs nothing is decided ({ours:.3f} and {flops:.3f})"
    yield when(undecided, told)
    near = [less("small", ONE_PROJECTION, other, seeds=(1, 2)) for other in (NO_ADAPTERS, ONE_NORM)]
    leads = sorted({f"{-each:.3f}" for found in near for each in found.of_seeds})
    yield when(len(leads) == 1, f"it is {leads[0]} ahead of each on both seeds")
    starts = [1 / math.sqrt(2 * int(shape["hidden_size"])) for shape in SIZES.values()]
    yield f"deviation of {preset('asura').initializer_range:g} instead of {starts[0]:.3f} and {starts[1]:.3f}"
    shared, own = medians(ONE_PROJECTION), medians(WHOLE)
    yield f"(median {shared[0]:.2f} and {shared[1]:.2f} instead of {own[0]:.2f} and {own[1]:.2f}"
    norms = [run["gradient_norms"] for run in sizes()["middle"][ONE_PROJECTION]]
    largest, early = [*map(max, norms)], {each.index(max(each)) for each in norms} == {1}
    yield when(early, f"at the middle size up to {min(largest):.1f} to {max(largest):.1f} in updates 21 to 40)")


def start_claims() -> Iterator[str]:
    """Yields how one projection does from the start of those of each step, once all seeds on both sizes and ASURA's are there."""
    known = [labels.get(label, []) for labels in sizes().values() for label in (LARGER_START, f"{WHOLE}{TWELVE}")]
    if {len(runs) for runs in known} != {3}:
        return
    small, middle = both(LARGER_START)
    told = [f"{signs([each.difference])} ({signs(each.of_seeds)}, {word(each)})" for each in (small, middle)]
    yield f"From the larger start the one projection less ASURA is {told[0]} at the small size and {told[1]} at the middle one"
    small, middle = both(LARGER_START, ONE_PROJECTION)
    told = [f"{signs([each.difference])} ({word(each)})" for each in (small, middle)]
    yield f"less the same from the smaller start {told[0]} and {told[1]}"


def calm_claims() -> Iterator[str]:
    """Yields that no other row has a spike."""
    rough = {(run["size"], run["label"]) for run in rows_of("asura/runs.jsonl") if run["spikes"] or run["skipped"]}
    calm = rough == {("middle", WITHOUT_SKIP)}
    yield when(calm, "No spike and no skipped update in any other row")


def corrected() -> str:
    """Returns what a correction for all differences leaves."""
    left = {(size, label) for size in SIZES for label in PARTS if survives(size, label)}
    both_middle = left == {("middle", WITHOUT_SKIP), ("middle", NO_NORMS)}
    return when(both_middle, "two stay decided: the skip and the norms after layers, both at the middle size")


def stays(size: str, label: str, text: str) -> bool:
    """Whether a difference from ASURA has |t| above the 95 % limit in the t-test of two samples: seeds are not paired."""
    runs = sizes()[size][label]
    first, second = ([run["texts"][text]["loss"][-1] for run in each] for each in (runs, wholes(runs, sizes()[size])))
    error = math.sqrt((variance(first) + variance(second)) / len(first))
    assert len(first) == len(second)
    return abs(mean(first) - mean(second)) / error > STUDENT[2 * len(first) - 3]


def unpaired() -> Iterator[str]:
    """Yields that what is decided of rows with other batches than ASURA's does not hang on the pairing of seeds."""
    rows = [(size, label) for size in SIZES for label in PARTS]
    marked = [row for row in rows if not all(alike(run, sizes()[row[0]]) for run in sizes()[row[0]][row[1]])]
    decided = [(*row, text) for row in marked for text in TEXTS if word(less(*row, text=text)) == "decided"]
    if decided:
        told = "Each cell of a marked row that is decided stays decided when the seeds are not paired (t-test of two samples)"
        yield when(all(stays(*each) for each in decided), told)


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
    left = "; after a Bonferroni correction at the middle size alone"
    sizes_left = [size for size in SIZES if survives(size, NO_NORMS)] == ["middle"]
    told = (
        f"only the norms after layers show a decided gain at both sizes ({small.difference:.2f} and {middle.difference:.2f}{left})"
    )
    return when(gain == {NO_NORMS} and sizes_left, told)
