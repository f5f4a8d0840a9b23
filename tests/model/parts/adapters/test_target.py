"""Targets: the shapes are the block's own, names are checked, factors start where they should."""

import pytest
import torch

from loopwright.model.config import LoopedConfig
from loopwright.model.layers import Block
from loopwright.model.parts.adapters import ADAPTERS
from loopwright.model.parts.adapters.effects import (
    BRANCHES,
    FactorTable,
    Site,
    StepFactors,
    chosen_shapes,
    low_rank,
    map_shapes,
    scale_of,
)
from loopwright.model.parts.part import StepIndex
from tests.cases import gap

CONFIG = LoopedConfig(
    hidden_size=12, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2, head_dim=6, core_layers=3, max_steps=5,
    end_norm="per-step",
)  # fmt: skip
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize("mlp", ["swiglu", "relu"])
def test_shapes_are_those_of_the_block(mlp):
    config = LoopedConfig(**{**CONFIG.to_dict(), "mlp": mlp})
    block = Block(config)
    linears = {**dict(block.self_attn.named_children()), **dict(block.mlp.named_children())}
    expected = {name: tuple(linear.weight.shape) for name, linear in linears.items()}
    shapes = map_shapes(config)
    assert {name: shape for name, shape in shapes.items() if name not in BRANCHES} == expected
    assert all(shapes[branch] == (12, 12) for branch in BRANCHES)


def test_choosing_targets():
    assert list(chosen_shapes(Site(CONFIG), "linears")) == LINEARS
    assert list(chosen_shapes(Site(CONFIG), "branches")) == ["attention", "mlp"]
    assert list(chosen_shapes(Site(CONFIG), "v_proj")) == ["v_proj"]
    # the order is the block's, not the caller's, so that saved tables mean the same whatever the list
    assert list(chosen_shapes(Site(CONFIG), ["mlp", "q_proj"]).items()) == [("q_proj", (24, 12)), ("mlp", (12, 12))]


@pytest.mark.parametrize(
    ("targets", "branches", "message"),
    [
        (["q_prj"], True, "adapter targets: unknown 'q_prj'; did you mean 'q_proj'? allowed: attention, down_proj"),
        ("linear", True, "adapter targets: unknown 'linear'; allowed: attention, down_proj"),
        (["mlp"], False, "adapter targets: unknown 'mlp'; allowed: down_proj"),
        ("branches", False, "adapter targets: unknown 'attention', 'mlp'; "),
        ([], True, "adapter targets: none given; allowed: 'linears', 'branches' or a list of names"),
    ],
)
def test_wrong_targets(targets, branches, message):
    with pytest.raises(ValueError) as caught:
        chosen_shapes(Site(CONFIG), targets, branches=branches)
    assert str(caught.value).startswith(message)


def test_a_gate_projection_is_no_target_where_there_is_none():
    with pytest.raises(ValueError, match="unknown 'gate_proj'"):
        chosen_shapes(Site(LoopedConfig(mlp="gelu")), ["gate_proj"])


def test_factor_table():
    torch.manual_seed(0)
    shapes = {"q_proj": (24, 12), "down_proj": (12, 20)}
    a, b = FactorTable(shapes, (5, 3), 2, "a"), FactorTable(shapes, (5, 3), 2, "b", zero=True)
    a.start(), b.start()
    assert {name: tuple(t.shape) for name, t in a.items()} == {"q_proj": (5, 3, 2, 12), "down_proj": (5, 3, 2, 20)}
    assert {name: tuple(t.shape) for name, t in b.items()} == {"q_proj": (5, 3, 24, 2), "down_proj": (5, 3, 12, 2)}
    assert all(t.abs().max() == 0 for t in b.values())
    assert abs(a["down_proj"].std().item() - 20**-0.5) < 0.03
    with pytest.raises(ValueError, match=r"adapter: rank must be a whole number >= 1 \(got 0\)"):
        FactorTable(shapes, (5,), 0, "a")


def test_step_factors_by_step_and_by_row():
    torch.manual_seed(0)
    factors = StepFactors(Site(CONFIG), {"k_proj": (12, 12)}, 2, zero=False)
    factors.a.start(), factors.b.start()
    b, a = factors.at("k_proj", 1, StepIndex(3, 3))
    assert torch.equal(b, factors.b["k_proj"][3, 1]) and torch.equal(a, factors.a["k_proj"][3, 1])
    t = torch.tensor([4, 0])
    b, a = factors.at("k_proj", 2, StepIndex(t, t))
    assert torch.equal(b, factors.b["k_proj"][t, 2]) and torch.equal(a, factors.a["k_proj"][t, 2])


def test_low_rank_is_the_dense_product():
    generator = torch.Generator().manual_seed(0)
    x, b, a = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 5, 8), (3, 6, 2), (3, 2, 8)))
    shared = low_rank(x, b[0], a[0])
    assert gap(shared, torch.einsum("or,ri,bti->bto", b[0], a[0], x)) < 1e-12
    assert gap(low_rank(x, b, a), torch.einsum("bor,bri,bti->bto", b, a, x)) < 1e-12


@pytest.mark.parametrize("alpha", [0, 0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["low-rank", "diagonal", "controller", "basis-controller"])
def test_a_factor_under_which_nothing_acts_is_refused(kind: str, alpha: float) -> None:
    with pytest.raises(ValueError, match=rf"adapter: alpha {alpha}; allowed: a number above 0"):
        ADAPTERS[kind](Site(CONFIG), rank=2, alpha=alpha)


def test_the_factor_is_alpha_over_rank_and_1_without_one() -> None:
    assert (scale_of(16.0, 32), scale_of(None, 8), scale_of(3, 2)) == (0.5, 1.0, 1.5)
