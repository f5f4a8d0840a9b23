"""The runs of the study: an arm, changes, seed. A group is one question; `GROUPS` lists them in the order they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

# layers and steps: 1⊗8 has the parameters of "plain 1" and the FLOPs of "plain 8", 2⊗4 those of "plain 2" and "plain 8".
# A plain model is a core that runs once: the same code, compiled alike.
ARMS = {"1⊗8": (1, 8), "2⊗4": (2, 4), "plain 8": (8, 1), "plain 1": (1, 1), "plain 2": (2, 1)}
MARKS = ("data.count=marks", "data.harder=[24, 32]")
MIXED = ("data.rising=0", "order.shuffled=true")
INJECTED = ("model.changes.injection={kind: add}", "model.changes.embedding_norm=true")
RATES = (5e-4, 2e-3)  # beside that of the recipe


@dataclass(frozen=True)
class Run:
    """One training. `label` says what differs from the recipe."""

    group: str
    arm: str
    label: str
    changes: tuple[str, ...]
    seed: int = 0

    @property
    def name(self) -> str:
        """The run's own name."""
        return f"{self.group}/{self.arm}/{self.label}/{self.seed}"

    @property
    def kind(self) -> str:
        """What decides how long it takes: layers run."""
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
    for seed, arm in product(range(3), ARMS):
        yield Run("compared", arm, "as the recipe", MARKS, seed)


def rates() -> Iterator[Run]:
    """Every arm at other rates; one seed, asked by marks. The best by loss on the validation rows is the arm's own."""
    for rate, arm in product(RATES, ARMS):
        yield Run("rates", arm, f"rate {rate:g}", (*MARKS, f"optim.lr={rate:g}"))


GROUPS: dict[str, Callable[[], Iterator[Run]]] = {"trial": trial, "compared": compared, "rates": rates}
