"""Attention: rotary layouts and scalings, q/k norms, grouped heads, against slow or independent forms."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import loopwright as lw
from loopwright.model.layers import Rotary, attend, rotate
from tests.cases import gap

SCALINGS = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128},
}  # fmt: skip


@pytest.mark.parametrize("kind", SCALINGS)
def test_angles_equal_transformers(kind):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 512}
    config = lw.LoopedConfig(**sizes, rope_parameters=dict(SCALINGS[kind]))
    positions = torch.arange(300)[None]
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=dict(SCALINGS[kind])))
    cos, sin = theirs(torch.zeros(1, 1, 64), positions)
    ours_cos, ours_sin = Rotary(config).table(positions, torch.float32)
    assert gap(ours_cos[:, :, 0], cos) < 1e-6
    assert gap(ours_sin[:, :, 0] * torch.tensor([-1.0] * 8 + [1.0] * 8), sin) < 1e-6


def tables(layout: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    config = lw.LoopedConfig(hidden_size=16, num_attention_heads=2, rope_layout=layout)
    positions = torch.arange(3, 8)[None]
    cos, sin = Rotary(config).table(positions, torch.float32)
    frequencies = 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
    return cos, sin, (positions[..., None] * frequencies)[:, :, None]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotation_is_complex_multiplication(layout):
    torch.manual_seed(0)
    cos, sin, angle = tables(layout)
    x = torch.randn(2, 5, 3, 8)
    interleaved = layout == "interleaved"
    pairs = x.unflatten(-1, (4, 2)) if interleaved else torch.stack([x[..., :4], x[..., 4:]], dim=-1)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle))
    expected = turned.flatten(-2) if interleaved else torch.cat([turned[..., 0], turned[..., 1]], dim=-1)
    assert gap(rotate(x, cos, sin, interleaved=interleaved), expected) < 1e-6


def test_the_two_layouts_are_a_permutation_of_each_other():
    torch.manual_seed(0)
    x = torch.randn(1, 5, 2, 8)
    order = torch.arange(8).view(2, 4).T.flatten()  # half-split channel of each interleaved one
    half = rotate(x, *tables("half")[:2], interleaved=False)
    mixed = rotate(x[..., order], *tables("interleaved")[:2], interleaved=True)
    assert gap(half[..., order], mixed) < 1e-6


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attend_is_softmax_attention(groups):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 5, 4, 8), torch.randn(2, 7, 4 // groups, 8), torch.randn(2, 7, 4 // groups, 8)
    mask = torch.rand(2, 1, 5, 7) > 0.4
    mask[..., 0] = True
    wide_k, wide_v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    scores = torch.einsum("bthk,bnhk->bhtn", q, wide_k) / 8**0.5
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    expected = torch.einsum("bhtn,bnhk->bthk", weights, wide_v)
    assert gap(attend(q, k, v, mask=mask, causal=False), expected) < 1e-6


def test_qk_norm_head_and_full_differ_and_are_where_they_should_be():
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    head = lw.LoopedForCausalLM(lw.LoopedConfig(**sizes, qk_norm="head"))
    full = lw.LoopedForCausalLM(lw.LoopedConfig(**sizes, qk_norm="full"))
    assert head.core[0].self_attn.q_norm.weight.shape == (8,)
    assert full.core[0].self_attn.q_norm.weight.shape == (32,)
    assert full.core[0].self_attn.k_norm.weight.shape == (16,)


def test_rotary_tables_are_not_in_the_state_dict_and_survive_a_cast():
    model = lw.build("huginn-tiny")
    assert not any("rotary" in name or "freq" in name for name in model.state_dict())
    table = model.rotary.table(torch.arange(5)[None], torch.float32)[0].clone()
    model.to(torch.bfloat16)
    assert torch.equal(model.rotary.table(torch.arange(5)[None], torch.float32)[0], table)
