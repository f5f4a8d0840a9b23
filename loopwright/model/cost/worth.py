"""What steps are worth on text: the plain model whose loss a looped one has, by a published law, and the one whose cost it has.

The law (arXiv 2604.21106) puts the loss of a looped model level with that of a plain one of N_once + r^φ·N_rec parameters: those
that run once, and those that run r times. φ was fitted to pretraining runs with 20 layers as run and 1 to 8 steps, each model
trained at its own depth. As in its public code neither embedding nor head is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from loopwright.model.config import LoopedConfig
from loopwright.model.cost.cost import parameters, pass_flops, skeleton
from loopwright.model.looped import LoopedForCausalLM

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


def shares(config: LoopedConfig, built: LoopedForCausalLM | None = None) -> tuple[int, int]:
    """Returns the parameters that run once and those that run at every step, without embeddings and head."""
    if not config.is_looped:
        raise ValueError(
            "advise: the model has no looped layers, so there are no steps to weigh; give one with core_layers of 1 or more"
        )
    model = built or skeleton(config)
    counts = parameters(config, model)
    parts = {"core": False, "injection": model.injection.per_step, "gate": model.gate.per_step}
    repeated = sum(counts[part].unique for part, per_step in parts.items() if not per_step)  # of a table a step runs its row
    looked_up = sum(counts[part].unique for part in ("embedding", "positions", "head"))
    return counts["total"].unique - looked_up - repeated, repeated


def worth(once: int, repeated: int, depth: int, phi: float = PHI) -> Worth:
    """Returns what `depth` steps of the repeated parameters are worth and cost."""
    return Worth(depth, round(once + depth**phi * repeated), once + depth * repeated)


def advise(config: LoopedConfig, depths: Iterable[int]) -> list[Worth]:
    """Returns what each of these depths is worth and costs: of a table with a row per step, the rows of the steps that run."""
    built = skeleton(config)
    found = []
    for depth in depths:
        ends = _built_for(config, depth)
        one = worth(*shares(ends, built if ends is config else None), depth)
        found.append(replace(one, equal_flops=_layers_flops(config, depth, built) // 2))
    return found


def _built_for(config: LoopedConfig, depth: int) -> LoopedConfig:
    """The config of the model whose tables end with this depth, where it has tables that go on."""
    if config.max_steps is None or depth >= config.max_steps:
        return config
    return LoopedConfig(**{**config.to_dict(), "max_steps": depth, "depth": depth})


def _layers_flops(config: LoopedConfig, depth: int, built: LoopedForCausalLM) -> int:
    """The FLOPs of one token without read-out and attention, which a plain model has too: two for each parameter that runs."""
    flops = pass_flops(config, depth=depth, batch=1, length=1, built=built)
    return flops["total"] - flops["head"] - flops["attention"]
