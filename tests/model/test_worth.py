"""What steps are worth and cost, beside the published example and beside the counts of real models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.model import cost
from loopwright.model.config import LoopedConfig
from loopwright.model.presets import PRESETS, preset
from loopwright.model.worth import advise, shares, worth


def test_the_published_example() -> None:
    """At four steps 410 million parameters are worth 580 million and cost what a billion do: two of the three give the shares."""
    repeated = round((580e6 - 410e6) / (4**0.46 - 1))
    one = worth(round(410e6) - repeated, repeated, 4)
    assert one.equal_loss == pytest.approx(580e6, rel=1e-6)
    assert one.equal_flops == pytest.approx(1e9, rel=0.03)


@given(once=st.integers(0, 10**9), repeated=st.integers(1, 10**9), depth=st.integers(2, 64))
def test_steps_are_worth_less_than_they_cost_and_more_than_nothing(once: int, repeated: int, depth: int) -> None:
    one = worth(once, repeated, depth)
    assert once + repeated < one.equal_loss + 1 < one.equal_flops + 1
    assert worth(once, repeated, 1).equal_loss == worth(once, repeated, 1).equal_flops == once + repeated
    assert worth(once, repeated, depth, phi=1).equal_loss == one.equal_flops
    assert one.measured == (depth <= 8)


@pytest.mark.parametrize(
    "name", ["ouro-1.4b-tiny", "huginn-tiny", "asura-tiny", "stars-addition-tiny", "ouroboros-qwen2.5-3b-tiny"]
)
def test_every_parameter_but_embeddings_and_head_is_counted_once(name: str) -> None:
    config = preset(name)
    counts = cost.parameters(config)
    once, repeated = shares(config)
    assert once + repeated == sum(
        p.numel()
        for n, p in cost.skeleton(config).named_parameters()
        if not n.startswith(("embed_tokens", "embed_positions", "lm_head"))
    )
    per_step = config.injection["kind"] == "concat-per-step"
    assert repeated == counts["core"].unique + (0 if per_step else counts["injection"].unique) + counts["gate"].unique
    assert per_step == (name == "asura-tiny")


def test_what_a_step_more_costs_is_what_its_products_cost() -> None:
    """The layers of Ouro: two FLOPs a parameter and token, norms aside."""
    config = preset("ouro-1.4b")
    two, four = advise(config, (2, 4))
    flops = [cost.pass_flops(config, depth=depth)["core"] for depth in (2, 4)]
    assert four.equal_flops - two.equal_flops == pytest.approx((flops[1] - flops[0]) / 2, rel=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", [f"{name}-tiny" for name in PRESETS])
def test_what_a_depth_costs_is_what_runs_at_it(name: str) -> None:
    """Gates and adapters run at every step; of a table with a row per step each step runs its own."""
    config = preset(name)
    for one in advise(config, (1, 2)):
        flops = cost.pass_flops(config, depth=one.depth)
        assert 2 * one.equal_flops == flops["total"] - flops["head"] - flops["attention"]
        built = config if config.max_steps is None else preset(name, max_steps=one.depth, depth=one.depth)
        assert one.equal_loss == worth(*shares(built), one.depth).equal_loss


def test_a_model_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="advise: the model has no looped layers"):
        shares(LoopedConfig(vocab_size=11, hidden_size=8, num_attention_heads=2, prelude_layers=2, core_layers=0))
