"""How each published system starts, written again from its code: stds at full width by formula, and draws at a small one."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import loopwright as lw
from loopwright.model.parts.init import INITS, ZERO, Law
from loopwright.model.presets import PRESETS
from tests.checkpoints.dense import source
from tests.systems.items import differs, same

RESIDUAL = ("self_attn.o_proj.weight", "mlp.down_proj.weight")  # maps whose output joins the residual stream


def laws(name: str, **changes: Any) -> dict[str, Law]:
    """How each map, embedding and bias of a preset at full size starts; nothing is allocated."""
    with torch.device("meta"):
        model = lw.build(name, **changes)
    found = {}
    for name, module in model.named_modules():
        found |= {f"{name}.{leaf}": law for leaf, (_, law) in zip(("weight", "bias"), model.start_of(module), strict=False)}
    return found


def maps(found: dict[str, Law]) -> dict[str, Law]:
    return {key: law for key, law in found.items() if key.endswith(".weight")}


def built(name: str, **changes: Any) -> lw.LoopedForCausalLM:
    torch.manual_seed(0)
    return lw.build(name, **changes)


def within(tensor: Tensor, most: float, std: float, rel: float = 0.02) -> bool:
    """Whether numbers have this std, and reach nearly up to `most` and no further."""
    return 0.98 * most < tensor.abs().max().item() <= most and tensor.std().item() == pytest.approx(std, rel=rel)


def constant(module: nn.Module | Tensor, value: float) -> bool:
    tensors = [module] if isinstance(module, Tensor) else list(module.parameters())
    return bool(tensors) and all(bool((tensor == value).all()) for tensor in tensors)


@same("Huginn", "start: normal of std √(2 / 5D) cut at three std, residual maps less by √264")
def test_huginn() -> None:
    width, run = 5280, 2 + 32 * 4 + 2
    std, found = math.sqrt(2 / (5 * width)), laws("huginn")
    assert len(maps(found)) == 8 * 7 + 3 and run == 132  # the head, which is the embedding, among them
    for key, law in maps(found).items():
        wanted = std / math.sqrt(2 * run) if key.endswith(RESIDUAL) else std
        assert law == ("truncated", pytest.approx(wanted)), key
    assert {law for key, law in found.items() if key.endswith("bias")} == {ZERO}
    model = built("huginn", hidden_size=110, intermediate_size=400, vocab_size=500, num_attention_heads=5, core_layers=2)
    std = math.sqrt(2 / 550)  # a normal cut at ±3 has 0.9866 of its std
    assert within(model.embed_tokens.weight, 3 * std, 0.9866 * std) and within(model.injection.proj.weight, 3 * std, 0.9866 * std)
    less = std / math.sqrt(2 * (4 + 2 * 32))
    assert within(model.core[1].mlp.down_proj.weight, 3 * less, 0.9866 * less)
    assert constant(model.norm, 1) and all(constant(block.mlp_norms, 1) for block in model.core)


@same("Huginn", "the embedding times √D")
def test_huginn_embedding() -> None:
    model = built("huginn-tiny", hidden_size=112, vocab_size=4000)
    e = model.token_vectors(torch.arange(4000)[None])
    assert e.std().item() == pytest.approx(0.9866 * math.sqrt(2 / 5), rel=0.01)


@differs("Huginn", "start: up map of the MLP")
def test_huginn_up() -> None:
    found = laws("huginn")
    assert found["core.0.mlp.up_proj.weight"] == found["core.0.mlp.gate_proj.weight"] == ("truncated", math.sqrt(2 / (5 * 5280)))


@same("Retrofitted recurrence", "start: the projection within ±1/√(2D), all else the dense model's")
def test_retrofitted_recurrence() -> None:
    dense = source("llama")
    model = lw.retrofit(dense, "retrofit", depth=3)
    width = model.config.hidden_size
    assert within(model.injection.proj.weight, (2 * width) ** -0.5, (6 * width) ** -0.5)
    old = [*dense.prelude]
    assert torch.equal(model.coda[-1].mlp.up_proj.weight, old[-1].mlp.up_proj.weight)
    assert torch.equal(model.embed_tokens.weight, dense.embed_tokens.weight)
    for name in ("retrofit-llama-1b", "retrofit-olmo2-1b", "retrofit-tinyllama"):
        assert laws(name)["injection.proj.weight"] == ("uniform", pytest.approx((6 * 2048) ** -0.5))


@same("Ouro", "start: N(0, 0.02), biases 0, norms 1 (the hub's code)")
def test_ouro() -> None:
    found = laws("ouro-2.6b")
    assert set(maps(found).values()) == {("normal", 0.02)} and found["halting.proj.bias"] == ZERO
    model = built("ouro-1.4b-tiny", hidden_size=128, vocab_size=2000)
    assert model.embed_tokens.weight.std().item() == pytest.approx(0.02, rel=0.01)
    assert model.halting.proj.weight.std().item() == pytest.approx(0.02, rel=0.25)
    assert constant(model.end_norm, 1) and constant(model.core[0].attention_norms, 1)


@same("STARS", "start of the addition transformer: N(0, 0.02), biases 0")
def test_stars_addition() -> None:
    found = laws("stars-addition")
    assert set(maps(found).values()) == {("normal", 0.02)} and "embed_positions.weight" in found
    assert {law for key, law in found.items() if key.endswith("bias")} == {ZERO}


@same(
    "Universal Transformer",
    "start: maps within ±√(6 / (in + out)), biases 0, that of halting 1 (tensor2tensor)",
)
def test_universal_maps() -> None:
    found = laws("universal")
    for key, inputs, outputs in (("self_attn.q_proj", 512, 512), ("mlp.up_proj", 512, 2048), ("mlp.down_proj", 2048, 512)):
        assert found[f"core.0.{key}.weight"] == ("uniform", pytest.approx(math.sqrt(2 / (inputs + outputs))))
        assert found[f"core.0.{key}.bias"] == ZERO
    model = built("universal", hidden_size=256, vocab_size=64)
    limit = math.sqrt(6 / (256 + 2048))
    assert within(model.core[0].mlp.up_proj.weight, limit, limit / math.sqrt(3))
    limit = math.sqrt(6 / 257)
    assert within(model.halting.weight, limit, limit / math.sqrt(3), rel=0.1) and constant(model.halting.bias, 1)


@same(
    "Universal Transformer",
    "start: embeddings N(0, 1/√D), times √D, the head tied to them",
)
def test_universal_embeddings() -> None:
    found = laws("universal")
    assert found["embed_tokens.weight"] == ("normal", pytest.approx(512**-0.5))
    model = built("universal", hidden_size=64, vocab_size=5000, num_attention_heads=4)
    assert model.lm_head.weight is model.embed_tokens.weight
    ids = torch.arange(4900, 4930)[None]
    e, p = model.embed(ids)
    assert torch.equal(e, 8.0 * model.embed_tokens.weight[ids]) and e.std().item() == pytest.approx(1.0, rel=0.03)
    s = torch.randn(1, 30, 64)
    assert torch.allclose(model.read_out(s, p), s @ model.embed_tokens.weight.T, atol=1e-5)


def test_the_factor_on_embeddings_is_in_every_consumer() -> None:
    """One pass, generation on a cache, the engine and embeddings from outside all scale by √D, once."""
    model = built("universal-tiny")
    assert model.config.embedding_scale == math.sqrt(32)
    ids = torch.randint(0, 96, (1, 6))
    logits = model(ids).logits
    assert torch.allclose(model(inputs_embeds=model.embed_tokens(ids)).logits, logits, atol=1e-6)
    tokens = ids
    for _ in range(5):
        tokens = torch.cat([tokens, model(tokens, use_cache=False).logits[:, -1:].argmax(-1)], dim=-1)
    assert torch.equal(model.generate(ids, max_new_tokens=5, do_sample=False), tokens)
    with lw.Engine(model) as engine:
        assert engine.submit(ids[0].tolist(), max_new_tokens=5).result().tokens == tokens[0, 6:].tolist()


@differs("Universal Transformer", "biases of the attention")
def test_universal_has_biases_in_attention() -> None:
    assert lw.preset("universal").attention_bias == ["q", "k", "v", "o"]
    assert constant(built("universal-tiny").core[0].self_attn.q_proj.bias, 0)


@same("Parcae", "start: the state times √(1/5), dt 0.805, the input's map the identity")
def test_parcae() -> None:
    model = lw.LoopedForCausalLM(lw.LoopedConfig(hidden_size=32, injection={"kind": "diagonal"}))
    part = model.injection
    bias = math.log(math.exp(-math.log(math.sqrt(1 / 5))) - 1)  # the inverse softplus of −log 0.447
    assert bias == pytest.approx(0.21194, abs=1e-5) and torch.allclose(part.step_size, torch.full((32,), bias))
    assert constant(part.rate, 0) and torch.equal(part.input_proj.data, torch.eye(32))
    assert torch.allclose(part.decay(), torch.full((32,), 0.4472136)) and math.log1p(math.exp(bias)) == pytest.approx(
        0.80472, abs=1e-5
    )


@differs("Parcae", "start: layers and embeddings")
def test_parcae_layers() -> None:
    model = lw.LoopedForCausalLM(lw.LoopedConfig(injection={"kind": "diagonal"}))
    assert {law for module in model.modules() for _, law in model.start_of(module)} == {("normal", 0.02)}


@same("Relaxed Recursive Transformers", "means take norms too")
def test_relaxed_tied_layers() -> None:
    dense = source("llama")
    layers = [*dense.prelude]
    model = lw.retrofit(dense, "relaxed", layout={"tied": len(layers) // 2}, adapters={"rank": 4})
    for i, block in enumerate(model.core):
        for name in ("self_attn.v_proj.weight", "mlp_norms.input.weight"):
            pair = [layers[i].get_parameter(name), layers[i + len(layers) // 2].get_parameter(name)]
            assert torch.allclose(block.get_parameter(name), torch.stack(pair).mean(0), atol=1e-7)


def updates(gain: float) -> tuple[Tensor, Tensor]:
    """The update that a step starts with, and the truncated SVD of W_l − W′; the gains of the layers' norms are 1 ± `gain`."""
    dense = source("llama")
    layers = [*dense.prelude]
    for sign, layer in zip((1, -1) * len(layers), layers, strict=False):
        layer.attention_norms.input.weight.data.fill_(1 + sign * gain)
    model = lw.retrofit(dense, "relaxed", layout={"tied": len(layers) // 2}, adapters={"rank": 4})
    factors = model.adapters[0].factors
    difference = layers[len(layers) // 2].self_attn.q_proj.weight - model.core[0].self_attn.q_proj.weight
    u, s, v = torch.linalg.svd(difference.double())
    return factors.b["q_proj"][1, 0].double() @ factors.a["q_proj"][1, 0].double(), u[:, :4] * s[:4] @ v[:4]


@same("Relaxed Recursive Transformers", "the SVD between equal norms")
def test_relaxed_updates() -> None:
    found, wanted = updates(0.0)
    assert torch.allclose(found, wanted, atol=1e-5) and wanted.abs().max().item() > 1e-3


@differs("Relaxed Recursive Transformers", "the SVD between norms of other gains")
def test_relaxed_updates_fold_the_norms() -> None:
    found, wanted = updates(0.3)
    assert (found - wanted).abs().max().item() > 1e-3


@same("ASURA", "start: maps within ±√(0.33 / (in · out)), biases ±1/√in, embeddings N(0, √(2 / 5D))")
def test_asura() -> None:
    found = laws("asura")
    for key, inputs, outputs in (
        ("core.3.self_attn.v_proj", 1024, 1024),
        ("core.12.mlp.down_proj", 4096, 1024),
        ("lm_head", 1024, 50304),
    ):
        limit = 1 / math.sqrt(inputs) * math.sqrt(0.33 / outputs)
        assert found[f"{key}.weight"] == ("uniform", pytest.approx(limit / math.sqrt(3)))
        assert found[f"{key}.bias"] == ("uniform", pytest.approx(1 / math.sqrt(3 * inputs)))
    assert found["embed_tokens.weight"] == ("normal", pytest.approx(math.sqrt(2 / 5120)))
    model = built("asura-tiny", hidden_size=64)
    limit = math.sqrt(0.33 / (128 * 64))  # the projection of each step: inputs, then state
    assert (
        within(model.injection.weight, limit, limit / math.sqrt(3))
        and 0.9 < model.injection.bias.abs().max().item() * math.sqrt(128) <= 1
    )


@differs("ASURA", "start: ABBA")
def test_asura_factors() -> None:
    model = built("asura-tiny", hidden_size=256)
    first, second = model.adapters[0].first, model.adapters[0].second
    assert first.a["mlp"].std().item() == pytest.approx(1 / 16, rel=0.05) and constant(second.b["mlp"], 0)
    assert first.b["mlp"].std().item() == pytest.approx(first.rank**-0.5, rel=0.1)


@same("Ouroboros", "start: gate 0.12 open, step embedding N(0, 1)")
def test_ouroboros() -> None:
    model = built("ouroboros-qwen2.5-3b-tiny", hidden_size=64)
    assert constant(model.gate.weight, 0) and constant(model.gate.bias, -2.0) and constant(model.end_norm, 1)
    assert torch.sigmoid(model.gate.bias[0]).item() == pytest.approx(0.1192, abs=1e-4)
    controller = model.adapters[0]
    assert constant(controller.heads, 0) and controller.step_embedding.std().item() == pytest.approx(1.0, rel=0.3)


def test_the_table_of_starts_names_every_preset() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text().split("## How a model starts")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w]+)` \| (.*?) \|", page, re.MULTILINE))
    assert set(rows) - {"init"} == set(INITS)
    named = {name: kind for kind, row in rows.items() for name in re.findall(r"`([\w.-]+)…?`", row)}  # or how they begin

    def told(preset: str) -> str:
        return next((kind for name, kind in named.items() if preset.startswith(name)), "normal")

    assert "all not named" in rows["normal"]
    assert {name: lw.preset(name).init["kind"] for name in PRESETS} == {name: told(name) for name in PRESETS}
