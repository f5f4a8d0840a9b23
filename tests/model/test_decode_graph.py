"""The decode graph equals the plain path: token by token on the GPU, and never in the way elsewhere."""

import contextlib
from types import SimpleNamespace

import pytest
import torch

import loopwright as lw
from loopwright.model.decode_graph import DecodeGraph
from tests.cases import SOME_TINY_CASES, TINY_CASES, gap, noisy

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


class Eager:
    """Stands in for a CUDA graph: a capture leaves no trace, a replay runs the captured pass."""

    def __init__(self, graph: DecodeGraph, cache: lw.LoopCache) -> None:
        self.graph, self.cache = graph, cache

    @contextlib.contextmanager
    def capture(self, _):
        kept = [tensor.clone() for tensor in self.graph._moving()]
        yield
        for tensor, value in zip(self.graph._moving(), kept, strict=True):
            tensor.copy_(value)

    def replay(self) -> None:
        self.graph.logits = self.graph._pass(self.cache)
        self.cache.filled.begin()  # a real replay runs no Python code: what it ran must be counted without it


@pytest.mark.parametrize("name", SOME_TINY_CASES)
@torch.no_grad()
def test_what_the_graph_counts_without_a_gpu(name, monkeypatch):
    """Its host side on a CPU, up to the last place of the cache, also where the first decoded token takes that place."""
    model = noisy(name, read_out="last")
    capture = DecodeGraph._capture

    def eager_capture(graph: DecodeGraph, cache: lw.LoopCache) -> None:
        stand_in = Eager(graph, cache)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: stand_in)
        monkeypatch.setattr(torch.cuda, "graph", stand_in.capture)
        capture(graph, cache)

    monkeypatch.setattr(DecodeGraph, "_capture", eager_capture)
    monkeypatch.setattr(torch.cuda, "Stream", lambda **_: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda side: contextlib.nullcontext())
    ids = torch.randint(0, model.config.vocab_size, (2, 10))
    padded = {"attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])}
    gaps = {"position_ids": torch.tensor([[2, 3, 4, 7, 8, 9]])}
    for capacity, said in ((7, {}), (10, {}), (10, padded), (10, gaps)):
        fixed, plain = lw.LoopCache(model.config, capacity=capacity, fixed=True), lw.LoopCache(model.config)
        for cache in (fixed, plain):
            model(ids[:, :6], past_key_values=cache, **said)
        graph = DecodeGraph(model, fixed, model.config.depth, None)
        for i in range(6, capacity):
            assert graph.fits(fixed, model.config.depth, None)
            token = ids[:, i : i + 1]
            assert gap(graph.step(fixed, token), model(token, past_key_values=plain).logits) < 2e-5
        assert fixed.row_lengths == plain.row_lengths
        assert (fixed.positions is None) == (plain.positions is None) == (said is not gaps)
        assert said is not gaps or bool((fixed.positions == plain.positions).all())
        assert fixed.filled.missing == plain.filled.missing
        assert not graph.fits(fixed, model.config.depth, None)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TINY_CASES)
@torch.no_grad()
def test_graph_equals_plain(name):
    model = noisy(name, read_out="last").cuda()
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
        assert fixed.filled.missing == plain.filled.missing
        # a longer pass goes the plain way, and then nothing is replayed any more
        a, b = (model(ids[:, :3], past_key_values=cache).logits for cache in (fixed, plain))
        assert gap(a, b) < 2e-5
        a, b = (model(ids[:, :1], past_key_values=cache).logits for cache in (fixed, plain))
        assert gap(a, b) < 2e-5
        assert fixed.graph is None


@pytest.mark.gpu
@pytest.mark.parametrize("name", TINY_CASES)
@torch.no_grad()
def test_static_generation_equals_dynamic(name):
    model = noisy(name, read_out="last").cuda()
    ids = torch.randint(1, model.config.vocab_size, (2, 6), device="cuda")
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    for options in ({}, {"num_beams": 3}, {"attention_mask": mask}):
        dynamic = model.generate(ids, cache_implementation="dynamic", **options, **GREEDY)
        assert torch.equal(dynamic, model.generate(ids, cache_implementation="static", **options, **GREEDY))
        assert torch.equal(dynamic, model.generate(ids, **options, **GREEDY))  # static, but for beams


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
