"""What an adapter costs where it stands, each time its stack runs: FLOPs, and numbers kept for the backward pass."""

from __future__ import annotations

from collections.abc import Callable

from loopwright.model.adapter.basis import BasisController
from loopwright.model.adapter.conditioned import Conditioned
from loopwright.model.adapter.diagonal import Bases, Controller, StaticDiagonal
from loopwright.model.adapter.effects import Adapter
from loopwright.model.adapter.lowrank import ABBA, HiRA, LowRank
from loopwright.model.adapter.signal import LevelSignal

SHARED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # the maps of a block that share an input

# an adapter, rows and tokens per row → FLOPs of one run of its stack, and numbers that run keeps for the backward pass


def _signal_cost(adapter: Adapter, rows: int, length: int) -> tuple[int, int]:
    return 0, 0


def _low_rank_cost(adapter: LowRank, rows: int, length: int) -> tuple[int, int]:
    layers, rank = next(iter(adapter.factors.a.values())).shape[1:3]
    sides = sum(out + inner for out, inner in adapter.shapes.values())
    return 2 * rows * length * layers * rank * sides, rows * length * layers * rank * len(adapter.shapes)


def _level_signal_cost(adapter: LevelSignal, rows: int, length: int) -> tuple[int, int]:
    flops, kept = _low_rank_cost(adapter, rows, length)
    layers, width = adapter.factors.a["mlp"].shape[1], adapter.shapes["mlp"][1]
    return flops, kept + rows * length * layers * width  # the MLP's input before the signal, beside the one after it


def _hira_cost(adapter: HiRA, rows: int, length: int) -> tuple[int, int]:
    layers, rank = next(iter(adapter.factors.a.values())).shape[1:3]
    entries = layers * sum(out * inner for out, inner in adapter.shapes.values())
    return 2 * entries * (rows * length + rank), 2 * entries


def _abba_cost(adapter: ABBA, rows: int, length: int) -> tuple[int, int]:
    layers, first = next(iter(adapter.first.a.values())).shape[1:3]
    rank = first * next(iter(adapter.second.a.values())).shape[2]
    sides = sum(out + inner for out, inner in adapter.shapes.values())
    tokens = rows * length
    return 2 * tokens * layers * rank * sides, layers * rank * (tokens * len(adapter.shapes) + sides)


def _diagonal_cost(adapter: StaticDiagonal, rows: int, length: int) -> tuple[int, int]:
    bases = sum(p.numel() for p in adapter.bases.parameters())
    return 2 * rows * length * bases, rows * length * adapter.table[0].numel() + _stacked(adapter.bases)


def _stacked(bases: Bases) -> int:
    """Returns the numbers of the factors that are laid side by side, for maps that share an input."""
    groups = [[bases.a[name].numel() for name in group if name in bases.names] for group in SHARED]
    return sum(sum(sizes) for sizes in groups if len(sizes) > 1)


def _read(adapter: Conditioned) -> int:
    """Returns the weights that read the state."""
    return 0 if adapter.state_proj is None else adapter.state_proj.weight.numel()


def _controller_cost(adapter: Controller, rows: int, length: int) -> tuple[int, int]:
    tokens = rows * length
    pooled = rows if adapter.pooling == "sequence" else tokens
    bases = sum(p.numel() for p in adapter.bases.parameters())
    style = sum(w.numel() for w in (adapter.style1.weight, adapter.style2.weight, adapter.heads))
    flops = 2 * tokens * (bases + _read(adapter)) + 2 * pooled * style
    diagonals, unit = adapter.heads.shape
    units = 11 if adapter.state_proj is not None else 7
    return flops, pooled * (units * unit + diagonals) + tokens * diagonals + _stacked(adapter.bases)


def _basis_cost(adapter: BasisController, rows: int, length: int) -> tuple[int, int]:
    tokens = rows * length
    pooled = rows if adapter.pooling == "sequence" else tokens
    bases = sum(p.numel() for table in (adapter.a, adapter.b) for p in table.values())
    style = sum(w.numel() for w in (adapter.style1.weight, adapter.style2.weight, adapter.style3.weight, adapter.heads))
    flops = 2 * tokens * (bases + _read(adapter)) + 2 * pooled * style
    (coefficients, unit), (inner_width, joined) = adapter.heads.shape, adapter.style1.weight.shape
    mixed = adapter.offset[:, :, 0, 0].numel() * adapter.rank * (2 * adapter.count + 1)
    state = 0 if adapter.state_proj is None else adapter.state_proj.out_features
    return flops, pooled * (state + joined + 4 * inner_width + unit + coefficients) + tokens * mixed


ADAPTER_COSTS: dict[str, Callable[..., tuple[int, int]]] = {
    "sinusoidal": _signal_cost,
    "step-embedding": _signal_cost,
    "level-signal": _level_signal_cost,
    "low-rank": _low_rank_cost,
    "hira": _hira_cost,
    "abba": _abba_cost,
    "diagonal": _diagonal_cost,
    "controller": _controller_cost,
    "basis-controller": _basis_cost,
}
