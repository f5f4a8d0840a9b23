"""What pages ask of the ASURA study's rows: two sizes with three seeds, each part in turn; all of the text with one seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from statistics import mean, median

from experiments.asura.pairing import arranged, files_of, wholes
from experiments.asura.plan import (
    ALL_COMPARED,
    ALL_RATES,
    ALL_TEXT,
    CALMER,
    LARGER_START,
    ONE_PROJECTION,
    SIZES,
    TWELVE,
    WHOLE,
    WITHOUT_SKIP,
    at_schedule,
    rows,
)
from experiments.asura.run import TEXTS
from experiments.asura.tables import best_of_rates
from experiments.pages import Result, by_label, results
from experiments.seeds import DECIDED, Pooled, held, mean_loss, paired_p, pooled, reports, stay_decided
from experiments.templates.rows import RESULTS, rows_of
from loopwright import preset

FLOPS, PARAMETERS, NAIVE = "plain, equal FLOPs", "plain, equal parameters", "naive universal"
CONTROLS = (NAIVE, FLOPS, PARAMETERS)
LORA, ONE_NORM, NO_NORMS = "ASURA with LoRA", "one norm for all steps", "without norms after layers"
NO_ADAPTERS = "without adapters"
PARTS = (WITHOUT_SKIP, NO_NORMS, NO_ADAPTERS, LORA, ONE_NORM, ONE_PROJECTION, LARGER_START)
ON_TWELVE = f"{WHOLE}{TWELVE}"
STRICT = 0.05 / (len(PARTS) * len(SIZES))  # Bonferroni: all parts at both sizes
STUCK, STILL = 6.9, 6.0  # nats: a loss that a model which does not train never gets below; one that one which trains does
EVERY = 20  # updates that a row tells together, by their mean loss and their largest gradient norm

Labels = Mapping[str, list[Result]]


@cache
def sizes() -> dict[str, Labels]:
    """Returns the runs by size and label, a part with the rows that stand for it."""
    found = results([str(RESULTS / "asura/runs.jsonl")], rows())
    return {size: arranged(by_label(run for run in found if run["size"] == size)) for size in SIZES}


def losses(size: str, label: str) -> list[float]:
    """Returns the loss on `test` at the deepest depth, seed by seed."""
    return [mean_loss([each], each.depth[-1]) for each in reports(sizes()[size][label], "test")]


def loss(size: str, label: str) -> float:
    """Returns the mean of these."""
    return mean(losses(size, label))


def files(size: str, label: str) -> int:
    """Returns how many training files a row read."""
    (count,) = {files_of(run) for run in sizes()[size][label]}
    return count


@cache
def less(size: str, label: str, other: str = WHOLE, text: str = "test") -> Pooled:
    """Returns one row of a size less another; less ASURA: less the rows of ASURA that read the same batches."""
    labels = sizes()[size]
    runs = labels[label]
    found = pooled(runs, wholes(runs, labels) if other == WHOLE else labels[other], text)
    assert found is not None and found.seeds == tuple(run["seed"] for run in runs)
    return found


def both(label: str, other: str = WHOLE, text: str = "test") -> tuple[Pooled, Pooled]:
    """Returns one row less another at the small and at the middle size."""
    small, middle = (less(size, label, other, text) for size in SIZES)
    return small, middle


def on_texts(size: str, label: str, other: str = WHOLE) -> tuple[Pooled, Pooled]:
    """Returns one row of a size less another on `test` and on `ood`."""
    test, ood = (less(size, label, other, text) for text in TEXTS)
    return test, ood


def times(label: str, rival: str, what: str) -> tuple[float, float]:
    """Returns how many times the FLOPs or parameters of another row a row has, at both sizes."""
    small, middle = (labels[label][0][what] / labels[rival][0][what] for labels in sizes().values())
    return small, middle


def millions(size: str, label: str, what: str = "parameters") -> float:
    """Returns the parameters or tokens of a row, in millions."""
    return float(sizes()[size][label][0][what] / 1e6)


def p(found: Pooled) -> float:
    """Returns the p of the paired t-test over seeds."""
    return paired_p(found.of_seeds)


def verdicts(label: str) -> tuple[str, str]:
    """Returns what is decided of a row's loss beside ASURA's, at both sizes."""
    small, middle = (each.verdict for each in both(label))
    return small, middle


def gains() -> list[str]:
    """Returns the parts without which both sizes are worse, decided."""
    return [label for label in PARTS if verdicts(label) == ("higher", "higher")]


def parted() -> list[tuple[str, str]]:
    """Returns the cells whose verdict is not the same on both texts."""
    cells = [(size, label) for size in SIZES for label in (*CONTROLS, *PARTS)]
    return [cell for cell in cells if len({each.verdict for each in on_texts(*cell)}) > 1]


def strict(size: str, label: str, other: str = WHOLE, texts: Iterable[str] = TEXTS) -> bool:
    """Whether a difference is decided on these texts after a Bonferroni correction for all parts at both sizes."""
    found = [less(size, label, other, text) for text in texts]
    return {DECIDED[each.verdict] for each in found} == {"decided"} and max(map(p, found)) < STRICT


def left() -> list[tuple[str, str]]:
    """Returns the parts whose differences stay decided on both texts after that correction."""
    return [(size, label) for size in SIZES for label in PARTS if strict(size, label)]


def controls() -> dict[tuple[str, str], Pooled]:
    """Returns the controls less ASURA."""
    return {(size, label): less(size, label) for label in CONTROLS for size in SIZES}


def controls_left() -> list[tuple[str, str]]:
    """Returns those that stay decided after a correction for all of them."""
    return stay_decided(controls())


def norms(label: str, *, whole: bool = False) -> list[float]:
    """Returns the median gradient norm, the mean over seeds, at both sizes; or that of the ASURA rows it is compared with."""
    groups = [wholes(labels[label], labels) if whole else labels[label] for labels in sizes().values()]
    return [mean([median(run["gradient_norms"]) for run in runs]) for runs in groups]


def largest(*labels: str) -> list[list[float]]:
    """Returns the gradient norms of runs of the middle size, the largest of every 20 updates."""
    return [run["gradient_norms"] for label in labels for run in sizes()["middle"][label]]


def tops(label: str) -> list[float]:
    """Returns the largest gradient norm of each run of the middle size, which must be that of updates 21 to 40."""
    found = largest(label)
    if {norms.index(max(norms)) for norms in found} != {1}:
        raise ValueError(f"{label}: the largest gradient norms are not those of updates 21 to 40")
    return [max(norms) for norms in found]


def top(*labels: str) -> float:
    """Returns a gradient norm that runs of the middle size stay below, with one digit."""
    return math.ceil(10 * max(map(max, largest(*labels)))) / 10


def late(size: str, label: str, updates: int) -> list[float]:
    """Returns how far a row's training loss is above ASURA's in the 20 updates up to this one, seed by seed."""
    runs, at = sizes()[size][label], updates // EVERY - 1
    return [a["losses"][at] - b["losses"][at] for a, b in zip(runs, wholes(runs, sizes()[size]), strict=True)]


def early(updates: int) -> tuple[int, int]:
    """Returns what the gradient norm of the middle size without its skip reaches within so many updates: least and largest."""
    found = [math.floor(max(norms[: updates // EVERY])) for norms in largest(WITHOUT_SKIP)]
    return min(found), max(found)


def stuck() -> list[Result]:
    """Returns the runs of the middle size without its projected skip that never train."""
    return [run for run in sizes()["middle"][WITHOUT_SKIP] if min(run["losses"]) > STUCK]


def plateau(after: int) -> float:
    """Returns the training loss, with one digit, at which all of them stay after so many updates."""
    (level,) = {round(loss, 1) for run in stuck() for loss in run["losses"][after // EVERY :]}
    return level


def schedules(label: str) -> list[str]:
    """Returns the rows of a label at calmer schedules."""
    return [at_schedule(label, *key) for key in CALMER]


def calmer(rate: float, warmup: int) -> tuple[Pooled, float, float]:
    """Returns what the middle size loses without the skip at a calmer schedule, and the loss without and with it (seed 0)."""
    without, whole = (at_schedule(label, rate, warmup) for label in (WITHOUT_SKIP, WHOLE))
    return less("middle", without), losses("middle", without)[0], losses("middle", whole)[0]


def nothing_shown() -> bool:
    """Whether the middle size trains without its skip at all calmer schedules, and each time (seed 0) seeds lie further apart."""
    trains = all(run["losses"][-1] < STILL for label in schedules(WITHOUT_SKIP) for run in sizes()["middle"][label])
    found = [less("middle", label) for label in schedules(WITHOUT_SKIP)]
    return trains and all(each.seeds == (0,) and abs(each.difference) < apart() for each in found)


def apart() -> float:
    """Returns how far two seeds of one row of the middle size lie apart at most."""
    found = [losses("middle", label) for label in (WHOLE, *CONTROLS, *PARTS, ON_TWELVE)]
    return max(max(each) - min(each) for each in found)


def room(size: str) -> float:
    """Returns the largest gain from adapters or from a norm of its own for each step that an interval over seeds leaves open."""
    found = [less(size, label, text=text).over_seeds[1] for label in (NO_ADAPTERS, ONE_NORM) for text in TEXTS]
    return up(max(found))


def up(value: float) -> float:
    """Returns a size rounded up to three digits."""
    return math.ceil(1000 * abs(value)) / 1000


def starts() -> list[float]:
    """Returns the standard deviation with which the projections of each step start, at both sizes; last that of other layers."""
    return [*(1 / math.sqrt(2 * int(shape["hidden_size"])) for shape in SIZES.values()), preset("asura").initializer_range]


def rough() -> list[tuple[str, str]]:
    """Returns the rows with a spike or a skipped update."""
    return sorted({(run["size"], run["label"]) for run in rows_of("asura/runs.jsonl") if run["spikes"] or run["skipped"]})


def longer(label: str) -> float:
    """Returns the loss of a row of the small size after twice the updates."""
    (loss,) = (run["texts"]["test"]["loss"][-1] for run in rows_of("asura/longer.jsonl") if run["label"] == label)
    return float(loss)


def seconds(*chosen: str) -> tuple[float, float]:
    """Returns how long the fastest and the slowest row of these sizes took, of both where none is given."""
    found = [run["train_seconds"] for run in rows_of("asura/runs.jsonl") if run["size"] in (chosen or SIZES)]
    return min(found), max(found)


def again() -> tuple[list[float], list[float]]:
    """Returns how far on `valid` runs that were made before, compiled, came out from what they are now: those whose gradients were
    right and, by their distance, those whose were wrong."""
    now = {run["name"]: run["valid"] for run in rows_of("asura/runs.jsonl") if "valid" in run}
    found = [abs(run["valid"] - now[run["name"]]) for run in rows_of("asura/wrong-gradients.jsonl")]
    return [each for each in found if each < 1], [each for each in found if each >= 1]


def thousands() -> int:
    """Returns how many thousand tokens each held-out text has, rounded down."""
    (count,) = {held(sizes()["small"][WHOLE][0], text).targets // 1000 for text in TEXTS}
    return count


@cache
def arms() -> dict[str, list[Result]]:
    """Returns the runs on all of the text by label."""
    return by_label(run for run in results([str(RESULTS / "asura/runs.jsonl")], rows()) if run["size"] == ALL_TEXT)


def at_rate(arm: str, rate: float) -> list[Result]:
    """Returns an arm's runs on all of the text at a rate."""
    return arms()[f"{arm}, rate {rate:g}"]


def behind(rate: float, text: str = "test") -> Pooled:
    """Returns ASURA less 18 plain layers at a rate, on all of the text."""
    ours, theirs = (at_rate(arm, rate) for arm in ALL_COMPARED)
    found = pooled(ours, theirs, text)
    assert found is not None
    return found


def at_better_rates(text: str = "test") -> Pooled:
    """Returns ASURA less 18 plain layers, each at its better rate."""
    ours, theirs = (best_of_rates(arms())[arm] for arm in ALL_COMPARED)
    found = pooled(ours, theirs, text)
    assert found is not None
    return found


def all_share(what: str) -> float:
    """Returns which part of ASURA's FLOPs or parameters the 18 plain layers have."""
    ours, theirs = (at_rate(arm, min(ALL_RATES))[0][what] for arm in ALL_COMPARED)
    return float(theirs / ours)


def behind_everywhere() -> bool:
    """Whether ASURA is behind there at both rates, on both texts, over documents."""
    return all(behind(rate, text).low > 0 for rate in ALL_RATES for text in TEXTS)


def better_rate() -> float:
    """Returns the rate that is the better one of both arms."""
    (rate,) = {float(runs[0]["label"].rpartition(" ")[2]) for runs in best_of_rates(arms()).values()}
    return rate


def gained() -> list[float]:
    """Returns how much lower the loss on `valid` is at the larger rate than at the smaller one, by arm."""
    return [at_rate(arm, min(ALL_RATES))[0]["valid"] - at_rate(arm, max(ALL_RATES))[0]["valid"] for arm in ALL_COMPARED]


def tested(rate: float) -> list[float]:
    """Returns the loss on `test` at a rate, by arm."""
    return [held(at_rate(arm, rate)[0], "test").loss[-1] for arm in ALL_COMPARED]


def all_tokens() -> float:
    """Returns how many million tokens each row read there."""
    (count,) = {run["tokens"] for runs in arms().values() for run in runs}
    return count / 1e6
