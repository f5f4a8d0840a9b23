"""How large a model may be, and which values its numbers may have: asked of a config before anything is built from it.

The bounds lie far above what anybody runs. They keep a hostile or mistyped config.json from hanging the process or filling memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from loopwright.model.parts.adapter import ADAPTERS, stack_of
from loopwright.model.parts.adapter.effects import BRANCHES
from loopwright.model.parts.adapter.target import Site, map_shapes
from loopwright.model.parts.gate import GATES
from loopwright.model.parts.injection import INJECTIONS
from loopwright.settings import options_of
from loopwright.untrusted import shown
from loopwright.values import MOST_NUMBER, is_number, is_whole

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig

LEAST_NUMBER: float = torch.finfo(torch.float32).tiny
MOST_DEPTH = 1_000_000
MOST_LAYERS = 1024  # of the three stacks together
MOST_ADAPTERS = 64
MOST_PARAMETERS = 2**43
MOST_ENTRIES = 2**50  # of an adapter's tables, from above
MOST_LABELS = 2**16
MOST: dict[str, int] = {
    "vocab_size": 2**26, "hidden_size": 2**20, "intermediate_size": 2**22, "num_attention_heads": 2**14,
    "num_key_value_heads": 2**14,
    "head_dim": 2**14, "max_position_embeddings": 2**31, "prelude_layers": MOST_LAYERS, "core_layers": MOST_LAYERS,
    "coda_layers": MOST_LAYERS, "depth": MOST_DEPTH, "max_steps": 2**16, "sliding_window": 2**31,
}  # fmt: skip
_SIZED = {"injection": INJECTIONS, "gate": GATES}  # the parts whose size grows with the square of the width
LARGEST_OPTION = 2**20  # of an adapter: every whole number there is a size


def wrong_options(
    where: str, spec: Mapping[str, Any], ranges: Mapping[str, tuple[float, float, bool]], *, sizes: bool = False
) -> Iterator[str]:
    """Yields what is out of the ranges of a checked kind; an option that is null is left to its kind.

    `sizes`: a whole number that has no range is a size.
    """
    for name, value in spec.items():
        if sizes and is_whole(value) and name not in ranges:
            if not 1 <= value <= LARGEST_OPTION:
                yield f"{where} ({spec['kind']}): {name} is {shown(value)}; allowed: a whole number from 1 to {LARGEST_OPTION}"
        elif name in ranges and value is not None:
            low, high, included = ranges[name]
            if not is_number(value, low, high) or (value == low and not included):
                most = "a number of float32" if high == MOST_NUMBER else f"at most {high:g}"
                least = f"{'from' if included else 'above'} {low:g}, " if low > -MOST_NUMBER else ""
                yield f"{where} ({spec['kind']}): {name} is {shown(value)}; allowed: {least}{most}"


def too_large(config: LoopedConfig) -> Iterator[str]:
    """Yields what makes a model too large to build, from its sizes alone."""
    layers = config.prelude_layers + config.core_layers + config.coda_layers
    if layers > MOST_LAYERS:
        yield f"prelude_layers, core_layers and coda_layers are {layers:,} together; allowed: at most {MOST_LAYERS:,}"
        return
    total = plain_parameters(config)
    if total > MOST_PARAMETERS:
        yield f"its sizes make {total:,} parameters; allowed: at most {MOST_PARAMETERS:,}"
    for place, spec in enumerate(config.adapters):
        entries = _adapter_entries(config, spec)
        if entries > MOST_ENTRIES:
            yield f"adapters[{place}] ({spec['kind']}): its sizes make up to {entries:,} numbers; allowed: at most {MOST_ENTRIES:,}"


def plain_parameters(config: LoopedConfig) -> int:
    """Returns how many parameters a model has at least: its linear maps, embeddings and per-step projections, without adapters."""
    width = config.hidden_size
    layers = config.prelude_layers + config.core_layers + config.coda_layers
    block = sum(out * inner for name, (out, inner) in map_shapes(config).items() if name not in BRANCHES)
    tables = config.vocab_size * (1 if config.tie_word_embeddings else 2)
    tables += config.max_position_embeddings if config.positions == "learned" else 0
    parts = sum(table[getattr(config, name)["kind"]].least_parameters(config) for name, table in _SIZED.items())
    return layers * block + tables * width + parts


def _adapter_entries(config: LoopedConfig, spec: Mapping[str, Any]) -> int:
    """Returns a number that no table of an adapter exceeds: rows × layers × the widest side × its two largest sizes."""
    site = Site(config, stack_of(spec))
    options = {name: spec.get(name, parameter.default) for name, parameter in options_of(ADAPTERS[spec["kind"]]).items()}
    sizes = sorted((v for v in options.values() if is_whole(v)), reverse=True)[:2]
    widest = max(side for shape in map_shapes(config).values() for side in shape)
    return max(site.rows, 1) * site.layers * widest * math.prod(sizes)
