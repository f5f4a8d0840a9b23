"""What docs/inside.md asks of small models: at random initialisation, trained, with other norms, and on questions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from experiments.inside import norms
from experiments.inside.norms import loss
from experiments.inside.random_init.claims import WORD, Cell, cells, judge
from experiments.inside.random_init.plan import MAIN_START
from experiments.inside.train_claims import CLAIMS, Reading, readings
from experiments.inside.train_plan import STEPS, Row
from experiments.inside.train_tables import alike, in_words, read
from experiments.templates.rows import RESULTS, only, rows_of
from experiments.templates.words import Gaps
from loopwright.analysis.report.findings import DRIFT, MOST
from loopwright.metrics.limits import FIXED_POINT, ORBIT

Run = Mapping[str, Any]
FAMILIES = {
    ("sandwich", False): "(2, k⊗4, 2)", ("sandwich", True): "(2, k⊗4, 2) I",
    ("bare", False): "(0, k⊗4, 0)", ("bare", True): "(0, k⊗4, 0) I",
}  # fmt: skip
RANDOM = {
    (norm, injection): f"{said}, {'no injection' if injection == 'none' else injection}"
    for injection in ("injection", "none")
    for norm, said in (("pre", "pre-norm"), ("huginn", "Huginn's norms"), ("ouro", "Ouro's norms"))
}
SETTLES = {"cyclic": "at rest, each layer elsewhere", "degenerate": "all layers in one direction", "none": "moves"}
HUGINN, OURO, SLOWER = "huginn-4-injected", "ouro-8", "ouro-8-slow"
FIRST, AGAIN = "sandwich-4-injected", "sandwich-4-injected-again"  # seed 0, its first and its second training
SMALL = ("sandwich-4-injected-2", "sandwich-8-injected-1", "sandwich-8-injected-2")  # pre-norm, cores of 4 and 8 layers
LARGE = "sandwich-12-injected-2"
PROMPTS = {
    "long persona": "long persona", "long persona, padded": "as many pad tokens", "short maths": "short line about mathematics",
    "none": "nothing",
}  # fmt: skip
AS_THEY_ARE, LETTER, THE, NEWLINE = "as they are", "“E” for the first token", "“The” for the first token", "behind a newline"
WAYS = {AS_THEY_ARE: "nothing, the smaller set", LETTER: LETTER, THE: THE, NEWLINE: "a newline"}


@cache
def settled(norm: str, injection: str, start: str = MAIN_START) -> list[Cell]:
    """Returns what random models of one kind settle into, by their number of layers."""
    found = cells(rows_of("inside/random-init.jsonl"), start)
    return sorted((each for each in found if (each.norm, each.injection) == (norm, injection)), key=lambda each: each.layers)


def at_random(norm: str, injection: str, layers: int) -> list[Run]:
    """Returns the rows of random models of one kind from the main start, seed by seed."""
    wanted = {"start": MAIN_START, "norm": norm, "injection": injection, "layers": layers}
    return [row for row in rows_of("inside/random-init.jsonl") if wanted.items() <= row.items()]


def holding(start: str = MAIN_START) -> list[str]:
    """Returns whether each claim about random models holds, at every number of layers."""
    return [WORD[claim.holds] for claim in judge(cells(rows_of("inside/random-init.jsonl"), start))]


@cache
def kept(name: str = "training") -> list[Run]:
    """Returns the trained models of a file: "training", "again" (a second time) or "like" (other norms)."""
    return read([str(RESULTS / f"inside/{name}.jsonl")])


def seeds_of(label: str) -> list[Run]:
    """Returns the seeds of a model."""
    return [run for run in (*kept(), *kept("like")) if run["label"] == label]


@cache
def looped() -> list[Reading]:
    """Returns all looped models of the training study, each beside the control of its seed."""
    return readings(kept())


def core(one: Reading) -> int:
    """Returns how many layers the core has."""
    return int(one.run["layers"]["core_layers"])


def kind(family: str, injected: bool, layers: int | None = None) -> list[Reading]:
    """Returns those with prelude and coda ("sandwich") or without ("bare"), of all cores or of one."""
    found = [one for one in looped() if one.label.startswith(family) and one.run["injected"] is injected]
    return [one for one in found if layers in (None, core(one))]


def limits(run: Run) -> list[float]:
    """Returns which shares of held-out tokens end at a fixed point, in an orbit, as sliders, or otherwise."""
    return list(run["deep"]["limits"]["tokens"])


def losses(family: str, injected: bool, layers: int) -> list[float]:
    """Returns the loss at the trained depth, seed by seed."""
    return [one.loss(STEPS) for one in kind(family, injected, layers)]


def rises(family: str, injected: bool, depth: int, layers: int | None = None) -> list[float]:
    """Returns by how much the loss at a depth is above that at the trained one, model by model."""
    return [one.loss(depth) - one.loss(STEPS) for one in kind(family, injected, layers)]


def injection(family: str, layers: int) -> Gaps:
    """Returns what injection changes at the trained depth."""
    return Gaps(tuple(a - b for a, b in zip(losses(family, True, layers), losses(family, False, layers), strict=True)))


def claims() -> list[str]:
    """Returns in how many models each claim about trained models holds."""
    return [in_words(list(claim.cases(looped()))) for claim in CLAIMS]


def verdicts() -> tuple[int, int, int]:
    """Returns how many claims about trained models hold in none, in some and in all."""
    none, some, every = (sum(said.startswith(word) for said in claims()) for word in ("no", "in part", "yes"))
    return none, some, every


def broken(place: int) -> list[str]:
    """Returns the models in which a claim, by its number, does not hold."""
    return [f"{case.label}/{case.seed}" for case in CLAIMS[place - 1].cases(looped()) if case.holds is False]


def held(place: int, family: str, injected: bool) -> int:
    """Returns in how many models of one kind it holds."""
    return len({one.run["name"] for one in kind(family, injected)} - {*broken(place)})


def correlations() -> tuple[float, float]:
    """Returns how stage curves of models that claim 1 is about correlate with the control's in the mean: the least, the largest."""
    found = [one.alike().mean().item() for one in kind("sandwich", False)]
    return min(found), max(found)


def behind_nearest() -> list[float]:
    """Returns how much farther from the control than the nearest model of its core that is which claim 3 says is nearest."""
    found = []
    for one in kind("sandwich", False):
        beside_it = [each for each in looped() if (each.run["seed"], core(each)) == (one.run["seed"], core(one))]
        found.append(float(one.gaps.mean() - min(each.gaps.mean() for each in beside_it)))
    return [gap for gap in found if gap > 0]


def calm() -> list[str]:
    """Returns the models that pass what was measured of the rule by which more depth is called safe."""
    return [
        one.run["name"]
        for one in looped()
        if min(limits(one.run)[FIXED_POINT], one.run["deep"]["answers"]["kept"]) >= MOST and (one.drift or 0) <= DRIFT
    ]


def orbiting() -> list[str]:
    """Returns the models with injection between prelude and coda that leave held-out tokens in an orbit."""
    return [one.run["name"] for one in kind("sandwich", True) if limits(one.run)[ORBIT] > 0]


def twice() -> list[tuple[Run, Run]]:
    """Returns the first and the second training of models that have orbits after the first."""
    return [(run, each) for run in kept() for each in kept("again") if run["name"] == each["name"] and limits(run)[ORBIT] > 0]


def same() -> list[str]:
    """Returns those whose trainings agree in all digits kept."""
    return [first["name"] for first, second in twice() if alike(first, second)]


def learned(label: str) -> bool:
    """Whether a model came nine tenths of the way from its first loss to that of the worst looped model."""
    (run,), worst = seeds_of(label), max(one.loss(STEPS) for one in looped())
    return bool(loss(run, STEPS) - worst < 0.1 * (run["losses"][0] - worst))


def beside(first: Row, second: Row) -> Gaps:
    """Returns the loss of one model less that of another, each at its own depth; the second interval is over documents."""
    found = norms.apart([*kept(), *kept("like")], first, second)
    assert found is not None and len(found.of_seeds) == 3
    return Gaps(found.of_seeds, found.documents)


def of_norms(row: Row) -> list[float]:
    """Returns the loss of a model at its own depth, seed by seed."""
    return [loss(run, STEPS if row.layers["core_layers"] else 1) for run in seeds_of(row.label)]


def millions(row: Row) -> float:
    """Returns how many parameters a model has, in millions."""
    return norms.size([*kept(), *kept("like")], row) / 1e6


def share(row: Row, what: str = "parameters") -> float:
    """Returns how many times the parameters or FLOPs of the loop with Huginn's norms a model has."""
    if what == "flops":
        return norms.flops(row) / norms.flops(norms.LOOP)
    return millions(row) / millions(norms.LOOP)


@cache
def prompts(model: str) -> dict[str, Run]:
    """Returns a model's rows of system prompts."""
    return {row["system_prompt"]: row for row in rows_of("inside/system.jsonl") if row["model"] == model}


@cache
def begun(model: str, way: str = AS_THEY_ARE) -> Run:
    """Returns a model's row of one way to begin a question."""
    return only("inside/first-token.jsonl", model=model, way=way)


def left(model: str) -> tuple[float, float]:
    """Returns which part of the tokens that move still do so behind a newline, and with “The” for the first token."""
    newline, the = (begun(model, way)["moving"] / begun(model)["moving"] for way in (NEWLINE, THE))
    return newline, the
