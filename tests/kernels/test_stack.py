"""A pass by fused kernels is the plain pass: one row and many, padded, grouped heads, every layout of norms; and what it reads."""

import warnings

import pytest
import torch

import loopwright as lw
from loopwright.kernels import gate
from loopwright.model import fused_support
from tests.cases import TINY_CASES, gap, noisy

# what presets do not have: a window, biases everywhere, post-norm, a head size that is no power of two, long rows in many parts
SHAPES = {
    "window": {"sliding_window": 5},
    "biases": {"attention_bias": ["q", "k", "v", "o"], "mlp_bias": True},
    "post-norm": {"norm_placement": ["residual"]},
    "output norm": {"norm_placement": ["output"]},
    "all norms": {"norm_placement": ["input", "output", "residual"]},
    "odd sizes": {"hidden_size": 60, "intermediate_size": 76, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 12},
    "one key head": {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 16},
    "interleaved": {"rope_layout": "interleaved"},
    "no positions": {"positions": "none"},
    "learned positions": {"positions": "learned"},
}


def compare(
    model: lw.LoopedForCausalLM, rows: int, *, new: int = 6, length: int = 9, capacity: int = 16, padded: bool = True
) -> float:
    """Returns the largest difference of replayed from plain logits, both on a cache."""
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, model.config.vocab_size, (rows, length + new), generator=generator).cuda()
    mask = torch.ones(rows, length, dtype=torch.long, device="cuda")
    if padded:
        mask[0, :4] = 0
    fixed, plain = lw.LoopCache(model.config, capacity=capacity, fixed=True), lw.LoopCache(model.config)
    for cache in (fixed, plain):
        model(ids[:, :length], attention_mask=mask, past_key_values=cache)
    worst = 0.0
    for i in range(length, length + new):
        a, b = (model(ids[:, i : i + 1], past_key_values=cache).logits for cache in (fixed, plain))
        worst = max(worst, gap(a, b))
    assert (fixed.graph is not None) == (model.config.read_out == "last")  # a mean over steps is not replayed
    return worst


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", TINY_CASES)
@torch.no_grad()
def test_presets(name: str, rows: int):
    for padded in (False, True):
        assert compare(noisy(name).cuda(), rows, padded=padded) < 2e-5


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_shapes(shape: str, rows: int):
    model = noisy("ouro-1.4b-tiny", **SHAPES[shape]).cuda()
    assert fused_support.fused_stacks(model, 1) == ["core"]
    assert compare(model, rows) < 2e-5


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 20, 70])
@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny", "retrofit-llama-1b-tiny"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_is_as_near_to_float32_as_the_plain_path(name: str, rows: int, dtype: torch.dtype):
    half = noisy(name, std=0.1, hidden_size=64, intermediate_size=80).to("cuda", dtype)
    exact = noisy(name, std=0.1, hidden_size=64, intermediate_size=80).cuda()
    exact.load_state_dict(half.state_dict())
    ids = torch.randint(0, 96, (rows, 150), generator=torch.Generator().manual_seed(0)).cuda()
    mask = torch.ones_like(ids)
    mask[0, :70] = 0
    caches = [lw.LoopCache(half.config, capacity=160, fixed=True), lw.LoopCache(half.config), lw.LoopCache(half.config)]
    far: list[list[float]] = [[], []]
    for i, count in ((0, 140), *((i, 1) for i in range(140, 146))):
        given = {"attention_mask": mask[:, :140]} if i == 0 else {}
        fused, plain, wanted = (
            model(ids[:, i : i + count], past_key_values=cache, logits_to_keep=1, **given).logits.float()
            for model, cache in zip((half, half, exact), caches, strict=True)
        )
        if i:
            far[0].append((fused - wanted).norm().item())
            far[1].append((plain - wanted).norm().item())
    assert caches[0].graph is not None and caches[0].graph.fused is not None
    assert sum(far[0]) <= 1.2 * sum(far[1])


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2])
@torch.no_grad()
def test_weights_that_change_after_the_capture_are_read(rows: int):
    model = noisy("ouro-1.4b-tiny").cuda()
    ids = torch.randint(0, 96, (rows, 12), device="cuda")
    fixed, plain = lw.LoopCache(model.config, capacity=16, fixed=True), lw.LoopCache(model.config)
    for cache in (fixed, plain):
        model(ids[:, :6], past_key_values=cache)
        model(ids[:, 6:7], past_key_values=cache)
    captured = fixed.graph
    for parameter in model.parameters():
        parameter.mul_(1.1)
    model.load_state_dict({name: value * 0.95 for name, value in model.state_dict().items()})
    a, b = (model(ids[:, 7:8], past_key_values=cache).logits for cache in (fixed, plain))
    assert gap(a, b) < 2e-5
    assert fixed.graph is captured
    model.core[0].mlp.up_proj.weight = torch.nn.Parameter(model.core[0].mlp.up_proj.weight * 2)
    a, b = (model(ids[:, 8:9], past_key_values=cache).logits for cache in (fixed, plain))
    assert gap(a, b) < 2e-5
    assert fixed.graph is None  # other tensors: nothing is replayed any more


@pytest.mark.gpu
@torch.no_grad()
def test_long_rows_in_many_parts():
    model = noisy("retrofit-llama-1b-tiny", max_position_embeddings=4096, std=0.1).cuda()
    for rows in (1, 2):
        assert compare(model, rows, length=1500, capacity=2500, new=3) < 2e-5


@pytest.mark.gpu
@torch.no_grad()
def test_what_runs_plainly_is_said_once():
    gate.warn_once.cache_clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            compare(noisy("ouroboros-qwen2.5-3b-tiny").cuda(), 1)
    texts = [str(warning.message) for warning in said if "decode" in str(warning.message)]
    assert texts == ["decode: the core runs without fused kernels: adapters inside its blocks"]
