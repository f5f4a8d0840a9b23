"""The models of the random-initialisation sweep: norms × injection × layers × seeds, and how their weights start.

Everything but the norms is the same in all of them, so that the norms and the injection are all that is compared: no prelude, no
coda, the input as the first state where nothing is injected, noise where it is (Section 2.1 of the paper). The paper states
neither width nor initialisation of these models; 512 with 4 heads is what its small trained models have (Appendix B).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

import loopwright as lw
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.parts.state import huginn_std

STEPS = 128
PROMPTS, TOKENS = 2, 12
SHARED: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 4, "num_key_value_heads": 4,
    "max_position_embeddings": 128, "prelude_layers": 0, "coda_layers": 0, "depth": 4, "attention_bias": [],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}, "rope_layout": "half",
    "norm": {"kind": "rms", "eps": 1e-6}, "tie_word_embeddings": False, "halting": {"kind": "none"},
    "init": {"kind": "normal"},
}  # fmt: skip
# whose norms: the preset that has them
NORMS = {"pre": "retrofit-tinyllama", "huginn": "huginn", "ouro": "ouro-1.4b"}
INJECTIONS = {"injection": True, "none": False}
LAYERS, SEEDS = (12, 4, 16), (0, 1, 2)
MAIN_LAYERS = 12  # of Figures 6, 29 and 30
OTHER_SEEDS = (0,)  # of the starts that are not asserted
HUGINN_DEPTH = 32  # the mean depth that Huginn's start of the output maps counts on


@dataclass(frozen=True)
class Start:
    """How weights start: `fill` sets them in place; the spread of the first state, and what embeddings are multiplied by."""

    about: str
    fill: Callable[[LoopedForCausalLM], None]
    state_std: float
    embedding_scale: float = 1.0


def torch_defaults(model: LoopedForCausalLM) -> None:
    """Fills every map and table as PyTorch itself does: U(±1/√inputs), and N(0, 1) for embeddings."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.reset_parameters()


def huginn_start(model: LoopedForCausalLM) -> None:
    """Fills every map with a truncated normal of std √(2/5D), output and up maps smaller by √(2 · layers run at depth 32)."""
    std = huginn_std(model.config.hidden_size)
    small = std / math.sqrt(2 * model.config.core_layers * HUGINN_DEPTH)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            own = small if name.endswith(("o_proj.weight", "down_proj.weight", "up_proj.weight")) else std
            nn.init.trunc_normal_(weight, std=own, a=-3 * own, b=3 * own)


def as_built(model: LoopedForCausalLM) -> None:
    """Leaves the model as `init: normal` makes it: N(0, 0.02) everywhere."""


_ROOT = math.sqrt(SHARED["hidden_size"])
MAIN_START = "torch"  # what "randomly initialised" means in PyTorch where nothing else is said: the claims are asserted of it
STARTS: dict[str, Start] = {
    "torch": Start("PyTorch's defaults: maps U(±1/√inputs), embeddings and first state N(0, 1)", torch_defaults, 1.0),
    "normal": Start("N(0, 0.02) for all, as `init: normal` and most released configs have it", as_built, 0.02),
    "huginn": Start(
        "Huginn's release: truncated normal √(2/5D), output and up maps smaller by √(2 · layers · 32), embeddings and first "
        "state × √D",
        huginn_start, huginn_std(SHARED["hidden_size"]) * _ROOT, _ROOT,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One model of the sweep."""

    start: str
    norm: str
    injection: str
    layers: int
    seed: int

    @property
    def name(self) -> str:
        """The model's own name."""
        return f"{self.start}/{self.norm}/{self.injection}/{self.layers}/{self.seed}"

    @property
    def kind(self) -> str:
        """What decides how long it takes."""
        return f"{self.layers} layers"


def rows() -> Iterator[Row]:
    """Yields the whole sweep from the start that is asserted, then 12 layers and one seed from the others."""
    for layers, norm, injection, seed in product(LAYERS, NORMS, INJECTIONS, SEEDS):
        yield Row(MAIN_START, norm, injection, layers, seed)
    for start, norm, injection, seed in product(STARTS, NORMS, INJECTIONS, OTHER_SEEDS):
        if start != MAIN_START:
            yield Row(start, norm, injection, MAIN_LAYERS, seed)


def changes(row: Row) -> dict[str, Any]:
    """Returns what a row's model differs in from the preset whose norms it has."""
    start = STARTS[row.start]
    noise = {"kind": "noise", "std": start.state_std, "scale": 1.0}
    parts = (
        {"injection": {"kind": "concat"}, "state": noise}
        if INJECTIONS[row.injection]
        else {"injection": {"kind": "none"}, "state": {"kind": "input"}}
    )
    return {**SHARED, "core_layers": row.layers, "embedding_scale": start.embedding_scale, **parts}


def build(row: Row) -> LoopedForCausalLM:
    """Returns the row's model; its seed alone decides the weights."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(row.seed)
        model = lw.build(NORMS[row.norm], **changes(row))
        STARTS[row.start].fill(model)
    return model


def prompts(row: Row) -> Tensor:
    """Returns the token ids that a row's model reads, [PROMPTS, TOKENS], drawn evenly by the seed: with random embeddings a text
    would say no more."""
    generator = torch.Generator().manual_seed(row.seed)
    return torch.randint(0, SHARED["vocab_size"], (PROMPTS, TOKENS), generator=generator)
