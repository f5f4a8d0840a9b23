"""The block against the STARS study's addition transformer: four norm layouts × three operators, golden to 1e-5."""

import json

import pytest
import torch
from safetensors.torch import load_file

import loopwright as lw
from loopwright.model.layers import ACTIVATIONS, Block
from loopwright.model.parts.part import FIRST
from loopwright.model.passes import Place
from tests.cases import gap, golden_folders

PLACEMENTS = {
    "pre_norm": {"ln_1_pre": "attention_norms.input", "ln_2_pre": "mlp_norms.input"},
    "post_norm": {"ln_1_post": "attention_norms.residual", "ln_2_post": "mlp_norms.residual"},
    "sandwich_branch": {
        "ln_1_pre": "attention_norms.input", "ln_1_post": "attention_norms.output",
        "ln_2_pre": "mlp_norms.input", "ln_2_post": "mlp_norms.output",
    },
    "sandwich_dual": {
        "ln_1_pre": "attention_norms.input", "ln_1_post": "attention_norms.residual",
        "ln_2_pre": "mlp_norms.input", "ln_2_post": "mlp_norms.residual",
    },
}  # fmt: skip
NORMS = {"LayerNorm": ("layer", 1e-5), "RMSNorm": ("rms", torch.finfo(torch.float32).eps), "SimpleNorm": ("simple", 1e-5)}


def stars_model(config: dict, weights: dict, structure: str, operator: str) -> lw.LoopedForCausalLM:
    kind, eps = NORMS[operator]
    model = lw.build(
        "stars-addition", hidden_size=config["d_model"], num_attention_heads=config["n_heads"], intermediate_size=config["d_ff"],
        max_position_embeddings=config["max_len"], dropout=config["dropout"], norm={"kind": kind, "eps": eps},
        norm_placement=sorted({name.split(".")[1] for name in PLACEMENTS[structure].values()}),
        final_norm={"kind": "layer", "eps": 1e-5},
    )  # fmt: skip
    theirs = {k.removeprefix(f"{structure}.{operator}."): v for k, v in weights.items() if k.startswith(f"{structure}.{operator}.")}
    ours = {
        "embed_tokens.weight": theirs.pop("token_embedding.weight"),
        "embed_positions.weight": theirs.pop("position_embedding.weight"),
        "lm_head.weight": theirs.pop("lm_head.weight"),
        "norm.weight": theirs.pop("ln_f.weight"),
        "norm.bias": theirs.pop("ln_f.bias"),
    }
    block = {key.removeprefix("layers.0."): theirs.pop(key) for key in list(theirs)}
    for part in ("weight", "bias"):
        for name, piece in zip("qkv", block.pop(f"attn.c_attn.{part}").chunk(3), strict=True):
            ours[f"core.0.self_attn.{name}_proj.{part}"] = piece
        ours[f"core.0.self_attn.o_proj.{part}"] = block.pop(f"attn.c_proj.{part}")
        ours[f"core.0.mlp.up_proj.{part}"] = block.pop(f"mlp.c_fc.{part}")
        ours[f"core.0.mlp.down_proj.{part}"] = block.pop(f"mlp.c_proj.{part}")
    for key, value in block.items():
        norm, part = key.rsplit(".", 1)
        ours[f"core.0.{PLACEMENTS[structure][norm]}.{part}"] = value
    model.load_state_dict(ours, strict=True)
    return model


@pytest.mark.parametrize("folder", golden_folders("stars-addition"), ids=lambda f: f.parent.parent.name)
@pytest.mark.parametrize("structure", PLACEMENTS)
@pytest.mark.parametrize("operator", NORMS)
def test_golden_stars(folder, structure, operator):
    config, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    golden = load_file(folder / "golden.safetensors")
    name = f"{structure}.{operator}"
    model = stars_model(config, weights, structure, operator)
    # their labels are already shifted by one; ours are the input ids
    labels = torch.cat([torch.full_like(golden["labels"][:, :1], -100), golden["labels"][:, :-1]], dim=1)
    with torch.no_grad():
        for depth in (1, 4):
            out = model(golden["input_ids"], labels=labels, depth=depth)
            assert gap(out.logits, golden[f"{name}.logits_loops_{depth}"]) < 1e-5
            assert gap(out.loss[None], golden[f"{name}.loss_loops_{depth}"]) < 1e-5
        state = golden["input_state"]
        _, p = model.embed(inputs_embeds=state)
        assert gap(model.core[0](state, p, Place("core", FIRST, 0)), golden[f"{name}.block_output"]) < 1e-5


def test_stars_has_the_published_size():
    assert sum(p.numel() for p in lw.build("stars-addition").parameters()) == 2_375_680


@pytest.mark.parametrize("mlp", ACTIVATIONS)
@pytest.mark.parametrize("placement", [["input"], ["residual"], ["output"], ["input", "output"], ["input", "residual"], []])
def test_block_is_its_equation(mlp, placement):
    torch.manual_seed(0)
    config = lw.LoopedConfig(hidden_size=16, intermediate_size=24, num_attention_heads=2, mlp=mlp, norm_placement=placement)
    model = lw.LoopedForCausalLM(config)
    block: Block = model.core[0]
    for norms in (block.attention_norms, block.mlp_norms):
        for parameter in norms.parameters():
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    x = torch.randn(2, 5, 16)
    _, p = model.embed(inputs_embeds=x)
    place = Place("core", FIRST, 0)

    def wrapped(norms, x, f):
        return norms.residual(x + norms.output(f(norms.input(x))))

    expected = wrapped(block.attention_norms, x, lambda a: block.self_attn(a, p, place, None))
    expected = wrapped(block.mlp_norms, expected, lambda a: block.mlp(a, 0, None))
    assert torch.equal(block(x, p, place), expected)
    present = {name for name, m in block.attention_norms.named_children() if not isinstance(m, torch.nn.Identity)}
    assert present == set(placement)
