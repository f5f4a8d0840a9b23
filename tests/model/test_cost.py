"""Cost: exact parameter counts, FLOPs against torch's counter, cache bytes against a real cache, activations against a pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from inspect import Parameter, signature
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import loopwright as lw
from loopwright.model.cost import (
    TRAINING_FACTOR,
    Count,
    Described,
    cache_bytes,
    inference_bytes,
    parameters,
    pass_flops,
    skeleton,
    tensors,
    training_bytes,
    weight_bytes,
)
from loopwright.model.parts.adapters import ADAPTERS
from loopwright.model.presets import PRESETS
from tests.cases import UNLIKE, some

TINY = [f"{name}-tiny" for name in PRESETS]
FLOAT = torch.float32
# a product that is added in place is one torch's counter does not know
IN_PLACE = {torch.ops.aten.addmm_: lambda y, a, b, out_shape=None, **_: 2 * a[0] * a[1] * b[1]}


def _adapted(kind: str, **options: Any) -> lw.LoopedConfig:
    steps = 6 if ADAPTERS[kind].per_step else None
    return lw.preset("ouro-1.4b-tiny", adapters=[{"kind": kind, **options}], max_steps=steps)


VARIANTS = {
    **{name: lw.preset(name) for name in TINY},
    **{f"adapter {kind}": _adapted(kind) for kind in ADAPTERS},
    "chunk pooling": _adapted("controller", pooling="chunk", style=8, rank=4),
    "blind controller": _adapted("controller", pooling="none", style=8, rank=4),
    "diagonal injection": lw.preset("huginn-tiny", injection={"kind": "diagonal"}),
    "learned gate": lw.preset("huginn-tiny", gate={"kind": "learned"}),
    "grown gate": lw.preset("huginn-tiny", gate={"kind": "grown"}),
    "adapters on every stack": lw.preset(
        "huginn-tiny",
        max_steps=6,
        adapters=[{"kind": "controller", "rank": 4, "style": 8, "stack": stack} for stack in ("prelude", "core", "coda")],
    ),
    "dense with low-rank": lw.LoopedConfig(
        prelude_layers=3, core_layers=0, depth=1, adapters=[{"kind": "low-rank", "stack": "prelude"}]
    ),
    "dense with a controller": lw.LoopedConfig(
        prelude_layers=3, core_layers=0, depth=1, adapters=[{"kind": "controller", "stack": "prelude", "style": 8}]
    ),
    "qk norm by head": lw.preset("huginn-tiny", qk_norm="head"),
    "wide vocabulary": lw.preset("huginn-tiny", vocab_size=1000),
    "dense": lw.LoopedConfig(prelude_layers=3, core_layers=0, depth=1),
}
KEPT = {f"{name}-tiny" for name in UNLIKE} | {"dense", "adapter controller", "diagonal injection"}


@cache
def _model(name: str) -> lw.LoopedForCausalLM:
    return lw.LoopedForCausalLM(VARIANTS[name]).eval()


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("ouro-1.4b", 1_434_652_673),
        ("ouro-2.6b", 2_667_974_657),
        ("huginn", 3_564_976_800),
        ("retrofit-tinyllama", 844_171_264),
        ("retrofit-olmo2-1b", 1_359_071_232),
        ("retrofit-llama-1b", 1_385_228_288),
    ],
)
def test_parameter_counts_of_the_releases(name: str, count: int) -> None:
    assert parameters(lw.preset(name))["total"] == Count(count, count)


def test_parts_of_ouroboros_on_qwen_shapes() -> None:
    parts = parameters(lw.preset("ouroboros-qwen2.5-3b"))
    assert parts["controller"] == Count(692_864, 692_864)
    assert parts["gate"].unique == 8_390_656
    assert parts["step norms"].unique == 131_072
    assert parts["bases"].unique > 0 and parts["bases"].trainable == 0
    assert parts["head"].unique == 0  # tied


@pytest.mark.parametrize("name", VARIANTS)
def test_parts_add_up_to_the_model(name: str) -> None:
    parts = parameters(VARIANTS[name])
    total = parts.pop("total")
    model = _model(name)
    assert sum(p.unique for p in parts.values()) == total.unique == sum(p.numel() for p in model.parameters())
    assert sum(p.trainable for p in parts.values()) == total.trainable
    assert total.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_parts_hold_what_their_names_say() -> None:
    parts = parameters(lw.preset("asura-tiny"))
    assert parts["step norms"].unique == 2 * 2 * 3 * 32  # two tables of scale and shift, three steps
    assert parts["norms"].unique == 2 * 2 * 32  # after the embedding and before the head
    assert parts["head"].unique == 96 * 32 + 96
    assert parts["injection"].unique == 3 * (32 * 64 + 32)
    assert parameters(lw.preset("stars-addition-tiny"))["positions"].unique == 128 * 32
    assert parameters(lw.preset("ouro-1.4b-tiny"))["norms"].unique == 32  # the norm that ends each step is one norm
    assert parameters(lw.preset("ouro-1.4b-tiny", state={"kind": "learned"}))["state"].unique == 32


def test_the_skeleton_takes_no_memory() -> None:
    assert all(p.is_meta for p in skeleton(lw.preset("huginn")).parameters())


@pytest.mark.parametrize("function", [parameters, pass_flops, training_bytes])
def test_a_config_is_never_beside_the_model_of_another(function: Callable[..., Any]) -> None:
    """The numbers would be of neither: what takes a config or a skeleton takes nothing that could contradict it."""
    first, *others = signature(function, eval_str=True).parameters.values()
    assert first.annotation == Described and first.kind is Parameter.POSITIONAL_OR_KEYWORD
    assert not [each for each in others if each.kind is Parameter.VAR_KEYWORD or "Looped" in str(each.annotation)]
    with pytest.raises(TypeError):
        function(lw.preset("asura-tiny"), skeleton(lw.preset("huginn-tiny")))


@pytest.mark.parametrize("name", TINY)
def test_the_tensor_table_is_the_state_dict(name: str) -> None:
    rows = tensors(lw.preset(name))
    model = _model(name)
    assert [(r.name, r.shape) for r in rows] == [(n, tuple(t.shape)) for n, t in model.state_dict().items()]
    assert sum(r.parameters for r in rows if r.tied_to is None) == sum(p.numel() for p in model.parameters())
    tied = [(r.name, r.tied_to) for r in rows if r.tied_to]
    assert tied == ([("lm_head.weight", "embed_tokens.weight")] if model.config.tie_word_embeddings else [])


@pytest.mark.long
@pytest.mark.parametrize("name", some(VARIANTS, KEPT))
def test_flops_equal_those_torch_counts(name: str) -> None:
    config = VARIANTS[name]
    model = _model(name)
    ids = torch.randint(0, config.vocab_size, (2, 7))
    # the math kernel is made of plain products, which is the full T × N convention
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        model(ids)
    assert pass_flops(config, batch=2, length=7)["total"] == counter.get_total_flops()


@pytest.mark.parametrize(
    "name",
    [
        "huginn-tiny",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("asura-tiny", "ouroboros-qwen2.5-3b-tiny", "universal-tiny")),
    ],
)
def test_flops_of_a_cached_token_at_another_depth(name: str) -> None:
    config = lw.preset(name)
    depth = config.max_steps if config.beyond_max_steps == "refuse" and config.max_steps else config.depth + 1
    model = _model(name)
    ids = torch.randint(0, config.vocab_size, (1, 9))
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        cache = model(ids[:, :8], depth=depth, use_cache=True).past_key_values
        with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
            model(ids[:, 8:], depth=depth, past_key_values=cache)
    token = pass_flops(config, depth=depth, cached=8)["total"]
    assert token == counter.get_total_flops()
    assert pass_flops(config, depth=depth, batch=3, length=9)["total"] == 27 * token


@pytest.mark.filterwarnings("ignore:controller")
def test_flops_of_sequence_pooling() -> None:
    config = _adapted("controller", pooling="sequence", leak_future=True, style=8, rank=4)
    model = lw.LoopedForCausalLM(config).eval()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        model(torch.randint(0, 96, (2, 7)))
    assert pass_flops(config, batch=2, length=7)["total"] == counter.get_total_flops()


def test_training_costs_three_forward_passes() -> None:
    config = lw.preset("retrofit-tinyllama-tiny")
    model = lw.LoopedForCausalLM(config)
    ids = torch.randint(0, config.vocab_size, (2, 7))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        model(ids, labels=ids).loss.backward()
    # the first injection's state is noise, which takes no gradient, but its product is one with the input's
    assert TRAINING_FACTOR * pass_flops(config, batch=2, length=7)["total"] == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_flops_grow_with_depth_by_one_core() -> None:
    config = lw.preset("huginn")
    two, three = pass_flops(config, depth=2), pass_flops(config, depth=3)
    core = parameters(config)["core"].unique
    norms_and_biases = 4 * (4 * 5280 + 2 * 5280)
    assert three["core"] - two["core"] == 2 * (core - norms_and_biases)
    assert three["prelude"] == two["prelude"] and three["head"] == two["head"] == 2 * 5280 * 65536


def test_key_and_value_bytes_of_ouro() -> None:
    assert cache_bytes(lw.preset("ouro-1.4b"), depth=4, dtype=torch.bfloat16)["total"] == 786_432


@pytest.mark.parametrize(
    ("policy", "dtype"), [("every", torch.float32), ("every", torch.bfloat16), ("last", torch.float32), ("share(2)", torch.float32)]
)
@pytest.mark.parametrize(
    "name",
    [
        "huginn-tiny",
        "ouroboros-qwen2.5-3b-tiny",
        "retrofit-tinyllama-tiny",
        "universal-tiny",
        "chunk pooling",
        "dense",
        "adapters on every stack",
        "dense with a controller",
    ],
)
def test_cache_bytes_equal_the_storage_of_a_pass(name: str, policy: str, dtype: torch.dtype) -> None:
    config = VARIANTS[name]
    depth = 3 if config.is_looped else None
    cache = lw.LoopCache(config, capacity=20, policy=policy)
    with torch.no_grad():
        model = lw.LoopedForCausalLM(config).eval().to(dtype)
        model(torch.randint(0, config.vocab_size, (2, 20)), depth=depth, past_key_values=cache)
    expected = cache_bytes(config, depth=depth, batch=2, context=20, policy=policy, dtype=dtype)
    assert expected["total"] == cache.storage_bytes
    assert expected["running sums"] == sum(table.bytes for name, table in cache.tables.items() if name[1].startswith("adapters"))


@pytest.mark.parametrize("policy", ["every", "last", "share(2)"])
@pytest.mark.parametrize("name", ["huginn-tiny", "adapters on every stack"])
def test_cache_bytes_of_a_pass_that_reads_every_step(name: str, policy: str) -> None:
    config = VARIANTS[name]
    cache = lw.LoopCache(config, capacity=20, policy=policy)
    with torch.no_grad():
        ids = torch.randint(0, config.vocab_size, (2, 20))
        lw.LoopedForCausalLM(config).eval()(ids, depth=3, output_steps=True, past_key_values=cache)
    given = {"depth": 3, "batch": 2, "context": 20, "policy": policy, "dtype": FLOAT}
    assert cache_bytes(config, readings=3, **given)["total"] == cache.storage_bytes
    assert (cache_bytes(config, **given)["total"] < cache.storage_bytes) == (policy != "last")


def test_weight_bytes() -> None:
    assert weight_bytes(lw.preset("ouro-1.4b"), torch.bfloat16) == 2 * 1_434_652_673


class _Alive(TorchDispatchMode):
    """Follows the bytes of every storage that is made while it is on."""

    def __init__(self, model: lw.LoopedForCausalLM) -> None:
        super().__init__()
        self.sizes = {p.untyped_storage()._cdata: 0 for p in model.parameters()}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, storage._cdata)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return result


@pytest.mark.parametrize("name", [*TINY, "learned gate", "grown gate", "wide vocabulary", "dense"])
def test_inference_bytes_are_near_the_peak_of_a_pass(name: str) -> None:
    config = VARIANTS[name]
    model = _model(name)
    ids = torch.randint(0, config.vocab_size, (4, 32))
    with torch.no_grad():
        model(ids[:1, :2], use_cache=False)
        with _Alive(model) as alive:
            model(ids, use_cache=False)
    assert max(inference_bytes(config, batch=4, context=32, dtype=FLOAT).values()) == pytest.approx(alive.peak, rel=0.15)


@pytest.mark.parametrize("name", some(VARIANTS, KEPT))
def test_training_bytes_are_near_what_a_pass_keeps(name: str) -> None:
    config = VARIANTS[name]
    model = _model(name)
    ids = torch.randint(0, config.vocab_size, (2, 32))
    own = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(ids, labels=ids)
    real = sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in own)
    assert training_bytes(config, batch=2, context=32, dtype=FLOAT) == pytest.approx(real, rel=0.03)


def test_costs_refuse_a_depth_the_model_refuses() -> None:
    with pytest.raises(ValueError, match="beyond max_steps=3"):
        pass_flops(lw.preset("asura"), depth=4)
    with pytest.raises(ValueError, match="unknown policy"):
        cache_bytes(lw.preset("asura"), policy="sometimes", dtype=FLOAT)
