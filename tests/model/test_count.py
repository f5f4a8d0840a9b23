"""Counting parts on the meta device: equal to torch's count of a real pass for kinds that nobody wrote a formula for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import loopwright as lw
from loopwright.model.cost import Bench, Cost, cache_bytes, pass_flops, skeleton, training_bytes
from loopwright.parts import Adapter, Effects, Gate, HaltingHead, Injection, Site, take
from tests.own_kinds import own_kinds

SMALL: dict[str, Any] = {
    "vocab_size": 16, "hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "core_layers": 2, "max_steps": 4,
    "max_position_embeddings": 64,
}  # fmt: skip


class Twice(Injection):
    """x = W_t (W_t s + e)."""

    per_step = True

    def __init__(self, config: lw.LoopedConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.max_steps or 0, config.hidden_size, config.hidden_size))

    def start(self) -> None:
        nn.init.normal_(self.weight, std=0.1)

    def forward(self, s: Tensor, e: Tensor, step: Any) -> Tensor:
        weight = take(self.weight, step)
        return (s @ weight + e) @ weight


class Later(Gate):
    """Multiplies from the second step on."""

    def __init__(self, config: lw.LoopedConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, old: Tensor, new: Tensor, step: Any) -> Tensor:
        return new if step.t == 0 else old + torch.tanh(self.proj(new))


class Looks(Gate):
    """Asks for a value."""

    def __init__(self, config: lw.LoopedConfig) -> None:
        super().__init__()

    def forward(self, old: Tensor, new: Tensor, step: Any) -> Tensor:
        return new if float(new.detach().mean()) > 0 else old


class Deep(HaltingHead):
    """Two layers."""

    mixes = "logits"

    def __init__(self, config: lw.LoopedConfig) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(config.hidden_size, 5), nn.Linear(5, 1)

    def value(self, s: Tensor) -> Tensor:
        return torch.sigmoid(self.down(self.up(s).relu()))

    def forward(self, halt: Tensor) -> Tensor:
        return torch.softmax(halt, -1)


class Beside(Adapter):
    """A product beside each MLP."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.proj = nn.Linear(site.config.hidden_size, site.config.hidden_size)

    @property
    def cached_numbers(self) -> int:
        return 3

    def begin(self, step: Any, s: Tensor, p: Any) -> Effects:
        return Effects(update=lambda layer, name, x, weight: self.proj(x) if name == "mlp" else None)


@pytest.fixture(autouse=True)
def _own() -> Iterator[None]:
    with own_kinds():
        kinds = {"injection": Twice, "gate": Later, "halting": Deep, "adapter": Beside}
        for place, kind in kinds.items():
            lw.register(place, "mine")(kind)
        lw.register("gate", "looks")(Looks)
        yield


def _config(**changes: Any) -> lw.LoopedConfig:
    parts = {name: {"kind": "mine"} for name in ("injection", "gate", "halting")}
    return lw.LoopedConfig(**{**SMALL, **parts, "adapters": [{"kind": "mine"}], "depth": 3, **changes})


@pytest.mark.long
@settings(max_examples=3)
@given(depth=st.integers(1, 4), rows=st.integers(1, 2), length=st.integers(1, 5), coda=st.integers(0, 1))
def test_flops_are_those_torch_counts_of_a_real_pass(depth: int, rows: int, length: int, coda: int) -> None:
    config = _config(coda_layers=coda, adapters=[{"kind": "mine"}, *([{"kind": "mine", "stack": "coda"}] * coda)])
    model = lw.LoopedForCausalLM(config).eval()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros(rows, length, dtype=torch.long), depth=depth)
    found = pass_flops(config, depth=depth, batch=rows, length=length)
    assert found["total"] == counter.get_total_flops()
    tokens, width = rows * length, 8
    assert found["injection"] == 2 * 2 * tokens * depth * width**2
    assert found["gate"] == 2 * tokens * (depth - 1) * width**2  # nothing at the first step
    assert found["halting"] == 2 * tokens * depth * (width * 5 + 5)
    assert found["mine"] == 2 * tokens * (2 * depth + coda) * width**2


def test_what_is_kept_is_what_autograd_keeps() -> None:
    config = _config(depth=4)
    model, ids = lw.LoopedForCausalLM(config), torch.zeros(2, 32, dtype=torch.long)
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(ids, labels=ids)
    real = sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in own)
    assert training_bytes(config, batch=2, context=32, dtype=torch.float32) == pytest.approx(real, rel=0.05)


def test_a_low_rank_update_costs_its_two_products() -> None:
    config = lw.LoopedConfig(
        hidden_size=8, coda_layers=3, adapters=[{"kind": "low-rank", "rank": 2, "targets": ["q_proj"], "stack": "coda"}]
    )
    bench = Bench(skeleton(config), 5, 7)
    assert bench.adapter_cost(bench.model.adapters[0], 4) == Cost(2 * 35 * 3 * 2 * (8 + 8), 35 * 3 * 2)


def test_a_part_says_what_a_cache_holds_for_it() -> None:
    with_part, without = (cache_bytes(_config(adapters=a), dtype=torch.float32) for a in ([{"kind": "mine"}], []))
    assert with_part["running sums"] == 3 * 3 * 4 and without["running sums"] == 0


def test_a_part_that_looks_at_values_is_named() -> None:
    with pytest.raises(ValueError, match=r"^cost: gate \(looks\) cannot be counted: it looks at values"):
        pass_flops(_config(gate={"kind": "looks"}))


def test_a_dense_model_has_no_steps_to_count() -> None:
    flops = pass_flops(lw.LoopedConfig(prelude_layers=1, core_layers=0, depth=1, halting={"kind": "mine"}, hidden_size=8), length=3)
    assert flops["injection"] == flops["gate"] == 0 and flops["halting"] == 2 * 3 * (8 * 5 + 5)
