"""The runs of the study: a task, an arm, a seed. What a token needs is known: how many steps must be done one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

DEPTH = 12
_SHAPE = (
    "model.changes={vocab_size: 113, hidden_size: 64, intermediate_size: 128, num_attention_heads: 4, positions: rotary, "
    "sliding_window: 2, dropout: 0.0, embedding_norm: true, injection: {kind: add}}"
)
_SHARED = (
    f"depth={{kind: fixed, depth: {DEPTH}}}", "penalties=[]", "batch=128", "save.best=false", "toy={}",
    "validate={every: 0, depths: [], rows: 256}",
)  # fmt: skip

# A window of 2 tokens lets a carry travel one column a step, so that a step less than needed can be right by luck alone.
TASKS: dict[str, tuple[str, ...]] = {
    "columns": (
        _SHAPE, "data={kind: columns, lengths: [4, 5, 6, 7, 8], train: 100000, valid: 500, test: 1000, padding: plain}",
        "updates=800", "schedule={kind: wsd, warmup: 100, decay: 300}",
    ),
}  # fmt: skip

GATE, ACT, HALTER = "{kind: exit}", "{kind: act, bias: -2.0}", "{kind: halter, width: 64, bias: -2.0}"
# the halting head, and what the model is trained for
ARMS: dict[str, tuple[str, str]] = {
    "plain": (GATE, "{kind: every-step}"),
    "ouro": (GATE, "{kind: expected-exit, beta: 0.05}"),
    "act": (ACT, "{kind: ponder, weight: 0.01}"),
    "halter": (HALTER, "{kind: ponder, weight: 0.01}"),
}
# Ouro's second stage: the gate alone, on the frozen model of the first
STAGE = (
    "objective={kind: exit-gate}", "updates=300", "schedule={kind: wsd, warmup: 20, decay: 100}",
    "optim={kind: adamw, lr: 1e-2, weight_decay: 0.0, parts: {'*': {freeze: true}, 'halting.*': {freeze: false}}}",
)  # fmt: skip
GATED = ("plain", "ouro")  # the arms whose gate is then trained by the second stage


@dataclass(frozen=True)
class Run:
    """One training, and where it has an exit gate its second stage."""

    task: str
    arm: str
    seed: int

    @property
    def name(self) -> str:
        """The run's own name."""
        return f"{self.task}/{self.arm}/{self.seed}"

    @property
    def kind(self) -> str:
        """What decides how long it takes."""
        return f"{self.task} {self.arm}"

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes to the recipe `addition-longer`."""
        halting, objective = ARMS[self.arm]
        return (*TASKS[self.task], *_SHARED, f"model.changes.halting={halting}", f"objective={objective}", f"seed={self.seed}")


def of_task(task: str) -> Callable[[], Iterator[Run]]:
    """Returns what yields the runs of a task, seed by seed."""
    return lambda: (Run(task, arm, seed) for seed, arm in product(range(3), ARMS))


GROUPS: dict[str, Callable[[], Iterator[Run]]] = {task: of_task(task) for task in TASKS}
