"""The decode graph equals the plain path: token by token on the GPU, and never in the way elsewhere."""

import pytest
import torch

import loopwright as lw
from loopwright.model.presets import PRESETS
from tests.cases import gap, noisy

NAMES = [f"{name}-tiny" for name in PRESETS]
GREEDY = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}


@torch.no_grad()
def test_a_cpu_pass_never_captures():
    model = noisy("ouro-1.4b-tiny")
    cache = lw.LoopCache(model.config, capacity=12, fixed=True)
    ids = torch.randint(0, 96, (1, 8))
    for i in range(8):
        out = model(ids[:, i : i + 1], past_key_values=cache).logits
    assert cache.graph is None
    assert gap(out, model(ids).logits[:, -1:]) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_graph_equals_plain(name):
    model = noisy(name).cuda()
    ids = torch.randint(0, model.config.vocab_size, (3, 20), device="cuda")
    mask = torch.ones(3, 8, dtype=torch.long, device="cuda")
    mask[1, :3] = 0
    for padding in (None, mask):
        fixed, plain = lw.LoopCache(model.config, capacity=24, fixed=True), lw.LoopCache(model.config)
        for cache in (fixed, plain):
            model(ids[:, :8], attention_mask=padding, past_key_values=cache)
        for i in range(8, 20):
            a = model(ids[:, i : i + 1], past_key_values=fixed).logits
            b = model(ids[:, i : i + 1], past_key_values=plain).logits
            assert gap(a, b) < 2e-5
        assert fixed.graph is not None
        assert fixed.row_lengths == plain.row_lengths
        assert fixed.filled[: len(plain.filled)] == plain.filled
        # a longer pass goes the plain way, and then nothing is replayed any more
        a, b = (model(ids[:, :3], past_key_values=cache).logits for cache in (fixed, plain))
        assert gap(a, b) < 2e-5
        a, b = (model(ids[:, :1], past_key_values=cache).logits for cache in (fixed, plain))
        assert gap(a, b) < 2e-5
        assert fixed.graph is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_static_generation_equals_dynamic(name):
    model = noisy(name).cuda()
    ids = torch.randint(1, model.config.vocab_size, (2, 6), device="cuda")
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    for options in ({}, {"num_beams": 3}, {"attention_mask": mask}):
        static = model.generate(ids, cache_implementation="static", **options, **GREEDY)
        assert torch.equal(static, model.generate(ids, **options, **GREEDY))


@pytest.mark.gpu
@torch.no_grad()
def test_a_crop_retires_the_graph():
    model = noisy("ouroboros-qwen2.5-3b-tiny").cuda()
    ids = torch.randint(0, 96, (1, 16), device="cuda")
    cache = lw.LoopCache(model.config, capacity=20, fixed=True)
    model(ids[:, :6], past_key_values=cache)
    for i in range(6, 12):
        model(ids[:, i : i + 1], past_key_values=cache)
    cache.crop(8)
    out = torch.cat([model(ids[:, i : i + 1], past_key_values=cache).logits for i in range(8, 16)], 1)
    assert gap(out, model(ids).logits[:, 8:]) < 2e-5
    model(ids[:, :4], past_key_values=cache)
    with pytest.raises(ValueError, match="fixed at 20"):
        model(ids[:, :1], past_key_values=cache)
