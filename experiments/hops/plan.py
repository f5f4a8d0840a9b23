"""The runs of the study: an arm, changes, seed. A group is one question; `GROUPS` lists them in the order they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from experiments.study import Named

# layers and steps: 1⊗8 has the parameters of "plain 1" and the FLOPs of "plain 8", 2⊗4 those of "plain 2" and "plain 8".
# A plain model is a core that runs once: the same code, compiled alike.
ARMS = {"1⊗8": (1, 8), "2⊗4": (2, 4), "plain 8": (8, 1), "plain 1": (1, 1), "plain 2": (2, 1), "1⊗16": (1, 16), "plain 16": (16, 1)}
MARKS = ("data.count=marks", "data.harder=[24, 32]")
MIXED = ("data.rising=0", "order.shuffled=true")
INJECTED = ("model.changes.injection={kind: add}", "model.changes.embedding_norm=true")
RATES = (5e-4, 2e-3)  # beside that of the recipe
OWN = {"2⊗4": 2e-3, "plain 8": 5e-4}  # the best by loss on the validation rows (seed 0) where it is not the recipe's
SWAPS_OWN = 5e-4  # the same on swaps, of 1⊗8 and of plain 8 alike; other arms of swaps were run at the recipe's rate alone
LONGER = {"plain 2": 4, "plain 1": 8}  # updates, so that training costs the FLOPs of eight layers
UPDATES, DECAY, RISING = 4000, 800, 0.6  # of the recipe
AROUND_8 = "depth={kind: uniform, least: 4, most: 12}"  # mean 8: the FLOPs of a fixed depth of 8
AROUND_16 = "depth={kind: uniform, least: 8, most: 24}"
GROWN = f"depth={{kind: curriculum, rule: {{kind: fixed, depth: 8}}, start: 3, updates: {UPDATES * RISING:.0f}}}"
LOCAL = ("model.changes.sliding_window=2",)  # a token sees itself and the one before it: one swap a step

# hops or swaps that a row asks for; those after 16 are not trained
HARDNESS = {"easy": range(1, 6), "middle": range(6, 11), "hard": range(11, 17), "beyond": range(17, 65)}


@dataclass(frozen=True)
class Run(Named):
    """One training. `label` says what differs from the recipe."""

    named_by = ("group", "arm", "label", "seed")

    group: str
    arm: str
    label: str
    changes: tuple[str, ...]
    seed: int = 0

    @property
    def task(self) -> str:
        """What it is trained on."""
        return "chain" if self.group.startswith("chain") else "hops"

    @property
    def kind(self) -> str:
        """What decides how long it takes: layers run, and how often."""
        layers, steps = ARMS[self.arm]
        return f"{self.group} {layers * steps}"

    @property
    def shape(self) -> tuple[str, ...]:
        """The changes that make the arm's model."""
        layers, steps = ARMS[self.arm]
        return f"model.changes.core_layers={layers}", f"model.changes.depth={steps}", f"depth.depth={steps}"


def trial() -> Iterator[Run]:
    """Which settings learn it at all: how the number of hops is asked for, curriculum, rate, injection, positions."""
    settings: dict[str, tuple[str, ...]] = {
        "rising": (),
        "mixed": MIXED,
        "marks, rising": MARKS,
        "rising, rate 3e-3": ("optim.lr=3e-3",),
        "rising, rate 3e-4": ("optim.lr=3e-4",),
    }
    for label, changes in settings.items():
        for arm in ("1⊗8", "plain 8"):
            yield Run("trial", arm, label, changes)
    yield Run("trial", "1⊗8", "rising, injection", INJECTED)
    yield Run("trial", "2⊗4", "rising", ())


def compared() -> Iterator[Run]:
    """The arms beside one another, at the recipe's rate, asked by marks so that more hops than were trained can be asked; three
    seeds."""
    for seed, arm in product(range(3), ("1⊗8", "2⊗4", "plain 8", "plain 1", "plain 2")):
        yield Run("compared", arm, "as the recipe", MARKS, seed)


def rates() -> Iterator[Run]:
    """Every arm at other rates; one seed, asked by marks. The best by loss on the validation rows is the arm's own."""
    for rate, arm in product(RATES, ("1⊗8", "2⊗4", "plain 8", "plain 1", "plain 2")):
        yield Run("rates", arm, f"rate {rate:g}", (*MARKS, f"optim.lr={rate:g}"))


def own() -> Iterator[Run]:
    """The arms whose own rate is not the recipe's, at that rate: the seeds beside the one that chose it (`rates`)."""
    for seed, (arm, rate) in product((1, 2), OWN.items()):
        yield Run("own", arm, f"rate {rate:g}", (*MARKS, f"optim.lr={rate:g}"), seed)


def longer() -> Iterator[Run]:
    """The arms of fewer FLOPs with as many updates more, on fresh rows, so that training costs as much; three seeds."""
    for seed, (arm, times) in product(range(3), LONGER.items()):
        more = f"updates={UPDATES * times}", f"schedule.decay={DECAY * times}", f"validate.every={500 * times}"
        yield Run("longer", arm, f"{times} times the updates", (*MARKS, *more), seed)


def random_depth() -> Iterator[Run]:
    """The looped layer at random depth; three seeds."""
    for seed in range(3):
        yield Run("random", "1⊗8", "depth 4 to 12", (*MARKS, AROUND_8), seed)


def grown() -> Iterator[Run]:
    """The looped layer at a depth that grows while the hops do; one seed."""
    yield Run("grown", "1⊗8", "depth grown from 3 to 8", (*MARKS, GROWN))


def chain() -> Iterator[Run]:
    """Swaps with an answer after each: every token in sight and eight steps, then the token before alone and sixteen."""
    for seed in range(3):
        for arm in ("1⊗8", "plain 8", "plain 1"):
            yield Run("chain", arm, "all in sight", (), seed)
        yield Run("chain", "1⊗8", "all in sight, depth 4 to 12", (AROUND_8,), seed)
        for arm in ("1⊗16", "plain 16"):
            yield Run("chain", arm, "window 2", LOCAL, seed)
        yield Run("chain", "1⊗16", "window 2, depth 8 to 24", (*LOCAL, AROUND_16), seed)


def chain_rates() -> Iterator[Run]:
    """The two arms of equal FLOPs on swaps at other rates, every token in sight; three seeds."""
    for seed, rate, arm in product(range(3), RATES, ("1⊗8", "plain 8")):
        yield Run("chain_rates", arm, f"all in sight, rate {rate:g}", (f"optim.lr={rate:g}",), seed)


GROUPS: dict[str, Callable[[], Iterator[Run]]] = {
    "trial": trial, "compared": compared, "rates": rates, "random": random_depth, "own": own, "longer": longer, "grown": grown,
    "chain": chain, "chain_rates": chain_rates,
}  # fmt: skip
