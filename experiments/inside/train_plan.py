"""The rows of the training study: (2, k⊗4, 2) and (0, k⊗4, 0), each with and without input injection, and a dense control.

As in "A Mechanistic Analysis of Looped Language Models", Section 5.1 and Appendices B and E.6: pre-norm alone, a constant depth of
4, the loss of the last state alone, a control of 12 layers; the injected ones concatenate the input and start from noise. Smaller
here: width 256 instead of 512, heads of 64, a few million tokens instead of 3.7 billion, AdamW instead of Muon, tied embeddings.

Beside them two models with the norms, the injection and the layers around the loop that Ouro and Huginn have (the paper's Table 1):
their own weights could not be had. With Huginn's norms also without a loop: 8 layers have as many parameters, 20 run as many layers
as the loop does, and 12 are the control's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from experiments.corpus import VOCABULARY

STEPS = 4
CONTROL = "control"
CONTROL_LAYERS = 12
CORES = (12, 8, 4)  # the longest first, so that they run side by side with the others
AROUND = {"sandwich": 2, "bare": 0}  # layers of prelude and of coda
# what is laid over SHAPE for the norms of released models, and the layers around their loop
LIKE: dict[str, tuple[int, dict[str, Any]]] = {
    "ouro": (0, {"norm_placement": ["input", "output"], "end_norm": "every", "final_norm": {"kind": "none"}}),
    "huginn": (2, {"norm_placement": ["input", "residual"], "end_norm": "last"}),
}
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 256, "intermediate_size": 640, "num_attention_heads": 4,
    "max_position_embeddings": 1024, "norm_placement": ["input"], "tie_word_embeddings": True,
}  # fmt: skip
INJECTED: dict[str, Any] = {"injection": {"kind": "concat"}, "state": {"kind": "noise"}}
TRAINING: dict[str, Any] = {
    "about": "the training study of docs/inside.md", "updates": 800, "batch": 32, "objective": {"kind": "final"},
    "optim": {"kind": "adamw", "lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1},
    "schedule": {"kind": "cosine", "warmup": 80, "floor": 0.1}, "precision": "bf16",
    "save": {"every": 0, "best": False}, "validate": {"every": 0},
}  # fmt: skip
SLOW = 3e-4


@dataclass(frozen=True)
class Row:
    """One model with one seed; `core` and `injected` say nothing of the control."""

    family: str
    core: int = 0
    injected: bool = False
    seed: int = 0
    slow: bool = False  # at SLOW in the place of the rate of all others
    dense: int = 0  # so many layers without a loop, with the norms of the family

    @property
    def label(self) -> str:
        """Which model it is, in letters that a file's name may have."""
        layers = ("dense", str(self.dense)) if self.dense else (str(self.core),)
        words = (*layers, *(["injected"] if self.injected else []), *(["slow"] if self.slow else []))
        return CONTROL if self.family == CONTROL else "-".join((self.family, *words))

    @property
    def name(self) -> str:
        """The row's own name."""
        return f"{self.label}/{self.seed}"

    @property
    def folder(self) -> str:
        """What its weights are kept under."""
        return f"{self.label}-{self.seed}" if self.seed else self.label

    @property
    def kind(self) -> str:
        """What decides how long it takes."""
        return str(self.core)

    @property
    def layers(self) -> dict[str, Any]:
        """How many layers each stack has, and how often the core runs."""
        if self.family == CONTROL or self.dense:
            return {"prelude_layers": self.dense or CONTROL_LAYERS, "core_layers": 0, "coda_layers": 0, "depth": 1}
        around = LIKE[self.family][0] if self.family in LIKE else AROUND[self.family]
        return {"prelude_layers": around, "core_layers": self.core, "coda_layers": around, "depth": STEPS}

    def recipe(self, corpus: str, tokenizer: str, context: int) -> dict[str, Any]:
        """Returns how it is trained, as plain data."""
        layers = self.layers
        parts = {**(INJECTED if self.injected else {}), **(LIKE[self.family][1] if self.family in LIKE else {})}
        if self.dense:  # other parts are about steps, of which it has none
            parts = {"norm_placement": parts["norm_placement"]}
        rate = {"optim": {**TRAINING["optim"], "lr": SLOW}} if self.slow else {}
        return {
            **TRAINING, **rate, "seed": self.seed, "depth": {"kind": "fixed", "depth": layers["depth"]},
            "model": {"kind": "preset", "changes": {**SHAPE, **layers, **parts}},
            "data": {
                "kind": "text", "files": f"{corpus}/train-*.jsonl.gz", "valid_files": f"{corpus}/valid.jsonl.gz",
                "tokenizer": tokenizer, "length": context,
            },
        }  # fmt: skip


def written(label: str) -> str:
    """Returns a label as the paper writes it: (2, 8⊗4, 2), with an I where the input is injected, and with whose norms it has."""
    if label == CONTROL:
        return f"control, {CONTROL_LAYERS} layers"
    family, core, *rest = label.split("-")
    if core == "dense":
        return f"{rest[0]} layers, {family.capitalize()}'s norms"
    around = LIKE[family][0] if family in LIKE else AROUND[family]
    norms = f", {family.capitalize()}'s norms" if family in LIKE else ""
    rate = f", rate {SLOW:g}" if "slow" in rest else ""
    return f"({around}, {core}⊗{STEPS}, {around}){' I' if 'injected' in rest else ''}{norms}{rate}"


def rows() -> Iterator[Row]:
    """All rows: what the paper draws first, and the first seed of each before the others."""
    for seed in range(3):
        yield Row(CONTROL, seed=seed)
        for family, injected in (("sandwich", False), ("sandwich", True), ("bare", False), ("bare", True)):
            for core in CORES:
                yield Row(family, core, injected, seed)


def likenesses() -> Iterator[Row]:
    """Models with the norms of Ouro and of Huginn: no injection and nothing around eight layers, and both around four. At the rate
    of the others that with Ouro's does not learn. Those without a loop tell what Huginn's norms do by themselves."""
    yield Row("ouro", 8)
    yield Row("huginn", 4, injected=True)
    yield Row("ouro", 8, slow=True)
    for seed in (1, 2):
        yield Row("huginn", 4, injected=True, seed=seed)
    for seed in range(3):
        for layers in (20, CONTROL_LAYERS, 8):
            yield Row("huginn", seed=seed, dense=layers)
