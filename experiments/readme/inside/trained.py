"""What docs/inside-training.md says of small trained models: losses by depth, what injection is worth, how near curves are, and
what Huginn's norms and a loop are worth with each other and without."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from experiments.inside.norms import DENSE, LOOP, PRE, Apart, apart, flops, loss, size
from experiments.inside.train_claims import CLAIMS, Reading, readings
from experiments.inside.train_plan import CONTROL, CONTROL_LAYERS, CORES, STEPS, TRAINING, Row, written
from experiments.inside.train_tables import read
from experiments.pages import number
from experiments.readme.rows import RESULTS, WORDS, line, of, when
from experiments.seeds import over_seeds, paired_p

DEPTHS = (1, 2, 4, 8, 16, 32)
LITTLE = 0.05  # nats: what counts as little harm
BETTER = 8  # layers of the core with which injection is better on every seed


@cache
def found() -> list[Mapping[str, Any]]:
    """Returns the study's runs."""
    return read([str(RESULTS / "inside/training.jsonl")])


@cache
def with_norms() -> list[Mapping[str, Any]]:
    """Returns the study's runs and those with other norms."""
    return [*found(), *read([str(RESULTS / "inside/like.jsonl")])]


def seeds_of(label: str) -> list[Mapping[str, Any]]:
    """Returns the seeds of a model."""
    return sorted((run for run in with_norms() if run["label"] == label), key=lambda run: run["seed"])


def loss_claims() -> Iterator[str]:
    """Yields the table of losses by depth, seeds side by side, and whether the control is better than all."""
    for label in dict.fromkeys(run["label"] for run in found() if run["label"] != CONTROL):
        yield line(written(label), *(" / ".join(f"{loss(run, depth):.2f}" for run in seeds_of(label)) for depth in DEPTHS))
    control = [loss(run, 1) for run in seeds_of(CONTROL)]
    yield f"| control | {' / '.join(f'{each:.3f}' for each in control)} |"
    least = min(loss(run, STEPS) for run in found() if run["label"] != CONTROL)
    yield when(max(control) < least, "The control is better than all twelve.")
    yield f"All models have one rate, {1e3 * TRAINING['optim']['lr']:g}e-3, which was not tuned"


def harm_claims() -> Iterator[str]:
    """Yields what more depth costs between prelude and coda, with injection and without."""
    rises = [
        [loss(run, DEPTHS[-1]) - loss(run, STEPS) for core in CORES for run in seeds_of(f"sandwich-{core}{part}")]
        for part in ("-injected", "")
    ]
    little, much = ([rise for rise in rises[0] if (rise < LITTLE) is below] for below in (True, False))
    told = f"by at most {max(little):.3f} nats in {of(len(little), len(rises[0]))} models"
    rest = f"by {' and '.join(f'{each:.3f}' for each in sorted(much))} in the other {WORDS[len(much)]}"
    without = f"by {min(rises[1]):.2f} to {max(rises[1]):.2f} without injection"
    yield f"From depth {STEPS} to {DEPTHS[-1]} the loss rises {told}, {rest}, and {without}"


def injection_claims() -> Iterator[str]:
    """Yields what injection is worth at the trained depth, seed by seed, and what three seeds say of it where all agree."""
    for core in CORES:
        with_it, without = (seeds_of(f"sandwich-{core}{part}") for part in ("-injected", ""))
        differences = [loss(a, STEPS) - loss(b, STEPS) for a, b in zip(with_it, without, strict=True)]
        yield line(f"k = {core}", *map(_signed, differences))
        if core != BETTER:
            yield when(min(differences) < 0 < max(differences), "at k = 4 and 12 the seeds disagree")
            continue
        low, high = over_seeds(differences)
        span = f"mean {_signed(sum(differences) / len(differences))}, {_signed(low)} to {_signed(high)} over seeds"
        better = max(differences) < 0 and low <= 0 <= high
        yield when(better, f"at k = {core} it is better on all three seeds, which do not decide it ({span})")


def nearness_claims() -> Iterator[str]:
    """Yields how flat the control's curve is, and how far the nearest model is ahead of the one that claim 3 names."""
    ranges = [float(one.dense.max() - one.dense.min()) for one in readings(found())]
    seeds = WORDS[len(seeds_of(CONTROL))]
    yield f"nearly flat curve (its range is {min(ranges):.2f} to {max(ranges):.2f} with the {seeds} seeds)"
    gaps = [gap(named) - min(map(gap, beside)) for named, beside in _by_core()]
    ahead = [each for each in gaps if each > 0]
    yield f"the nearest model is ahead of (2, k⊗4, 2), where that is another, by {min(ahead):.4f} to {max(ahead):.4f}"
    means = [one.alike().mean().item() for one in readings(found()) if one.label in {f"sandwich-{core}" for core in CORES}]
    yield f"correlates with the control's by {number(min(means), 2)} to {number(max(means), 2)} in the mean"
    dense = [value for one in readings(found()) for value in one.dense.tolist()]
    yield f"The control's ColSum stays between {min(dense):.2f} and {max(dense):.2f}."


def control_claims() -> Iterator[str]:
    """Yields which models are nearest to the control, what injection does to that, and what the control of seed 2 changes."""
    kinds = Counter(re.sub(r"\d+", "k", min(beside, key=gap).label) for _, beside in _by_core())
    times = {1: "once", 2: "twice"} | {count: f"{WORDS[count]} times" for count in range(3, 10)}
    plain, bare, injected = (times[kinds[kind]] for kind in ("sandwich-k", "bare-k", "sandwich-k-injected"))
    yield f"nearest is (2, k⊗4, 2) {plain}, (0, k⊗4, 0) {bare} and (2, k⊗4, 2) I {injected}"
    beside = {(one.label, one.run["seed"]): one for one in readings(found())}
    pairs = [(one, beside[label.removesuffix("-injected"), seed]) for (label, seed), one in beside.items()
             if label.startswith("sandwich") and one.run["injected"]]  # fmt: skip
    nearer = [each for one, _ in pairs if (each := float(one.gaps[:-1].mean() - one.gaps[-1])) > 0]
    early = sum(bool(one.gaps[:-1].mean() < other.gaps[:-1].mean()) for one, other in pairs)
    yield (
        f"the last step is nearer in {len(nearer)} of {len(pairs)}, by {max(nearer):.4f} or less; in {early} of {len(pairs)} the "
        "earlier ones are nearer too than without injection"
    )
    without = [run for run in found() if run["name"] != f"{CONTROL}/2"]
    changed = {
        (place, new.label, new.seed)
        for place, claim in enumerate(CLAIMS, 1)
        for old, new in zip(claim.cases(readings(without)), claim.cases(readings(found())), strict=True)
        if old.holds != new.holds
    }
    two = changed == {(3, "core of 4", 2), (4, "sandwich-4-injected", 2)}
    yield when(two, "The third control changed two verdicts of seed 2, on the core of 4 layers: claims 3 and 4 hold there")


def norms_claims() -> Iterator[str]:
    """Yields the losses of models with Huginn's norms with a loop and without, and how far they are apart."""
    for row in (LOOP, *DENSE.values(), Row(CONTROL), PRE):
        losses = " / ".join(f"{loss(run, trained_depth(row)):.3f}" for run in seeds_of(row.label))
        share = "1" if row is LOOP else f"{flops(row) / flops(LOOP):.2f}"
        yield line(written(row.label), f"{size(with_norms(), row) / 1e6:.2f} M", share, losses)
    dense = DENSE[CONTROL_LAYERS]
    equal = {(LOOP, PRE): "loop, FLOPs, nearly the parameters", (dense, Row(CONTROL)): "layers, FLOPs, nearly the parameters",
             (LOOP, DENSE[8]): f"norms, nearly the parameters ({size_share(DENSE[8])})", (LOOP, dense): "norms",
             (LOOP, DENSE[20]): f"norms, nearly the FLOPs ({flops(DENSE[20]) / flops(LOOP):.2f})"}  # fmt: skip
    for pair, said in equal.items():
        both = beside(*pair)
        documents = "not measured" if both.documents is None else _from_to(both.documents)
        names = [written(row.label) for row in pair]
        yield f"{line(*names, said, _signed(both.mean), _from_to(both.seeds), documents)} {in_a_word(both)} |"
    held = seeds_of(LOOP.label)[0]["held_out"]
    yield f"{held['passages']} passages of {held['documents']} documents"
    worth, without, lead = (-beside(*pair).mean for pair in ((LOOP, PRE), (dense, Row(CONTROL)), (LOOP, Row(CONTROL))))
    yield when(
        f"{without:.3f}" == f"{lead:.3f}",
        f"In (2, 4⊗4, 2) I they are worth {worth:.3f}. In {CONTROL_LAYERS} layers without a loop they are worth {without:.3f}, as "
        f"much as the loop's whole lead over the control ({lead:.3f}).",
    )
    every = max(beside(LOOP, Row(CONTROL)).of_seeds) < 0
    yield when(every, "With Huginn's norms (2, 4⊗4, 2) I has a lower loss than the control on all three seeds.")
    few, many = (beside(LOOP, DENSE[layers]) for layers in (8, 20))
    split = in_a_word(few) == "ahead, decided" and in_a_word(many) == "behind, decided"
    yield when(split, "The loop is ahead at nearly equal parameters and behind at nearly equal FLOPs.")
    yield when(
        split,
        f"It is {-few.mean:.3f} ahead of 8 layers, for {flops(LOOP) / flops(DENSE[8]):.1f} times their FLOPs, and {many.mean:.3f} "
        f"behind 20 layers, which have {size_share(DENSE[20], 1)} times its parameters.",
    )
    yield when(
        in_a_word(beside(LOOP, dense)) == "undecided",
        f"Beside 12 layers ({size_share(dense, 1)} times its parameters, {flops(dense) / flops(LOOP):.2f} of its FLOPs) nothing is "
        "decided.",
    )
    p, q = (paired_p(each.of_seeds) for each in (few, many))
    yield when(
        p < 0.05 < 3 * p and 3 * q < 0.05,
        f"The lead over 8 layers is just decided (p = {p:.2f}). After a Bonferroni correction for the three models without a loop "
        f"it is not (p = {3 * p:.2f}); the deficit beside 20 layers still is (p = {3 * q:.3f}).",
    )
    yield when(
        split and p < 0.05 < 3 * p,
        f"With these norms the loop is {-few.mean:.3f} ahead of 8 layers (nearly equal parameters; decided, but not after a "
        f"Bonferroni correction) and {many.mean:.3f} behind 20 layers (nearly equal FLOPs; decided).",
    )
    words = (in_a_word(beside(LOOP, PRE)), in_a_word(beside(dense, Row(CONTROL))))
    yield when(
        words == ("ahead, decided", "ahead over seeds"),
        f"by {worth:.3f} nats in (2, 4⊗4, 2) I (decided) and by {without:.3f} in {CONTROL_LAYERS} layers (over seeds; documents "
        "could not be compared)",
    )
    early = [[run for run in seeds_of(label) if run["origin"]["loopwright"] == "0.1.0"] for label in (CONTROL, PRE.label)]
    told = f"{WORDS[len(early[0])].capitalize()} of the three controls and of the three (2, 4⊗4, 2) I"
    yield when(len(early[0]) == len(early[1]), f"{told} were trained by an earlier version of the code.")


def beside(first: Row, second: Row) -> Apart:
    """Returns how one model does against another."""
    both = apart(with_norms(), first, second)
    if both is None:
        raise ValueError(f"{first.label} and {second.label} share no seed; add their rows")
    return both


def trained_depth(row: Row) -> int:
    """Returns the depth that a model was trained at."""
    return STEPS if row.layers["core_layers"] else 1


def size_share(row: Row, digits: int = 2) -> str:
    """Returns how much of the loop's parameters a model has."""
    return f"{size(with_norms(), row) / size(with_norms(), LOOP):.{digits}f}"


def in_a_word(both: Apart) -> str:
    """Returns what is decided of the first model's loss."""
    if both.documents is None:
        low, high = both.seeds
        return "ahead over seeds" if high < 0 else "behind over seeds" if low > 0 else "undecided"
    return {"lower": "ahead, decided", "higher": "behind, decided"}.get(both.verdict, "undecided")


def _from_to(bounds: tuple[float, float]) -> str:
    return f"{_signed(bounds[0])} to {_signed(bounds[1])}"


def gap(one: Reading) -> float:
    """Returns the mean distance of a model's curves from the control's."""
    return float(one.gaps.mean())


def _by_core() -> Iterator[tuple[Reading, Sequence[Reading]]]:
    for core in CORES:
        of_core = [one for one in readings(found()) if one.run["layers"]["core_layers"] == core]
        for seed in sorted({one.run["seed"] for one in of_core}):
            beside = [one for one in of_core if one.run["seed"] == seed]
            (named,) = (one for one in beside if one.label == f"sandwich-{core}")
            yield named, beside


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def claims() -> Iterator[str]:
    """Yields what the rows say on the page."""
    for part in (loss_claims, harm_claims, injection_claims, nearness_claims, control_claims, norms_claims):
        yield from part()
