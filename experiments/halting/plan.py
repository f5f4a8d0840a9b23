"""The runs of the study: a task, an arm, a seed. Of `columns` the need of a token is known, of `text` only what depth gains it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from experiments.study import Named

_SHARED = ("penalties=[]", "save.best=false", "toy={}", "validate={every: 0, depths: [], rows: 256}")


@dataclass(frozen=True)
class Task:
    """What models are trained on: changes to a recipe, how many steps they take, and how long the gate is then trained alone.

    DATA in a change stands for the folder that holds `corpus` and `models/stories260K`.
    """

    recipe: str
    depth: int
    changes: tuple[str, ...]
    stage: tuple[str, ...]


TASKS: dict[str, Task] = {
    # A window of 2 tokens lets a carry travel one column a step, so that a step less than needed can be right by luck alone.
    "columns": Task(
        "addition-longer", 12,
        (
            "model.changes={vocab_size: 113, hidden_size: 64, intermediate_size: 128, num_attention_heads: 4, positions: rotary, "
            "sliding_window: 2, dropout: 0.0, embedding_norm: true, injection: {kind: add}}",
            "data={kind: columns, lengths: [4, 5, 6, 7, 8], train: 100000, valid: 500, test: 1000, padding: plain}",
            "batch=128", "updates=800", "schedule={kind: wsd, warmup: 100, decay: 300}",
        ),
        ("updates=300", "schedule={kind: wsd, warmup: 20, decay: 100}"),
    ),
    # One layer, then two that are looped; no coda, since behind a coda ACT cannot be read as it was trained.
    "text": Task(
        str(Path(__file__).parents[1] / "exits" / "text.yaml"), 6,
        (
            "model.changes.hidden_size=128", "model.changes.intermediate_size=344", "model.changes.depth=6",
            "data={files: DATA/corpus/train-00.jsonl.gz, valid_files: DATA/corpus/valid.jsonl.gz, limit: null, "
            "test_files: DATA/corpus/test.jsonl.gz, tokenizer: DATA/models/stories260K, length: 256, apart: false}",
            "batch=32", "updates=700", "schedule={kind: wsd, warmup: 50, decay: 250}", "compile=false",
        ),
        ("updates=200", "schedule={kind: wsd, warmup: 20, decay: 80}"),
    ),
}  # fmt: skip

# the halter's rows were made when its bias of −2 was not set: it began at 0 (and its last weights as those of any other layer)
GATE, ACT, HALTER = "{kind: exit}", "{kind: act, bias: -2.0}", "{kind: halter, width: 64, bias: 0.0}"
# the halting head, and what the model is trained for
ARMS: dict[str, tuple[str, str]] = {
    "plain": (GATE, "{kind: every-step}"),
    "ouro": (GATE, "{kind: expected-exit, beta: 0.05}"),
    "act": (ACT, "{kind: ponder, weight: 0.01}"),
    "halter": (HALTER, "{kind: ponder, weight: 0.01}"),
}
# Ouro's second stage: the gate alone, on the frozen model of the first
_STAGE = (
    "objective={kind: exit-gate}", "model={kind: given, what: the model of the first stage}",
    "optim={kind: adamw, lr: 1e-2, weight_decay: 0.0, parts: {'*': {freeze: true}, 'halting.*': {freeze: false}}}",
)  # fmt: skip
GATED = ("plain", "ouro")  # the arms whose gate is then trained by the second stage


@dataclass(frozen=True)
class Run(Named):
    """One training, and where it has an exit gate its second stage."""

    named_by = ("task", "arm", "seed")
    alike_by = ("task", "arm")

    task: str
    arm: str
    seed: int

    def changes(self, data: str) -> tuple[str, ...]:
        """Returns the changes to the task's recipe, for texts in the folder `data`."""
        task, (halting, objective) = TASKS[self.task], ARMS[self.arm]
        depth = f"depth={{kind: fixed, depth: {task.depth}}}"
        own = (*task.changes, depth, *_SHARED, f"model.changes.halting={halting}", f"objective={objective}", f"seed={self.seed}")
        return tuple(change.replace("DATA", data) for change in own)

    def gate_changes(self, data: str) -> tuple[str, ...]:
        """Returns the changes by which the gate is trained alone."""
        return (*self.changes(data), *_STAGE, *TASKS[self.task].stage)


def of_task(task: str) -> Callable[[], Iterator[Run]]:
    """Returns what yields the runs of a task, seed by seed."""
    return lambda: (Run(task, arm, seed) for seed, arm in product(range(3), ARMS))


GROUPS: dict[str, Callable[[], Iterator[Run]]] = {task: of_task(task) for task in TASKS}
