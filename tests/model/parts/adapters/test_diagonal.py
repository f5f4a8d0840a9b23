"""The controller against the Ouroboros reference: golden to 1e-5, step by step and as a whole model."""

import json

import pytest
import torch
from safetensors.torch import load_file

import loopwright as lw
from loopwright.checkpoints.families.ouroboros import TARGETS, renamed
from loopwright.model.causal_lm import plain_config
from loopwright.model.parts.part import FIRST, StepIndex
from loopwright.model.passes import Adaptation, Effects, Place
from loopwright.retrofitting.start import start_bases
from tests.cases import gap, golden_folders, noisy
from tests.checkpoints.layouts import Layout


def base_layer(source: dict, layer: int) -> dict:
    names = {"input_layernorm": "attention_norms.input", "post_attention_layernorm": "mlp_norms.input"}
    prefix, result = f"model.layers.{layer}.", {}
    for key, value in source.items():
        if key.startswith(prefix):
            name, part = key.removeprefix(prefix).rsplit(".", 1)
            result[f"{names.get(name, name)}.{part}"] = value
    return result


def own_bases(model: lw.LoopedForCausalLM, source: dict, layers: int, recurrent: int, removed: list[int]) -> None:
    """Starts the bases of the model from the source's layers, as a conversion does."""
    config = plain_config(model.config).to_dict() | {"prelude_layers": layers}
    with torch.device("meta"):
        dense = lw.LoopedForCausalLM(lw.LoopedConfig(**config))
    dense.to_empty(device="cpu")
    for i, block in enumerate(dense.prelude):
        block.load_state_dict(base_layer(source, i))
    layout = Layout((), (recurrent,), (), (tuple(sorted([*removed, recurrent])),), 3)
    start_bases(model, dense, layout)


def ouroboros(folder, *, own_svd: bool) -> tuple[lw.LoopedForCausalLM, dict]:
    description = json.loads((folder / "config.json").read_text())
    base, options = description["base"], description["ouroboros"]
    source, trained = load_file(folder / "model.safetensors"), load_file(folder / "sgrc.safetensors")
    golden = load_file(folder / "golden.safetensors")
    with pytest.warns(UserWarning, match="leaks future"):
        model = lw.build(
            "ouroboros-qwen2.5-3b", vocab_size=base["vocab_size"], hidden_size=base["hidden_size"],
            intermediate_size=base["intermediate_size"], num_attention_heads=base["num_attention_heads"],
            num_key_value_heads=base["num_key_value_heads"], prelude_layers=1, coda_layers=1, depth=3,
            max_steps=options["max_recurrence"],
            tie_word_embeddings=False, norm={"kind": "rms", "eps": base["rms_norm_eps"]},
            adapters=[{
                "kind": "controller", "rank": options["lora_rank"], "alpha": options["lora_alpha"],
                "style": options["controller_style_dim"], "pooling": "sequence", "leak_future": True,
            }],
        )  # fmt: skip
    ours = {
        "embed_tokens.weight": source["model.embed_tokens.weight"],
        "norm.weight": source["model.norm.weight"],
        "lm_head.weight": source["lm_head.weight"],
        **renamed(trained),
    }
    for stack, layer in (("prelude", 0), ("core", options["recurrent_layer_idx"]), ("coda", base["num_hidden_layers"] - 1)):
        ours |= {f"{stack}.0.{k}": v for k, v in base_layer(source, layer).items()}
    for target in TARGETS:
        a, b = golden[f"svd.{target}.A"], golden[f"svd.{target}.B"]
        ours[f"adapters.0.bases.a.{target}"], ours[f"adapters.0.bases.b.{target}"] = a[None], b[None]
    model.load_state_dict(ours, strict=True)
    if own_svd:
        bases = model.adapters[0].bases.requires_grad_(False)
        for table in (*bases.a.values(), *bases.b.values()):
            table.zero_()
        own_bases(model, source, base["num_hidden_layers"], options["recurrent_layer_idx"], description["removed_layers"])
        for target in TARGETS:
            assert gap(bases.b[target][0] @ bases.a[target][0], golden[f"svd.{target}.BA"]) < 1e-5
    return model, golden


@pytest.mark.parametrize("own_svd", [False, True])
@pytest.mark.parametrize("folder", golden_folders("ouroboros-v2-step"), ids=lambda f: f.parent.parent.name)
def test_golden_ouroboros(folder, own_svd):
    bound = 1e-4 if own_svd else 1e-5
    model, golden = ouroboros(folder, own_svd=own_svd)
    controller = model.adapters[0]
    with torch.no_grad():
        state = golden["state"]
        _, p = model.embed(inputs_embeds=state)
        for t in (0, 1, 6):
            row = StepIndex(t, min(t, 4))
            diagonals = controller.diagonals(row, state, p)
            for i, target in enumerate(TARGETS):
                assert gap(diagonals[:, 0, 0, i], golden[f"step{t}.delta.{target}"]) < bound
            state = model.step(state, state, t, p)
            assert gap(state, golden[f"step{t}.new_state"]) < bound
        for depth in (1, 3):
            out = model(golden["input_ids"], depth=depth, labels=golden["input_ids"])
            assert gap(out.logits, golden[f"logits_depth_{depth}"]) < bound
            assert gap(out.loss[None], golden[f"loss_depth_{depth}"]) < bound
        assert gap(model.without_adapters()(golden["input_ids"]).logits, golden["logits_base_only"]) < 1e-5


@pytest.mark.parametrize("folder", golden_folders("ouroboros-v2-step"), ids=lambda f: f.parent.parent.name)
def test_golden_parts_of_a_step(folder):
    """The layer, the norm and the gate each, so that two errors cannot cancel."""
    model, golden = ouroboros(folder, own_svd=False)
    with torch.no_grad():
        _, p = model.embed(inputs_embeds=golden["state"])
        index = StepIndex(0, 0)
        place = Place("core", FIRST, 0)
        adapt = Adaptation([model.adapters[0].begin(index, golden["state"], p)])
        assert gap(model.core[0](golden["state"], p, place), golden["step0.layer_output_without_delta"]) < 1e-5
        assert gap(model.core[0](golden["state"], p, place, adapt), golden["step0.layer_output"]) < 1e-5
        normed = model.end_norm(golden["step0.layer_output"], index)
        assert gap(normed, golden["step0.normed"]) < 1e-5
        assert gap(model.gate(golden["state"], normed, index), golden["step0.new_state"]) < 1e-5


def test_static_diagonal_equals_changed_weights():
    model = noisy("ouroboros-qwen2.5-3b-tiny", gate={"kind": "none"}, adapters=[{"kind": "diagonal", "rank": 4, "alpha": 8.0}])
    plain = lw.build("ouroboros-qwen2.5-3b-tiny", gate={"kind": "none"}, adapters=[])
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("adapters")}
    adapter = model.adapters[0]
    e, p = model.embed(torch.randint(0, 96, (2, 6)))
    for t in (0, 3, 9):
        plain.load_state_dict(state)
        for i, name in enumerate(TARGETS):
            a, b = adapter.bases.a[name][0], adapter.bases.b[name][0]
            linear = plain.core[0].get_submodule(("self_attn." if name[0] in "qkvo" else "mlp.") + name)
            linear.weight.data += 2.0 * (b * adapter.table[min(t, 5), 0, i]) @ a
        assert gap(model.step(e, e, t, p), plain.step(e, e, t, p)) < 2e-5


def test_bases_are_frozen_and_the_rest_is_not():
    model = lw.build("ouroboros-qwen2.5-3b-tiny")
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if ".bases." in name}
    assert len(frozen) == 14


def test_controller_sizes_of_the_paper():
    with torch.device("meta"):
        model = lw.LoopedForCausalLM(lw.preset("ouroboros-qwen2.5-3b"))
    trained = sum(p.numel() for p in model.adapters[0].parameters() if p.requires_grad)
    assert trained == 692_864
    assert sum(p.numel() for p in model.adapters[0].bases.parameters()) == 1_662_976


def test_leak_needs_an_explicit_word():
    spec = {"kind": "controller", "rank": 4, "style": 8, "pooling": "sequence"}
    with pytest.raises(ValueError, match="leak_future"):
        lw.build("ouroboros-qwen2.5-3b-tiny", adapters=[spec])
    with pytest.raises(ValueError, match="did you mean 'prefix'"):
        lw.build("ouroboros-qwen2.5-3b-tiny", adapters=[{"kind": "controller", "pooling": "prefx"}])
    with pytest.warns(UserWarning, match="leaks future tokens"):
        model = lw.build("ouroboros-qwen2.5-3b-tiny", adapters=[{**spec, "leak_future": True}])
    with pytest.raises(ValueError, match="future"):
        model.generate(torch.zeros(1, 3, dtype=torch.long), max_new_tokens=2)
    with pytest.raises(ValueError, match="future"):
        model.generate(torch.zeros(1, 3, dtype=torch.long), max_new_tokens=2, use_cache=False)
    with pytest.raises(ValueError, match="cannot be cached"):
        model(torch.zeros(1, 3, dtype=torch.long), use_cache=True)


def plainly(bases, diagonals):
    """The equation as it is written, map by map: y + (alpha/rank) · B ((A x) ⊙ d)."""

    def update(layer, name, x, weight):
        if name not in bases.names:
            return None
        d = diagonals[..., layer, bases.names.index(name), :]
        return bases.scale * ((x @ bases.a[name][layer].T) * d) @ bases.b[name][layer].T

    return Effects(update=update)


@pytest.mark.parametrize("targets", ["linears", ["q_proj", "v_proj", "down_proj"], ["up_proj"]], ids=str)
@pytest.mark.parametrize("leading", [(2, 5), (2, 1), ()], ids=str)
@pytest.mark.parametrize("mlp", ["swiglu", "relu"])
def test_stacked_products_are_the_plain_equation(targets, leading, mlp):
    """Outputs and gradients: of the weights, trainable here, of the input and of the diagonals."""
    adapter = {"kind": "diagonal", "rank": 3, "alpha": 6.0, "targets": targets}
    model = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3, mlp=mlp, adapters=[adapter]).double()
    bases, block, place = model.adapters[0].bases, model.core[0], Place("core", FIRST, 0)
    generator = torch.Generator().manual_seed(0)
    diagonals = torch.randn(*leading, 1, len(bases.names), 3, generator=generator, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 5, model.config.hidden_size, generator=generator, dtype=torch.float64, requires_grad=True)
    _, p = model.embed(inputs_embeds=x.detach())
    learned = [x, diagonals, *block.parameters()]
    results = []
    for effects in (plainly(bases, diagonals), Effects(modulate=bases.modulated(diagonals))):
        y = block(x, p, place, Adaptation([effects]))
        results.append([y, *torch.autograd.grad(y.square().mean(), learned)])
    assert gap(results[0][0], block(x, p, place)) > 1e-2, "the modulation must have an effect"
    for plain, stacked in zip(*results, strict=True):
        assert gap(plain, stacked) < 1e-12 * max(1.0, plain.abs().max().item())


def test_a_frozen_layer_keeps_no_gradient_and_its_diagonals_do():
    """With nothing else to train, and an input without a gradient, in-place sums still carry the diagonals'."""
    model = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3).requires_grad_(False)
    model.adapters[0].heads.requires_grad_(True)
    ids = torch.randint(0, 96, (2, 6))
    model(ids, labels=ids, depth=2).loss.backward()
    assert model.adapters[0].heads.grad.abs().sum() > 0
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["adapters.0.heads"]


@torch.no_grad()
def test_modulation_under_autocast():
    model = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3)
    ids = torch.randint(0, 96, (2, 6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(ids, depth=2).logits.float()
    assert gap(low, model(ids, depth=2).logits) < 0.2
