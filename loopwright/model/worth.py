"""What steps are worth on text: the plain model whose loss a looped one has, by a published law, and the one whose cost it has.

The law (arXiv 2604.21106) puts the loss of a looped model level with that of a plain one of N_once + r^φ·N_rec parameters: those
that run once, and those that run r times. φ was fitted to pretraining runs with 20 layers as run and 1 to 8 steps, each model
trained at its own depth. As in its public code neither embedding nor head is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.cost import parameters, pass_flops, skeleton

PHI = 0.46  # 0 would be steps that are worth nothing, 1 steps that are worth as much as layers of their own
PHI_TRUNCATED = 0.38  # the same paper, gradients through the last steps alone
MEASURED = 8  # the most steps that the law was fitted to


@dataclass(frozen=True)
class Worth:
    """One depth: the parameters of the plain models of equal loss, by the law, and of equal FLOPs in their layers."""

    depth: int
    equal_loss: int
    equal_flops: int

    @property
    def measured(self) -> bool:
        """Whether the law was fitted to as many steps."""
        return self.depth <= MEASURED


def shares(config: LoopedConfig) -> tuple[int, int]:
    """Returns the parameters that run once and those that run at every step, without embeddings and head."""
    return shares_of(skeleton(config))


def shares_of(model: LoopedForCausalLM) -> tuple[int, int]:
    """Returns the `shares` of a skeleton."""
    if not model.config.is_looped:
        raise ValueError(
            "advise: the model has no looped layers, so there are no steps to weigh; give one with core_layers of 1 or more"
        )
    counts = parameters(model)
    parts = {"core": False, "injection": model.injection.per_step, "gate": model.gate.per_step}
    repeated = sum(counts[part].unique for part, per_step in parts.items() if not per_step)  # of a table a step runs its row
    looked_up = sum(counts[part].unique for part in ("embedding", "positions", "head"))
    return counts["total"].unique - looked_up - repeated, repeated


def worth(once: int, repeated: int, depth: int, phi: float = PHI) -> Worth:
    """Returns what `depth` steps of the repeated parameters are worth and cost."""
    return Worth(depth, round(once + depth**phi * repeated), once + depth * repeated)


def advise(config: LoopedConfig, depths: Iterable[int]) -> list[Worth]:
    """Returns what each of these depths is worth and costs: of a table with a row per step, the rows of the steps that run."""
    return advise_of(skeleton(config), depths)


def advise_of(model: LoopedForCausalLM, depths: Iterable[int]) -> list[Worth]:
    """Returns what `advise` does, of a skeleton."""
    found = []
    for depth in depths:
        one = worth(*shares_of(_ended(model, depth)), depth)
        found.append(replace(one, equal_flops=_layers_flops(model, depth) // 2))
    return found


def _ended(model: LoopedForCausalLM, depth: int) -> LoopedForCausalLM:
    """Returns a skeleton whose per-step tables end at this depth, or the model itself if they already do."""
    config = model.config
    if config.max_steps is None or depth >= config.max_steps:
        return model
    return skeleton(LoopedConfig(**{**config.to_dict(), "max_steps": depth, "depth": depth}))


def _layers_flops(model: LoopedForCausalLM, depth: int) -> int:
    """The FLOPs of one token without read-out and attention, which a plain model has too: two for each parameter that runs."""
    flops = pass_flops(model, depth=depth)
    return flops["total"] - flops["head"] - flops["attention"]
