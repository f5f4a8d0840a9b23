"""lw.merge: a model with its low-rank adapters in the weights computes what it computed beside them, and is a plain one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import loopwright as lw
from tests.cases import gap
from tests.checkpoints.dense import FAMILIES, IDS, source

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
