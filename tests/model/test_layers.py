"""Norms, attention and the block against torch's own, slow or independent forms, and golden numbers."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import loopwright as lw
from loopwright.model.layers import ACTIVATIONS, NORMS, Block, LayerNorm, RMSNorm, Rotary, SimpleNorm, attend, build_norm, rotate
from loopwright.model.parts.part import FIRST, StepIndex
from loopwright.model.passes import Place
from tests.cases import gap, golden_folders

WIDTH = 24
EPS = 1e-5


def made(kind: str, steps: int | None = None, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    norm = build_norm({"kind": kind, "eps": EPS}, WIDTH, steps=steps)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    return norm.to(dtype)


def sample(dtype: torch.dtype = torch.float32, scale: float = 3.0) -> torch.Tensor:
    return (torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1)) * scale + 0.5).to(dtype)


def by_torch(norm: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    if isinstance(norm, RMSNorm):
        return F.rms_norm(x, (WIDTH,), norm.weight, EPS)
    if isinstance(norm, LayerNorm):
        return F.layer_norm(x, (WIDTH,), norm.weight, norm.bias, EPS)
    return F.layer_norm(x, (WIDTH,), None, None, EPS)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_equal_to_torch_in_float32(kind, scale):
    norm, x = made(kind), sample(scale=scale)
    assert gap(norm(x), by_torch(norm, x)) < 2e-6


@pytest.mark.parametrize("kind", NORMS)
def test_equal_to_the_equation_in_float64(kind):
    norm, x = made(kind, dtype=torch.float64), sample(torch.float64)
    if kind == "rms":
        y = norm.weight * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()
    else:
        y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + EPS).sqrt()
        y = y * norm.weight + norm.bias if kind == "layer" else y
    assert gap(norm(x), y) < 1e-12


def test_rms_in_bfloat16_rounds_before_the_weight():
    """Llama's order: normalise in float32, cast, then multiply. Bitwise, since released weights were trained with it."""
    norm, x = made("rms", dtype=torch.bfloat16), sample(torch.bfloat16)
    wide = x.float()
    expected = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(torch.bfloat16) * norm.weight
    assert torch.equal(norm(x), expected)
    late = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * norm.weight.float()).to(torch.bfloat16)
    assert not torch.equal(late, expected), "the two orders must differ here, or this test could not fail"


@pytest.mark.parametrize("kind", ["layer", "simple"])
def test_layer_norms_in_bfloat16_are_torchs(kind):
    norm, x = made(kind, dtype=torch.bfloat16), sample(torch.bfloat16)
    assert torch.equal(norm(x), by_torch(norm, x))


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_dtype_and_gradient(kind, dtype):
    for steps, step in ((None, None), (4, StepIndex(2, 2))):
        norm, x = made(kind, steps, dtype), sample(dtype).requires_grad_()
        y = norm(x) if step is None else norm(x, step)
        assert y.shape == x.shape and y.dtype == dtype
        y.float().square().sum().backward()
        for tensor in (x, *norm.parameters()):
            assert tensor.grad is not None and tensor.grad.isfinite().all() and tensor.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_start_is_plain_normalisation(kind):
    for steps, step in ((None, None), (3, StepIndex(1, 1))):
        norm, x = made(kind, steps), sample()
        norm.start()
        reference = NORMS["simple"](WIDTH, eps=EPS)(x) if kind == "layer" else F.rms_norm(x, (WIDTH,), None, EPS)
        assert torch.equal(norm(x) if step is None else norm(x, step), reference)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_step_per_row_is_each_row_alone(kind, dtype):
    norm, x = made(kind, steps=4, dtype=dtype), sample(dtype)
    t = torch.tensor([3, 0, 2])
    mixed = norm(x, StepIndex(t, t))
    for row, step in enumerate(t.tolist()):
        assert torch.equal(mixed[row : row + 1], norm(x[row : row + 1], StepIndex(step, step)))


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_row_of_a_step_table_is_a_norm_of_its_own(kind):
    table, one, x = made(kind, steps=3), made(kind), sample()
    for step in range(3):
        one.load_state_dict({name: rows[step] for name, rows in table.state_dict().items()})
        assert gap(table(x, StepIndex(step, step)), one(x)) < 2e-6


def test_simple_norm_has_no_parameters():
    assert not list(SimpleNorm(WIDTH, eps=EPS, steps=3).parameters())


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
OPERATORS = {"LayerNorm": ("layer", 1e-5), "RMSNorm": ("rms", torch.finfo(torch.float32).eps), "SimpleNorm": ("simple", 1e-5)}


def stars_model(config: dict, weights: dict, structure: str, operator: str) -> lw.LoopedForCausalLM:
    kind, eps = OPERATORS[operator]
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
@pytest.mark.parametrize("operator", OPERATORS)
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
