"""Merging, parts that are saved alone, and parts of Ouroboros' public code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import loopwright as lw
from tests.cases import gap, golden_folders, noisy
from tests.checkpoints.dense import FAMILIES, IDS, source
from tests.checkpoints.families.test_ouroboros import nested

LOW_RANK = {"kind": "low-rank", "rank": 2}
ALL_STACKS = [{**LOW_RANK, "stack": stack} for stack in ("prelude", "core", "coda")]
LAYERS: dict[str, Any] = {"prelude": [0, 1], "core": [3], "coda": [4, 5]}
TINY: dict[str, Any] = {"prelude_layers": 1, "core_layers": 2, "coda_layers": 1, "depth": 1, "max_steps": 1}


@torch.no_grad()
def stirred(model: lw.LoopedForCausalLM, std: float = 0.1) -> lw.LoopedForCausalLM:
    """Gives the adapters values that all count."""
    generator = torch.Generator().manual_seed(11)
    for parameter in model.adapters.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter) * std)
    return model


def healed(family: str = "llama", **changes: Any) -> lw.LoopedForCausalLM:
    """Returns a healed model of a family with adapters that count."""
    return stirred(lw.retrofit(source(family), "healed", **LAYERS, **{"adapters": ALL_STACKS, **changes}))


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    """Returns the logits of a pass."""
    return model(ids).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_a_healed_model_is_one_of_its_family(family: str, tmp_path: Path) -> None:
    """The merged model equals the given one, and transformers' own class reads the exported folder to the same logits."""
    model = healed(family)
    assert gap(logits(model), logits(model.without_adapters())) > 0.1, "the adapters must do something, or this says nothing"
    merged = lw.merge(model)
    assert gap(logits(merged), logits(model)) < 1e-5
    assert not merged.config.is_looped and merged.config.prelude_layers == 5 and not merged.config.adapters
    assert lw.export(merged, tmp_path, family=family).name == family
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert theirs.config.model_type == family and not any(report.values())
    assert gap(logits(theirs), logits(model)) < 1e-5
    assert gap(logits(lw.load(tmp_path)), logits(merged)) == 0


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_biases_and_a_scale(family: str, tmp_path: Path) -> None:
    """Biases of the adapters join those of the maps, or become them; a layer without any gets zeros; alpha counts."""
    adapters = [
        {**LOW_RANK, "stack": "prelude", "bias": True, "alpha": 6.0},
        {**LOW_RANK, "alpha": 1.0},
        {**LOW_RANK, "stack": "coda", "bias": True, "targets": ["q_proj", "down_proj"]},
    ]
    model = healed(family, adapters=adapters)
    merged = lw.merge(model)
    assert merged.config.attention_bias == ["q", "k", "v", "o"] and merged.config.mlp_bias
    assert gap(logits(merged), logits(model)) < 1e-5
    assert merged.get_parameter("prelude.2.self_attn.o_proj.bias").abs().max() == 0
    assert merged.get_parameter("prelude.0.self_attn.o_proj.bias").abs().max() > 0
    assert lw.export(merged, tmp_path).name == "llama"  # Qwen2 has no bias on the other maps
    assert gap(logits(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)), logits(model)) < 1e-5


def test_only_the_biases_that_the_adapters_have_are_added() -> None:
    model = healed(adapters=[{**LOW_RANK, "stack": "coda", "bias": True, "targets": ["v_proj"]}])
    merged = lw.merge(model)
    assert merged.config.attention_bias == ["v"] and not merged.config.mlp_bias
    assert gap(logits(merged), logits(model)) < 1e-5


def test_two_adapters_of_one_stack_are_summed() -> None:
    model = healed(adapters=[*ALL_STACKS, {**LOW_RANK, "targets": ["q_proj"], "alpha": 4.0}])
    assert gap(logits(lw.merge(model)), logits(model)) < 1e-5


@pytest.mark.parametrize(
    "changes",
    [
        {"mlp": "gelu", "norm": {"kind": "layer"}, "positions": "learned", "head_bias": True, "embedding_norm": True},
        {"norm_placement": ["input", "residual"], "qk_norm": "head", "rope_layout": "interleaved", "embedding_scale": 3.0},
        {"final_norm": {"kind": "none"}, "tie_word_embeddings": False, "beyond_max_steps": "repeat"},
    ],
)
def test_blocks_of_other_kinds(changes: dict[str, Any]) -> None:
    """What surrounds the layers, and what kind they are, is taken over as it is."""
    torch.manual_seed(2)
    model = stirred(noisy_config(**TINY, adapters=ALL_STACKS, **changes))
    merged = lw.merge(model)
    assert not merged.config.is_looped and merged.config.beyond_max_steps == "refuse"
    assert gap(logits(merged), logits(model)) < 1e-5 * max(1.0, logits(model).abs().max().item())


def noisy_config(**fields: Any) -> lw.LoopedForCausalLM:
    """Returns a small model of a config, every parameter moved."""
    model = lw.LoopedForCausalLM(lw.LoopedConfig(hidden_size=32, intermediate_size=48, vocab_size=96, **fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def test_a_dense_model_with_adapters_and_one_without() -> None:
    model = stirred(noisy_config(prelude_layers=2, core_layers=0, coda_layers=1, adapters=[{**LOW_RANK, "stack": "coda"}]))
    merged = lw.merge(model)
    assert merged.config.prelude_layers == 3 and gap(logits(merged), logits(model)) < 1e-5
    again = lw.merge(merged)
    assert torch.equal(logits(again), logits(merged)) and again.embed_tokens.weight is not merged.embed_tokens.weight


def test_a_looped_core_without_adapters_stays(tmp_path: Path) -> None:
    """Adapters on the prelude and the coda alone are folded; the loop, its parts and its depths stay as they are."""
    ends = [{**LOW_RANK, "stack": "prelude"}, {**LOW_RANK, "stack": "coda", "bias": True}]
    model = stirred(lw.retrofit(source(), "retrofit", **LAYERS, adapters=ends, depth=3))
    merged = lw.merge(model)
    assert merged.config.depth == 3 and merged.config.core_layers == 1 and not merged.config.adapters
    with torch.no_grad():
        for depth in (1, 3, 5):
            assert gap(merged(IDS, depth=depth).logits, model(IDS, depth=depth).logits) < 1e-5
    plain = stirred(lw.retrofit(source(), "retrofit", **LAYERS, adapters=ends[:1], depth=3))
    assert lw.export(lw.merge(plain), tmp_path).name == "retrofit-llama"
    assert torch.equal(logits(lw.load(tmp_path)), logits(lw.merge(plain)))


def test_tables_of_a_looped_core_stay() -> None:
    model = stirred(
        noisy_config(prelude_layers=1, depth=2, max_steps=3, end_norm="per-step", gate={"kind": "learned"},
                     adapters=[{**LOW_RANK, "stack": "prelude"}])
    )  # fmt: skip
    merged = lw.merge(model)
    assert merged.config.max_steps == 3 and gap(logits(merged), logits(model)) < 1e-5


def test_the_given_model_is_left_alone() -> None:
    model = healed("qwen2")
    model.requires_grad_(False)
    model.generation_config.eos_token_id = 3
    before = {name: value.clone() for name, value in model.named_parameters()}
    merged = lw.merge(model)
    places = {value.data_ptr() for value in model.parameters()}
    assert not places & {value.data_ptr() for value in merged.parameters()}
    with torch.no_grad():
        for value in merged.parameters():
            value.zero_()
    merged.generation_config.eos_token_id = 4
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    assert model.generation_config.eos_token_id == 3 and model.config.adapters and model.config.core_layers == 1
    assert merged.lm_head.weight is merged.embed_tokens.weight and all(p.requires_grad for p in merged.parameters())
    assert not merged.training


def test_the_dtype_is_kept_and_sums_are_float32() -> None:
    """In bfloat16 each folded weight is the float32 sum, rounded once; what has no adapter keeps its bits."""
    model = healed(adapters=[*ALL_STACKS, {**LOW_RANK, "alpha": 6.0}])
    model.bfloat16()
    merged = lw.merge(model)
    assert merged.dtype == torch.bfloat16 == merged.config.dtype
    assert {value.dtype for value in merged.parameters()} == {torch.bfloat16}
    wide = lw.merge(healed(adapters=[*ALL_STACKS, {**LOW_RANK, "alpha": 6.0}]).bfloat16().float())
    expected = {name: value.bfloat16() for name, value in wide.named_parameters()}
    assert all(torch.equal(value, expected[name]) for name, value in merged.named_parameters())


CORE = {"prelude_layers": 1, "core_layers": 1, "depth": 1}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "controller": (
        {**CORE, "max_steps": 1, "adapters": [{"kind": "controller", "rank": 4}]},
        "merge: adapters[0] (controller on the core) cannot be folded: it reads the input; allowed: low-rank",
    ),
    "signal": (
        {**CORE, "adapters": [{"kind": "sinusoidal"}]},
        "merge: adapters[0] (sinusoidal on the core) cannot be folded: it shifts the state; allowed: low-rank",
    ),
    "other": (
        {**CORE, "max_steps": 1, "adapters": [LOW_RANK, {"kind": "abba", "stack": "prelude"}]},
        "merge: adapters[1] (abba on the prelude) cannot be folded: it does not say what it adds to a weight; allowed: low-rank",
    ),
    "branch": (
        {**CORE, "max_steps": 1, "adapters": [{**LOW_RANK, "targets": ["q_proj", "mlp"]}]},
        "merge: adapters[0] (low-rank on the core) cannot be folded: it runs beside a whole branch (mlp), not a linear map; "
        "allowed: targets among q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
    ),
    "steps": (
        {**CORE, "depth": 2, "max_steps": 4, "adapters": [LOW_RANK]},
        "merge: adapters[0] (low-rank on the core) cannot be folded: the core has one weight for several steps (depth 2, "
        "max_steps 4); allowed: ",
    ),
    "tables": (
        {**CORE, "max_steps": 2, "adapters": [LOW_RANK]},
        "merge: adapters[0] (low-rank on the core) cannot be folded: the core has one weight for several steps (depth 1, "
        "max_steps 2); allowed: ",
    ),
    "gate": (
        {**CORE, "max_steps": 1, "gate": {"kind": "learned"}, "end_norm": "every", "adapters": [LOW_RANK]},
        "merge: adapters[0] (low-rank on the core) cannot be folded: the core has gate 'learned', end_norm 'every'; allowed: a "
        "core that runs once (depth 1, max_steps 1) with state 'input', injection 'none', gate 'none', halting 'none', end_norm "
        "'never', layer_post_norm 'none'",
    ),
    "relaxed": (
        {**CORE, "depth": 3, "max_steps": 3, "gate": {"kind": "mix"}, "adapters": [{**LOW_RANK, "stack": "prelude"}, LOW_RANK]},
        "merge: adapters[1] (low-rank on the core) cannot be folded: the core has one weight for several steps (depth 3, "
        "max_steps 3), gate 'mix'; allowed: ",
    ),
    "nothing": (
        {**CORE, "depth": 4},
        "merge: there is no adapter to fold, and the core cannot become plain layers: the core has one weight for several steps "
        "(depth 4, max_steps None); allowed: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_folded_is_refused(name: str) -> None:
    fields, line = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(line)) as caught:
        lw.merge(noisy_config(**fields))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "part",
    [
        {"state": {"kind": "zero"}}, {"injection": {"kind": "add"}}, {"halting": {"kind": "exit"}}, {"end_norm": "last"},
        {"end_norm": "per-step"}, {"layer_post_norm": "per-step"}, {"layer_post_norm": "shared"},
    ],
)  # fmt: skip
def test_every_part_of_a_core_is_named(part: dict[str, Any]) -> None:
    (name,) = part
    with pytest.raises(ValueError, match=f"cannot be folded: the core has {name} '"):
        lw.merge(noisy_config(**CORE, max_steps=1, adapters=[LOW_RANK], **part))


def test_a_model_of_others_is_refused() -> None:
    with pytest.raises(TypeError, match=r"merge: the model is a Linear; allowed: what lw\.load, lw\.retrofit"):
        lw.merge(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


NAMES = ["asura-tiny", "ouroboros-qwen2.5-3b-tiny", "relaxed-tiny", "huginn-tiny", "ouro-1.4b-tiny"]
IDS = torch.arange(10)[None]


def fresh_parts(model: lw.LoopedForCausalLM, name: str) -> lw.LoopedForCausalLM:
    """Returns a model with the same base and parts at their start."""
    torch.manual_seed(99)
    other = lw.build(name)
    base = {n: p for n, p in model.state_dict().items() if n.split(".")[0] in ("embed_tokens", "embed_norm", "norm", "lm_head")}
    base |= {n: p for n, p in model.state_dict().items() if n.split(".")[0] in ("prelude", "core", "coda")}
    if model.config.end_norm == "every":
        base["end_norm.weight"] = model.end_norm.weight.detach()
    other.load_state_dict(base, strict=False)
    return other


@pytest.mark.parametrize("name", NAMES)
def test_parts_go_back_onto_their_base(name: str, tmp_path: Path) -> None:
    model = noisy(name)
    lw.save_adapters(model, tmp_path / "parts")
    stored = load_file(tmp_path / "parts" / "adapters.safetensors")
    assert stored and not any(n.startswith(("core.", "prelude.", "coda.", "embed", "lm_head", "norm.")) for n in stored)
    plain = fresh_parts(model, name)
    assert not torch.equal(plain(IDS).logits, model(IDS).logits) or name == "ouro-1.4b-tiny"
    whole = lw.load_adapters(plain, tmp_path / "parts")
    assert torch.equal(whole(IDS).logits, model(IDS).logits)
    assert whole.embed_tokens.weight is plain.embed_tokens.weight and not whole.training
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))


def test_a_base_can_be_a_folder_and_lack_the_parts(tmp_path: Path) -> None:
    """The parts bring the config: a plainly looped base becomes the adapted model."""
    model = noisy("relaxed-tiny")
    plain = lw.build("relaxed-tiny", adapters=[], max_steps=None)
    plain.load_state_dict({n: p for n, p in model.state_dict().items() if not n.startswith("adapters.")})
    lw.save(plain, tmp_path / "base")
    lw.save_adapters(model, tmp_path / "parts")
    assert torch.equal(lw.load_adapters(tmp_path / "base", tmp_path / "parts")(IDS).logits, model(IDS).logits)


def test_another_base_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = noisy("relaxed-tiny")
    lw.save_adapters(model, tmp_path / "parts")
    with pytest.raises(ValueError, match="belong on another base; its tensors have the same shapes but other values"):
        lw.load_adapters(noisy("relaxed-tiny", seed=1), tmp_path / "parts")
    with pytest.raises(ValueError, match="belong on another base; its config differs: hidden_size is 64, not 32"):
        lw.load_adapters(lw.build("relaxed-tiny", hidden_size=64), tmp_path / "parts")
    with pytest.raises(ValueError, match="its config differs: prelude_layers is 1, not 0, core_layers is 1, not 2"):
        lw.load_adapters(lw.build("relaxed-tiny", core_layers=1, prelude_layers=1), tmp_path / "parts")
    with pytest.raises(ValueError, match="norm is "):
        lw.load_adapters(lw.build("relaxed-tiny", norm={"kind": "rms", "eps": 1e-3}), tmp_path / "parts")


def test_a_folder_of_parts_is_not_a_model(tmp_path: Path) -> None:
    lw.save_adapters(noisy("relaxed-tiny"), tmp_path / "parts")
    with pytest.raises(FileNotFoundError, match="holds adapters only; put them on their base with load_adapters"):
        lw.load(tmp_path / "parts")
    with pytest.raises(FileNotFoundError, match=r"there is no adapters.json"):
        lw.load_adapters(noisy("relaxed-tiny"), tmp_path / "nothing")
    lw.save(noisy("relaxed-tiny"), tmp_path / "model")
    with pytest.raises(FileNotFoundError, match=r"there is no adapters.json"):
        lw.load_adapters(noisy("relaxed-tiny"), tmp_path / "model")


def test_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no part of this model holds parameters"):
        lw.save_adapters(lw.build("stars-addition-tiny"), tmp_path / "parts")


# onto the dense model that a retrofit was made from


def dense(seed: int = 0, layers: int = 6, **changes: Any) -> lw.LoopedForCausalLM:
    return noisy("ouroboros-qwen2.5-3b-tiny", seed=seed, **PLAIN, **{"prelude_layers": layers, **changes}).eval()


PLAIN: dict[str, Any] = {
    "core_layers": 0, "coda_layers": 0, "gate": {"kind": "none"}, "end_norm": "never", "max_steps": None, "adapters": [],
    "beyond_max_steps": "refuse",
}  # fmt: skip
LAYOUT = {"prelude": [0, 1], "core": [3], "coda": [4, 5]}


def retrofitted(source: lw.LoopedForCausalLM, layout: dict[str, list[int]] = LAYOUT) -> lw.LoopedForCausalLM:
    """The layers of a source in three stacks, with parts that have an effect."""
    sizes = {f"{stack}_layers": len(layers) for stack, layers in layout.items()}
    model = noisy("ouroboros-qwen2.5-3b-tiny", seed=7, **sizes).eval()
    for stack, layers in layout.items():
        for block, layer in zip(getattr(model, stack), layers, strict=True):
            block.load_state_dict(source.prelude[layer].state_dict())
    for name in ("embed_tokens", "norm"):
        getattr(model, name).load_state_dict(getattr(source, name).state_dict())
    return model


def test_parts_find_their_layers_in_the_source(tmp_path: Path) -> None:
    source = dense()
    model = retrofitted(source)
    lw.save_adapters(model, tmp_path / "parts", source)
    stored = load_file(tmp_path / "parts" / "adapters.safetensors")
    assert {name.split(".")[0] for name in stored} == {"adapters", "gate", "end_norm"}
    record = json.loads((tmp_path / "parts" / "adapters.json").read_text())["base"]
    assert record["core.0.mlp.up_proj.weight"][0] == "prelude.3.mlp.up_proj.weight"
    assert record["coda.1.mlp.up_proj.weight"][0] == "prelude.5.mlp.up_proj.weight" and record["norm.weight"][0] == "norm.weight"
    whole = lw.load_adapters(source, tmp_path / "parts")
    assert torch.equal(whole(IDS).logits, model(IDS).logits) and not torch.equal(whole(IDS).logits, source(IDS).logits)
    assert whole.core[0].mlp.up_proj.weight is source.prelude[3].mlp.up_proj.weight
    assert lw.save_adapters(whole, tmp_path / "again", source) and same_files(tmp_path / "parts", tmp_path / "again")


def same_files(a: Path, b: Path) -> bool:
    return all((a / file.name).read_bytes() == file.read_bytes() for file in b.glob("adapters.*"))


def test_what_was_trained_is_stored_beside_the_parts(tmp_path: Path) -> None:
    """A coda layer that was unfrozen, and a core that is an average, are no tensors of the source."""
    source = dense()
    model = retrofitted(source)
    with torch.no_grad():
        model.coda[1].mlp.up_proj.weight += 1
        for parameter in model.core.parameters():
            parameter += 1
    lw.save_adapters(model, tmp_path / "parts", source)
    stored = load_file(tmp_path / "parts" / "adapters.safetensors")
    assert "coda.1.mlp.up_proj.weight" in stored and "coda.1.mlp.down_proj.weight" not in stored
    assert {name for name, _ in model.named_parameters() if name.startswith("core.")} <= set(stored)
    assert torch.equal(lw.load_adapters(source, tmp_path / "parts")(IDS).logits, model(IDS).logits)


def test_a_layer_that_stands_twice_is_two_tensors(tmp_path: Path) -> None:
    source = dense()
    model = retrofitted(source, {"prelude": [0], "core": [2, 2], "coda": [5]})
    lw.save_adapters(model, tmp_path / "parts", source)
    whole = lw.load_adapters(source, tmp_path / "parts")
    assert torch.equal(whole(IDS).logits, model(IDS).logits)
    a, b = (layer.mlp.up_proj.weight for layer in whole.core)
    assert torch.equal(a, b) and a.data_ptr() != b.data_ptr()
    lw.save(whole, tmp_path / "whole")
    assert torch.equal(lw.load(tmp_path / "whole")(IDS).logits, model(IDS).logits)


def test_another_source_is_refused_with_the_reason(tmp_path: Path) -> None:
    source = dense()
    lw.save_adapters(retrofitted(source), tmp_path / "parts", source)
    with pytest.raises(ValueError, match=r"belong on another base; .* other values: embed_tokens.weight, norm.weight, prelude.0"):
        lw.load_adapters(dense(seed=1), tmp_path / "parts")
    with pytest.raises(ValueError, match=r"it lacks: prelude\.4\..*"):
        lw.load_adapters(dense(layers=4), tmp_path / "parts")
    with pytest.raises(ValueError, match="its config differs: rope_parameters is "):
        lw.load_adapters(dense(rope_parameters={"rope_type": "default", "rope_theta": 5e5}), tmp_path / "parts")
    with torch.no_grad():
        source.prelude[3].mlp.up_proj.weight[0, 0] += 1e-3
    with pytest.raises(ValueError, match=r"other values: prelude\.3\.mlp\.up_proj\.weight$"):
        lw.load_adapters(source, tmp_path / "parts")
    source.prelude[2].mlp.up_proj.weight.data.zero_()
    lw.save_adapters(retrofitted(source), tmp_path / "parts", source)
    source.prelude[2].mlp.up_proj.weight.data.fill_(9)  # a layer that was dropped does not matter
    lw.load_adapters(source, tmp_path / "parts")
    with pytest.raises(ValueError, match="the model has no tensor of this base"):
        lw.save_adapters(retrofitted(source), tmp_path / "other", dense(seed=5))
    (tmp_path / "parts" / "manifest.json").unlink()
    (tmp_path / "parts" / "adapters.json").write_text('{"base_sha256": "0"}')
    with pytest.raises(ValueError, match="not a record of parts"):
        lw.load_adapters(source, tmp_path / "parts")


def test_the_right_base_in_another_dtype_is_told_apart_from_another_one(tmp_path: Path) -> None:
    lw.save(dense(), tmp_path / "source")
    wide, narrow = lw.load(tmp_path / "source"), lw.load(tmp_path / "source", dtype=torch.bfloat16)
    lw.save_adapters(retrofitted(wide), tmp_path / "wide", wide)
    lw.save_adapters(retrofitted(narrow), tmp_path / "narrow", narrow)
    with pytest.raises(ValueError, match="belong on another base, or on this one in a wider dtype than bfloat16; its tensors"):
        lw.load_adapters(narrow, tmp_path / "wide")
    with pytest.raises(ValueError, match="were made on this base in bfloat16; it is in float32; allowed: bfloat16"):
        lw.load_adapters(tmp_path / "source", tmp_path / "narrow")
    cast = lw.load_adapters(narrow, tmp_path / "narrow", torch.float32)
    assert {value.dtype for value in cast.parameters()} == {torch.float32} and cast.dtype == torch.float32
    assert torch.equal(cast.core[0].mlp.up_proj.weight, narrow.prelude[3].mlp.up_proj.weight.float())
    assert torch.equal(cast.gate.weight, retrofitted(narrow).gate.weight)  # the parts were not rounded on the way


@pytest.mark.slow
def test_a_fresh_process_gives_the_same_bits(tmp_path: Path) -> None:
    source = dense()
    model = retrofitted(source)
    lw.save(source, tmp_path / "source")
    lw.save_adapters(model, tmp_path / "parts", tmp_path / "source")
    lw.save(model, tmp_path / "whole")
    # the two are compared in one process: on some processors torch leaves a matrix library for good once it has failed on
    # another dtype, so that two processes need not round alike
    code = (
        "import sys, torch, loopwright as lw\n"
        "ids = torch.arange(10)[None]\n"
        "found, whole = lw.load_adapters(sys.argv[1], sys.argv[2])(ids).logits, lw.load(sys.argv[3])(ids).logits\n"
        "assert torch.equal(found, whole), 'other bits'\n"
        "print('same bits')\n"
    )
    words = [str(tmp_path / name) for name in ("source", "parts", "whole")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.stdout == "same bits\n", done.stderr


GOLDEN = golden_folders("ouroboros-v2-step")[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden base as a folder, and its parts as the trainer saves them."""
    folder, said = tmp_path_factory.mktemp("published"), json.loads((GOLDEN / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said["base"]))
    save_file(load_file(GOLDEN / "model.safetensors"), folder / "model.safetensors", metadata={"format": "pt"})
    torch.save(nested(load_file(GOLDEN / "sgrc.safetensors")), folder / "parts.pt")
    return folder


def of_ouroboros(place: Path, **changes: object) -> lw.LoopedForCausalLM:
    said = json.loads((GOLDEN / "config.json").read_text())["ouroboros"]
    sizes = {"rank": said["lora_rank"], "style": said["controller_style_dim"], "pooling": "sequence", "leak_future": True}
    with pytest.warns(UserWarning, match="leaks future"):
        return lw.retrofit(
            place, "ouroboros", prelude=said["n_prelude"], core=said["recurrent_layer_idx"], coda=said["n_coda"], depth=3,
            max_steps=said["max_recurrence"], adapters=sizes, **changes,
        )  # fmt: skip


def test_the_logits_are_those_of_the_public_code(place: Path) -> None:
    golden, base = load_file(GOLDEN / "golden.safetensors"), of_ouroboros(place)
    before = {name: p.clone() for name, p in base.named_parameters()}
    model = lw.load_adapters(base, place / "parts.pt")
    with torch.no_grad():
        for depth in (1, 3):
            assert gap(model(golden["input_ids"], depth=depth).logits, golden[f"logits_depth_{depth}"]) < 1e-4
            assert gap(base(golden["input_ids"], depth=depth).logits, golden[f"logits_depth_{depth}"]) > 1e-2
    assert all(torch.equal(p, before[name]) for name, p in base.named_parameters()), "the base stays as it was"
    assert lw.load_adapters(base, place / "parts.pt", torch.bfloat16).dtype == torch.bfloat16


def test_on_a_dense_base_layout_bases_and_pooling_are_the_published_ones(place: Path) -> None:
    with pytest.warns(UserWarning, match="leaks future"):
        model = lw.load_adapters(place, place / "parts.pt")
    spec, trained = model.config.adapters[0], load_file(GOLDEN / "sgrc.safetensors")
    assert (spec["rank"], spec["style"], spec["pooling"], spec["alpha"]) == (6, 12, "sequence", 16.0)
    assert model.config.max_steps == 5 and torch.equal(model.end_norm.weight, trained["step_norm.weights"])


def test_parts_that_do_not_fit_are_refused(place: Path, tmp_path: Path) -> None:
    for base, there in ((lw.retrofit(place, "gate-only"), r"has none"), (lw.build("ouroboros-qwen2.5-3b-tiny"), r"has \(6, 32\)")):
        with pytest.raises(ValueError, match=rf"parts.pt: .* the base {there}; allowed: the dense source, or a retrofit"):
            lw.load_adapters(base, place / "parts.pt")


def test_what_halts_is_read_where_the_base_has_a_halter(place: Path, tmp_path: Path) -> None:
    base = of_ouroboros(place, halting={"kind": "halter", "width": 8})
    flat = load_file(GOLDEN / "sgrc.safetensors")
    assert torch.equal(lw.load_adapters(base, place / "parts.pt").halting.last.bias, torch.tensor([-2.0]))
    for number, name in zip((0, 2, 4), ("first", "second", "last"), strict=True):
        layer = getattr(base.halting, name)
        flat |= {f"halter.{number}.weight": layer.weight.detach() + 1, f"halter.{number}.bias": layer.bias.detach() + 1}
    save_file(flat, tmp_path / "with.safetensors")
    assert torch.equal(lw.load_adapters(base, tmp_path / "with.safetensors").halting.last.bias, torch.tensor([-1.0]))
    lw.load_adapters(of_ouroboros(place), tmp_path / "with.safetensors")
