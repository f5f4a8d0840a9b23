"""The rows of the retrofit study: which system, what is changed, what it is trained for, which seeds.

All rows that are trained see the same number of tokens in the same order (of their seed). Sizes are those of SmolLM2-135M:
width 576, 30 layers, of which 15 are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from experiments.study import Named

# layers 0-6, layer 15, layers 23-29; depth is drawn from 1, 2, 4, 8 and tables are repeated beyond
KEPT = ("prelude=7", "core=15", "coda=7", "depth=4")
SEARCHED = ("prelude=3", "core=8", "coda=11", "depth=4")  # layers 0-2, layer 8, layers 19-29: the least loss when run once
STEPS = ("max_steps=8", "beyond_max_steps=repeat")
NEXT_TOKEN = "objective={kind: final}"
BOTH = "objective={kind: distil, teacher: {kind: load, source: %(source)s, dtype: bfloat16}, weight: 1.0}"
LORA_RANK = 6  # 15 layers × 10,176 × 6 = 916 thousand: what the controller and its gate train, within 6 %
STEP_RANK = 4  # 8 steps × 10,176 × 4 = 326 thousand: what the controller alone trains, 309 thousand
SPEC = "{kind: controller, rank: 32, alpha: 16.0, style: 128, pooling: %s}"

# the names of rows that pages, figures and other plans speak of
FULL, TRUNCATED, HEALED = "full model", "truncated", "full model, healed the same"
CUT = "truncated, searched layout"
CONTROLLER, BLIND, TOKEN = "controller, prefix", "controller, blind to the input", "controller, token"
NORMED = "controller, prefix of normed states"  # raw states are ruled by the first token, about eight times as large as the others
LEAKING = "controller, whole sequence (leaks)"
PUBLISHED = "controller as published (norm per step, gate at 0.12)"
DIAGONAL, STATIC, GATE, ONCE = "static diagonal", "static, equal parameters", "gate only", "healed LoRA, equal parameters"
CODA = "controller + coda adapters + distillation"
BEST, BEST_STATIC, BEST_ONCE = (
    f"{what} adapters everywhere + distillation, searched layout" for what in ("controller +", "static,", "not looped,")
)
SHIFTED = ("controller, labels shifted twice", "adapters everywhere, labels shifted twice")

ENDS = ", ".join(f"{{kind: low-rank, rank: 32, stack: {stack}}}" for stack in ("prelude", "coda"))

EVERYWHERE = f"adapters=[{SPEC % 'prefix'}, {ENDS}]"


@dataclass(frozen=True)
class Row(Named):
    """One row with one seed. `changes` are the retrofit's own, `overrides` the recipe's; no objective: nothing is trained.

    `text` is what the training files are called: "train", a mixture, or "textbooks", one kind of it alone. `depth` is the one depth
    it is trained and measured at; left out, those of the study.
    """

    group: str
    label: str
    system: str | None
    changes: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    objective: str | None = NEXT_TOKEN
    leaks: bool = False
    text: str = "train"
    depth: int | None = None
    seed: int = 0

    @property
    def kind(self) -> str:
        """What decides how long it takes."""
        return f"{self.objective} {self.leaks}"


def looped(group: str, label: str, system: str, *changes: str, **more: object) -> Row:
    """Returns a row of the common layout, with tables of eight steps where it holds any."""
    bare = system in ("gate-only", "plain-loop") and not changes
    return Row(group, label, system, (*KEPT, *(() if bare else STEPS), *changes), **more)  # type: ignore[arg-type]


def healed(group: str, label: str, rank: int, **more: object) -> Row:
    """Returns a row of the kept layers, each run once, with low-rank adapters on all."""
    once = ("depth={kind: fixed, depth: 1}",)
    return Row(group, label, "healed", (*KEPT[:3], f"adapters.rank={rank}"), once, **more)  # type: ignore[arg-type]


def controller(pooling: str) -> str:
    """Returns the change that gives the system this controller alone."""
    return f"adapters=[{SPEC % pooling}]"


def references() -> Iterator[Row]:
    """The two ends of the gap, what the same training gives the full model, and looping without training."""
    yield Row("references", FULL, None, objective=None)
    yield Row("references", TRUNCATED, "plain-loop", KEPT, objective=None)
    everything = ("prelude=15", "core=15", "coda=14", f"adapters.rank={LORA_RANK // 2}")  # as many parameters on twice the layers
    yield Row("references", HEALED, "healed", everything, ("depth={kind: fixed, depth: 1}",))
    yield Row("references", "training-free looping of the full model", "repeat", ("depth=4",), objective=None)


def main() -> Iterator[Row]:
    """What decides the question, three seeds each."""
    for seed in range(3):
        yield healed("main", ONCE, LORA_RANK, seed=seed)
        yield looped("main", GATE, "gate-only", overrides=("depth={kind: choice, values: [2, 4, 8]}",), seed=seed)
        yield looped("main", DIAGONAL, "static", seed=seed)
        yield looped("main", STATIC, "gate-only", f"adapters=[{{kind: low-rank, rank: {STEP_RANK}}}]", seed=seed)
        yield looped("main", CONTROLLER, "ouroboros-identity", controller("prefix"), seed=seed)
        yield looped("main", NORMED, "ouroboros-identity", controller("prefix, pool_norm: rms"), seed=seed)
        yield looped("main", BLIND, "ouroboros-identity", controller("none"), seed=seed)
        yield looped(
            "main", LEAKING, "ouroboros-identity", controller("sequence, leak_future: true"),
            leaks=True, seed=seed,
        )  # fmt: skip
        yield looped("main", CODA, "ouroboros-coda", objective=BOTH, seed=seed)


def best() -> Iterator[Row]:
    """Adapters on every kept layer, at most 10 % of what is kept, in the layout that `retrofit --search` finds; its controls."""
    yield Row("best", CUT, "plain-loop", SEARCHED, objective=None)
    for seed in range(3):
        yield Row(
            "best", BEST, "ouroboros-identity",
            (*SEARCHED, *STEPS, EVERYWHERE), objective=BOTH, seed=seed,
        )  # fmt: skip
        yield Row(
            "best", BEST_ONCE, "healed",
            (*SEARCHED[:3], "adapters.rank=32"), ("depth={kind: fixed, depth: 1}",), objective=BOTH, seed=seed,
        )  # fmt: skip
        yield Row(
            "best", BEST_STATIC, "gate-only",
            (*SEARCHED, *STEPS, f"adapters=[{{kind: low-rank, rank: {STEP_RANK}}}, {ENDS}]"), objective=BOTH, seed=seed,
        )  # fmt: skip


def others() -> Iterator[Row]:
    """One seed each: other poolings, parts, objectives, the paper's mitigations, ranks, the refiner."""
    yield looped("others", SHIFTED[0], "ouroboros-identity", objective="objective={kind: final, ahead: 2}")
    yield looped(
        "others", SHIFTED[1], "ouroboros-identity", EVERYWHERE,
        objective="objective={kind: final, ahead: 2}",
    )  # fmt: skip
    yield Row("others", "refiner with its gate", "refiner", ("depth=4", *STEPS))
    yield Row("others", "refiner without a gate", "refiner", ("depth=4", *STEPS, "gate={kind: none}"))
    # the common rate breaks the one and holds back the other
    slower, faster = ("optim.lr=4e-4",), ("optim.lr=4e-2",)
    yield Row("others", "refiner without a gate, rate 4e-4", "refiner", ("depth=4", *STEPS, "gate={kind: none}"), slower)
    yield looped("others", "static diagonal, rate 4e-2", "static", overrides=faster)
    yield looped("others", PUBLISHED, "ouroboros", "adapters.init=normal")  # how controllers started when these rows were made
    yield looped("others", "controller as published + adapters everywhere", "ouroboros", EVERYWHERE)
    for seed in range(3):
        yield looped(
            "others", "controller over random bases + adapters everywhere", "gate-only", EVERYWHERE,
            overrides=("depth={kind: choice, values: [2, 4, 8]}",), seed=seed,
        )  # fmt: skip
    for pooling in ("token", "chunk"):
        yield looped("others", f"controller, {pooling}", "ouroboros-identity", controller(pooling))
    yield looped("others", "controller, token, normed states", "ouroboros-identity", controller("token, pool_norm: rms"))
    yield looped("others", "controller, alpha 0.5", "ouroboros-identity", "adapters.alpha=0.5")
    for rank in (8, 64):
        yield looped("others", f"controller, rank {rank}", "ouroboros-identity", f"adapters={{rank: {rank}, alpha: {rank / 2}}}")
    for rate in (0.1, 0.2):
        yield looped("others", f"controller, dropout {rate}", "ouroboros-identity", controller(f"prefix, dropout: {rate}"))
    yield looped("others", "controller, textbooks alone instead of mixed text", "ouroboros-identity", text="textbooks")
    yield looped("others", "controller + coda adapters", "ouroboros-coda")
    yield looped("others", "controller + distillation", "ouroboros-identity", objective=BOTH)
    yield looped("others", "plain loop, its layer trained", "plain-loop", overrides=("optim.train=[core.*]", "optim.lr=1e-4"))


GROUPS: dict[str, Callable[[], Iterator[Row]]] = {group.__name__: group for group in (references, main, best, others)}


# Cores of several layers, out of the 15 that are best when run once: so many steps that 21 layers run
LAYERS = (0, 1, 2, 8, *range(19, 30))
CORES = {1: 7, 3: 3, 6: 2}  # layers of the core: its steps
# where the core begins: at the layer that the search at depth 1 takes for it, or where the untrained loop has the least loss on
# `valid` at that many steps, of all places within these layers (places.py)
AT_ONE, AT_DEPTH = "from layer 8", "placed at its depth"
PLACES = {AT_ONE: {1: 8, 3: 8, 6: 8}, AT_DEPTH: {1: 1, 3: 1, 6: 1}}
CORE_RANK, ONCE_RANK = 8, 16  # 21 × 10,176 × 8 and the gate's 664 thousand; 15 × 10,176 × 16: 3 % more
ONCE_EQUAL, ONCE_LONGER = "not looped", "not looped, equal training FLOPs"
UPDATES = {ONCE_EQUAL: 240, ONCE_LONGER: 306}  # a pass of the rows that loop costs 1.27 to 1.30 times as much


def looping(size: int, how: str) -> str:
    """Returns the name of the row with a core of so many layers, placed so."""
    return f"core of {size}, {CORES[size]} steps, {how}"


def cores() -> Iterator[Row]:
    """The same 15 layers with one, three or six of them looped, and each run once, with equal tokens and with equal FLOPs."""
    half, fixed = "batch=16", "depth={kind: fixed, depth: %d}"  # 2.0 million tokens
    every = ", ".join(f"{{kind: low-rank, rank: {CORE_RANK}, stack: {stack}}}" for stack in ("prelude", "core", "coda"))
    for how, places in PLACES.items():
        for size, layer in places.items():
            first, steps = LAYERS.index(layer), CORES[size]
            tables = (f"depth={steps}", f"max_steps={steps}", "beyond_max_steps=repeat", f"adapters=[{every}]")
            changes = (*stacks(first, size), *tables)
            yield Row("cores", looping(size, how), "gate-only", changes, (half, fixed % steps), depth=steps)
    for label, updates in UPDATES.items():
        changes = (*stacks(LAYERS.index(8), 1), f"adapters.rank={ONCE_RANK}")
        yield Row("cores", label, "healed", changes, (half, f"updates={updates}", fixed % 1), depth=1)


def stacks(first: int, size: int) -> tuple[str, ...]:
    """Returns the changes that divide LAYERS into prelude, core and coda."""
    parts = {"prelude": LAYERS[:first], "core": LAYERS[first : first + size], "coda": LAYERS[first + size :]}
    return tuple(f"{name}={[*layers]}" for name, layers in parts.items())
