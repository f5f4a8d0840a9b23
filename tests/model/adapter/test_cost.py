"""Costs of adapters: every kind has one. What they say is held against torch's own counts in tests/model/test_cost.py."""

from loopwright.model.adapter import ADAPTERS, build_adapter
from loopwright.model.adapter.cost import ADAPTER_COSTS
from loopwright.model.config import LoopedConfig


def test_every_adapter_has_a_cost() -> None:
    assert set(ADAPTER_COSTS) == set(ADAPTERS)


def test_a_low_rank_update_costs_its_two_products() -> None:
    config = LoopedConfig(hidden_size=8, coda_layers=3)
    adapter = build_adapter({"kind": "low-rank", "rank": 2, "targets": ["q_proj"], "stack": "coda"}, config)
    assert ADAPTER_COSTS["low-rank"](adapter, 5, 7) == (2 * 35 * 3 * 2 * (64 // 8 + 8), 35 * 3 * 2)
