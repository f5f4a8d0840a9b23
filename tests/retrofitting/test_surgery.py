"""Retrofits: what each equals at the start, on every family; what one update moves; how the core starts; what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import loopwright as lw
from loopwright.checkpoints.families.ouroboros import renamed
from loopwright.model.parts.adapters import ADAPTERS
from loopwright.retrofitting.layout import LAYOUTS, Layout, find_layout
from loopwright.retrofitting.surgery import convert, freeze_base, start_gaps
from loopwright.retrofitting.systems import make_plan, systems
from tests.cases import gap, golden_folders, noisy, some
from tests.checkpoints.dense import FAMILIES, IDS, LAYERS, source, their_logits

# every kind of adapter that starts without effect, with sizes for the tiny models
SMALL: dict[str, dict[str, Any]] = {
    "low-rank": {"rank": 2},
    "hira": {"rank": 2},
    "abba": {"rank1": 2, "rank2": 2},
    "diagonal": {"rank": 4},
    "controller": {"rank": 4, "style": 8},
    "basis-controller": {"rank": 2, "count": 2, "state": 8, "step": 4, "width": 12, "style": 6},
}


def small(name: str) -> dict[str, Any]:
    """Changes that make a system fit the tiny models."""
    sizes = {**SMALL, "low-rank": {"rank": 4}}
    held = [{**spec, **sizes[spec["kind"]]} for spec in systems()[name].plan.get("adapters", [])]
    return {**({"adapters": held} if held else {}), **({} if name in ("relaxed", "healed") else {"depth": 3})}


def pairs_of(names: Iterable[str]) -> list[Any]:
    """Every family and every name once each, in pairs; all other pairs behind `-m slow`."""
    names, families = list(names), list(FAMILIES)
    some = {(families[i % len(families)], names[i % len(names)]) for i in range(max(len(families), len(names)))}
    every = [(family, name) for family in families for name in names]
    return [pytest.param(*pair, marks=[] if pair in some else pytest.mark.slow) for pair in every]


@pytest.mark.parametrize(("family", "system"), pairs_of(systems()))
def test_each_system_starts_as_it_says(family: str, system: str) -> None:
    """Against transformers' own model of the layers that were kept, or of all."""
    word = systems()[system]
    made = convert(source(family), make_plan(system, small(system)))
    depths = [word.at_depth] if word.at_depth else [1, 2, made.model.config.depth]
    layers = list(range(LAYERS)) if word.equals == "full" else list(made.layout.kept)
    expected = their_logits(family, layers)
    with torch.no_grad():
        gaps = [gap(made.model(IDS, depth=depth).logits, expected) for depth in depths]
        if systems()[system].plan.get("start") != "average":
            assert gap(made.model.without_adapters()(IDS).logits, their_logits(family, list(made.layout.kept))) < 1e-5
    if word.equals == "none":
        assert min(gaps) > 1e-3, "a system that equals something should say so"
    else:
        assert max(gaps) < 1e-5
    measured = start_gaps(made.model, source(family), depths)
    assert (max(measured[word.equals].values()) < 1e-5) if word.equals != "none" else True


@pytest.mark.parametrize(("family", "rule"), pairs_of(LAYOUTS))
def test_each_layout_under_a_closed_gate(family: str, rule: str) -> None:
    assert_closed(family, rule, "controller")


@pytest.mark.parametrize(("family", "kind"), pairs_of(SMALL))
def test_each_adapter_under_a_closed_gate(family: str, kind: str) -> None:
    assert_closed(family, "ouroboros", kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("rule", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_each_adapter_on_each_layout(family: str, rule: str, kind: str) -> None:
    assert_closed(family, rule, kind)


def assert_closed(family: str, rule: str, kind: str) -> None:
    """A layout under the grown gate is its truncated model at every depth, and one update moves the parts alone."""
    spec = {"kind": rule, "core": [2, 3], "prelude": 1, "coda": 1} if rule == "lists" else {"kind": rule}
    expected = their_logits(family, list(find_layout(spec, LAYERS).kept))
    model = lw.retrofit(source(family), "gate-only", layout=spec, adapters=[{"kind": kind, **SMALL[kind]}], depth=3)
    with torch.no_grad():
        assert max(gap(model(IDS, depth=depth).logits, expected) for depth in (1, 3)) < 1e-5
    assert_update_moves_only_parts(model, {"gate", "adapters"})


def test_every_adapter_is_tried() -> None:
    assert set(SMALL) | {"sinusoidal"} <= set(ADAPTERS)
    assert not set(ADAPTERS) - set(SMALL) - {"sinusoidal"}, "a new kind of adapter belongs in this table"


@pytest.mark.parametrize(("family", "system"), pairs_of(name for name in systems() if name not in ("plain-loop", "repeat")))
def test_one_update_moves_the_parts_alone(family: str, system: str) -> None:
    model = lw.retrofit(source(family), system, **small(system))
    held = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad} & {
        "adapters", "gate", "injection", "end_norm", "halting",
    }  # fmt: skip
    base_norm = {"end_norm"} if model.config.end_norm == "every" else set()
    unread = {"halting"}  # the loss of the last step does not ask the exit gate
    assert_update_moves_only_parts(model, held - base_norm - unread)


def assert_update_moves_only_parts(model: lw.LoopedForCausalLM, parts: set[str]) -> None:
    """After one update each of the named parts has moved, and every frozen tensor is bitwise what it was."""
    freeze_base(model)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad} <= parts | {"halting"}
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.0)
    loss: Tensor | None = model(IDS, labels=IDS, depth=model.config.depth).loss
    if parts:
        assert loss is not None
        loss.backward()
        optimiser.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert {name.split(".")[0] for name in moved} == parts
    assert all(before[name].requires_grad or model.get_parameter(name).requires_grad for name in moved)
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


@pytest.mark.long
@pytest.mark.parametrize("system", some(systems(), {"ouroboros"}))
@pytest.mark.parametrize("family", some(FAMILIES, {"llama"}))
def test_the_conformance_suite_passes(family: str, system: str) -> None:
    report = lw.check(lw.retrofit(source(family), system, **small(system)))
    assert report.ok, [row for row in report.rows if row.passed is False]


# how the core starts


@pytest.mark.slow
def test_the_refiner_is_sound_where_the_last_states_are_huge() -> None:
    """As in real models: the norm of the first token's state after the last layers is in the thousands."""
    dense = deepcopy(source())  # which others read too
    with torch.no_grad():
        dense.embed_tokens.weight.mul_(3e4)
    names = ("initial state", "causality", "gradients", "depth honesty")
    for norm, failed in (("rms", ()), ("none", names)):
        model = lw.retrofit(dense, "refiner", **small("refiner") | {"adapters": {"rank": 4, "pool_norm": norm}})
        assert lw.check(model, names=names).failed == failed, norm
    assert make_plan("refiner", {}).adapters[0]["pool_norm"] == "rms"


def core_of(model: lw.LoopedForCausalLM, layer: int) -> dict[str, Tensor]:
    return dict(model.core[layer].named_parameters())


def test_the_core_starts_selected_averaged_or_stepwise() -> None:
    dense = source("qwen2")
    layout = {"kind": "relaxed", "tied": 3}
    starts = {start: lw.retrofit(dense, "plain-loop", layout=layout, start=start) for start in ("selected", "average", "stepwise")}
    assert starts["average"].config.depth == 2
    for layer, (picked, group) in enumerate(zip((0, 2, 5), ((0, 3), (1, 4), (2, 5)), strict=True)):
        for name, selected in core_of(starts["selected"], layer).items():
            held = [block.get_parameter(name) for block in dense.prelude]
            assert torch.equal(selected, held[layer])
            assert torch.equal(core_of(starts["stepwise"], layer)[name], held[picked])
            assert gap(core_of(starts["average"], layer)[name], (held[group[0]] + held[group[1]]) / 2) < 1e-7
    names = set(core_of(starts["average"], 0))
    assert {"self_attn.q_proj.bias", "attention_norms.input.weight"} <= names, "biases and norms are averaged too"


def test_nothing_is_shared_with_the_source_and_the_source_stays() -> None:
    dense = source("qwen2")
    dense.generation_config.max_length = 77
    before = {name: p.detach().clone() for name, p in dense.named_parameters()}
    model = lw.retrofit(dense, "upcycle", depth=2)
    theirs = {p.data_ptr() for p in dense.parameters()}
    assert not theirs & {p.data_ptr() for p in model.parameters()}
    assert model.lm_head.weight is model.embed_tokens.weight, "what is tied stays tied"
    assert model.generation_config.to_dict() == dense.generation_config.to_dict()
    assert model.generation_config is not dense.generation_config
    assert model.core[0].self_attn.q_proj.weight is not model.core[LAYERS].self_attn.q_proj.weight
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert all(torch.equal(p, before[name]) for name, p in dense.named_parameters())


def test_the_seed_alone_decides() -> None:
    dense = source()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    models = [lw.retrofit(dense, "retrofit", depth=2, seed=seed) for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), state)
    first, again, other = (model.injection.proj.weight for model in models)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_training_free_looping_at_one_step_is_the_intact_model() -> None:
    """The damping is 1/depth, as published, so that one step is a whole one."""
    model = lw.retrofit(source(), "repeat", depth=1)
    with torch.no_grad():
        assert gap(model(IDS).logits, their_logits("llama", list(range(LAYERS)))) < 1e-5
    assert lw.retrofit(source(), "repeat").config.gate == {"kind": "mix", "weight": 1 / 6}
    assert lw.retrofit(source(), "repeat", gate={"weight": 0.25}).config.gate["weight"] == 0.25


def test_rows_per_step_follow_the_depth() -> None:
    assert lw.retrofit(source(), "static", depth=5, adapters={"rank": 2}).config.max_steps == 5
    assert lw.retrofit(source(), "static", depth=5, max_steps=9, adapters={"rank": 2}).config.max_steps == 9
    assert lw.retrofit(source(), "gate-only", depth=5).config.max_steps is None
    assert lw.retrofit(source(), "gate-only", depth=5, end_norm="per-step").config.max_steps == 5


def test_the_public_form_with_lists() -> None:
    model = lw.retrofit(source(), prelude=1, core=[2, 3], coda=1, adapters={"rank": 4})
    assert (model.config.prelude_layers, model.config.core_layers, model.config.coda_layers) == (1, 2, 1)
    assert torch.equal(model.core[1].mlp.up_proj.weight, source().prelude[3].mlp.up_proj.weight)
    assert torch.equal(model.coda[0].mlp.up_proj.weight, source().prelude[5].mlp.up_proj.weight)


def test_a_folder_its_dtype_and_the_way_back(tmp_path: Path) -> None:
    lw.save(source(), tmp_path / "dense")
    model = lw.retrofit(tmp_path / "dense", "ouroboros", adapters={"rank": 4, "style": 8})
    lw.save(model, tmp_path / "looped")
    again = lw.load(tmp_path / "looped")
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, model(IDS).logits)
    half = convert(lw.load(tmp_path / "dense", "bfloat16"), make_plan("static", small("static"))).model
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16} and half.config.dtype == torch.bfloat16
    coarse = lw.retrofit(lw.load(tmp_path / "dense", "bfloat16"), "ouroboros", adapters={"rank": 4, "style": 8}).adapters[0]
    assert torch.equal(coarse.style1.weight, model.adapters[0].style1.weight.bfloat16()), "one start in every dtype"


def test_freezing_leaves_the_parts_alone() -> None:
    model = lw.retrofit(source(), "ouroboros", adapters={"rank": 4, "style": 8})
    freeze_base(model)
    free = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name.split(".")[0] for name in free} == {"adapters", "gate", "end_norm"}
    assert not any(".bases." in name for name in free)
    plain = lw.retrofit(source(), "plain-loop")
    freeze_base(plain)
    assert not any(p.requires_grad for p in plain.parameters())


# bases: how well they meet what was removed


def test_the_mean_residual_is_met_at_full_rank() -> None:
    """The bases of a diagonal adapter, at full rank and an open diagonal, are the mean of what was removed."""
    dense = source("llama")
    made = convert(dense, make_plan("static", {"adapters": {"rank": 16, "alpha": 16.0, "targets": ["k_proj"]}, "depth": 2}))
    assert [one.error < 1e-5 for one in made.reconstructions] == [True]
    with torch.no_grad():
        made.model.adapters[0].table.fill_(1.0)
    weights = [block.self_attn.k_proj.weight for block in dense.prelude]
    core = made.layout.core[0]
    removed = [layer for layer in made.layout.groups[0] if layer != core]
    mean = torch.stack([weights[layer] for layer in removed]).mean(0)
    bases = made.model.adapters[0].bases
    with torch.no_grad():
        assert gap(weights[core] + bases.b["k_proj"][0] @ bases.a["k_proj"][0], mean) < 1e-5


@pytest.mark.parametrize("start", ["selected", "average", "stepwise"])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_tied_layers_with_full_rank_updates_are_the_intact_model(family: str, start: str) -> None:
    """Weights, the norms before them and biases: all of a pre-norm block comes back, whatever the core starts from."""
    adapters = [{"kind": "low-rank", "rank": 32, "bias": True}]
    if family == "llama":  # grouped keys are narrower, and take no more than their own rank
        narrow = ["k_proj", "v_proj"]
        wide = ["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        adapters = [{"kind": "low-rank", "rank": 16, "targets": narrow}, {"kind": "low-rank", "rank": 32, "targets": wide}]
    model = lw.retrofit(source(family), "relaxed", start=start, adapters=adapters, layout={"tied": 3})
    with torch.no_grad():
        assert gap(model(IDS).logits, their_logits(family, list(range(LAYERS)))) < 1e-4


def test_bases_of_every_kind() -> None:
    ids = torch.arange(2, 34)[None]
    errors = {}
    for how in ("mean", "per-step", "weighted"):
        plan = make_plan("static", {"bases": how, "adapters": {"rank": 8}, "depth": 2})
        made = convert(source(), plan, input_ids=ids if how == "weighted" else None)
        errors[how] = [one.error for one in made.reconstructions]
        assert all(0 < error < 1 for error in errors[how])
    assert errors["mean"] != errors["per-step"] != errors["weighted"]
    quick = convert(source(), make_plan("static", {"svd": "randomised", "adapters": {"rank": 8}, "depth": 2}))
    assert [one.error for one in quick.reconstructions] == pytest.approx(errors["mean"], abs=1e-3)


# the released code


@pytest.mark.parametrize("folder", golden_folders("ouroboros-v2-step"), ids=lambda f: f.parent.parent.name)
def test_the_faithful_system_is_the_released_code(folder: Path, tmp_path: Path) -> None:
    """The golden Ouroboros source, converted by name: its bases, then its logits once the golden parts are in."""
    description = json.loads((folder / "config.json").read_text())
    options = description["ouroboros"]
    (tmp_path / "config.json").write_text(json.dumps(description["base"]))
    save_file(load_file(folder / "model.safetensors"), tmp_path / "model.safetensors", metadata={"format": "pt"})
    sizes = {"rank": options["lora_rank"], "alpha": options["lora_alpha"], "style": options["controller_style_dim"]}
    leak = {"pooling": "sequence", "leak_future": True}
    with pytest.warns(UserWarning, match="leaks future"):
        model = lw.retrofit(
            tmp_path, "ouroboros", prelude=options["n_prelude"], core=options["recurrent_layer_idx"], coda=options["n_coda"],
            depth=3, max_steps=options["max_recurrence"], adapters={**sizes, **leak},
        )  # fmt: skip
    golden, trained = load_file(folder / "golden.safetensors"), load_file(folder / "sgrc.safetensors")
    controller = model.adapters[0]
    with torch.no_grad():
        for target in description["targets"]:
            made = controller.bases.b[target][0] @ controller.bases.a[target][0]
            assert gap(made, golden[f"svd.{target}.BA"]) < 1e-4
        for name, value in renamed(trained).items():
            model.get_parameter(name).copy_(value)
        for depth in (1, 3):
            assert gap(model(golden["input_ids"], depth=depth).logits, golden[f"logits_depth_{depth}"]) < 1e-4
        assert gap(model.without_adapters()(golden["input_ids"]).logits, golden["logits_base_only"]) < 1e-5


# what is refused

# a list of layers twice over whose layers stand for more than themselves
TWICE = Layout((), (*range(LAYERS), *range(LAYERS)), (), tuple((layer, (layer + 1) % LAYERS) for layer in range(LAYERS)) * 2, 2)


@pytest.mark.parametrize(
    ("system", "changes", "message"),
    [
        (
            "ouroboros-identity",
            {"adapters": {"rank": 33}},
            r"adapters\[0\] \(controller\): rank 33 on down_proj; allowed: at most 32",
        ),
        ("healed", {"adapters": {"rank": 17}}, r"adapters\[0\] \(low-rank\): rank 17 on k_proj; allowed: at most 16"),
        ("refiner", {"adapters": {"rank": 33}}, r"\(basis-controller\): rank 33 on down_proj; allowed: at most 32"),
        ("gate-only", {"adapters": [{"kind": "abba", "rank1": 40}]}, r"\(abba\): rank 40 on down_proj"),
        ("gate-only", {"adapters": [{"kind": "lowrank"}]}, "did you mean 'low-rank'"),
        ("gate-only", {"gate": {"kind": "groan"}}, "did you mean 'grown'"),
        ("gate-only", {"core": [7]}, "core holds layer 7"),
        ("gate-only", {"injection_start": "input"}, "injection_start: 'input' with an injection of kind 'none'"),
        ("gate-only", {"final_norm": {"kind": "none"}}, "final_norm: none, with end_norm 'never'"),
        ("gate-only", {"max_steps": 3}, "nothing here holds one row per step"),
        ("gate-only", {"beyond_max_steps": "repeat"}, "beyond_max_steps is 'repeat', and nothing here holds one row per step"),
        ("static", {"depth": 4, "max_steps": 3, "adapters": {"rank": 2}}, r"depth \(4\) is beyond max_steps \(3\)"),
        ("static", {"bases": "weighted", "adapters": {"rank": 2}}, "there is no text"),
        ("static", {"input_ids": IDS, "adapters": {"rank": 2}}, "input_ids: given, and bases are 'mean'; allowed: with bases=w"),
        ("upcycle", {"layout": TWICE, "start": "stepwise"}, r"core is \[0, 0, 1, 1, .*allowed: layers in ascending order"),
        *[
            (system, {"start": start, **small(system)}, f"start is '{start}', and each layer of the core stands for itself alone;")
            for system in ("ouro", "refiner", "repeat", "upcycle")
            for start in ("average", "stepwise")
        ],
        *[("gate-only", {"seed": seed}, rf"seed must be a whole number >= 0 \(got {seed}\)") for seed in (None, True, 1.5)],
        ("gate-only", {"seed": 2**64}, "seed must be at most 18,446,744,073,709,551,615"),
    ],
)
def test_mistakes_are_one_line(system: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        lw.retrofit(source(), system, **changes)
    assert "\n" not in str(caught.value)


def test_sources_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the source has a core of 2 layers already"):
        lw.retrofit(noisy("huginn-tiny"), "gate-only")
    with pytest.raises(TypeError, match="the source is a Linear"):
        convert(torch.nn.Linear(2, 2), make_plan("gate-only", {}))  # type: ignore[arg-type]
    adapted = {**source().config.to_dict(), "adapters": [{"kind": "low-rank", "rank": 2, "stack": "prelude"}]}
    with pytest.raises(ValueError, match="the source carries adapters"):
        lw.retrofit(lw.LoopedForCausalLM(lw.LoopedConfig(**adapted)), "gate-only")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        lw.retrofit("./no/such/folder")
