"""Where a model comes from: the seed alone decides a fresh one; loaded weights stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import loopwright as lw
from loopwright.schema import build_kind, check_kind
from loopwright.training.loop import train
from loopwright.training.model import MODELS, FromPreset, FromRetrofit, FromWeights, model_of_run
from loopwright.training.recipe import make_recipe
from loopwright.training.report import Silent
from tests.cases import noisy
from tests.checkpoints.dense import source
from tests.training.runs import PLAIN


def test_the_seed_alone_decides_a_fresh_model() -> None:
    spec = {"kind": "preset", "name": "stars-addition-tiny", "changes": {"hidden_size": 16}}
    check_kind("model", spec, MODELS)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    a = build_kind(spec, MODELS).build(3)
    assert torch.equal(torch.get_rng_state(), before), "nobody else's random numbers change"
    torch.manual_seed(2)
    b, c = build_kind(spec, MODELS).build(3), build_kind(spec, MODELS).build(4)
    assert a.config.hidden_size == 16
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(a.parameters(), c.parameters(), strict=True))


def test_a_plain_config_needs_no_preset() -> None:
    model = FromPreset(changes={"hidden_size": 16, "num_attention_heads": 2, "vocab_size": 9, "core_layers": 2}).build(0)
    assert model.config.core_layers == 2 and model.config.vocab_size == 9


def test_weights_are_loaded_and_changes_that_fit_are_laid_over_the_config(tmp_path: Path) -> None:
    model = noisy("stars-addition-tiny")
    lw.save(model, tmp_path)
    same = FromWeights(str(tmp_path)).build(0)
    assert all(torch.equal(x, y) for x, y in zip(same.parameters(), model.parameters(), strict=True))
    changed = FromWeights(str(tmp_path), dtype="bfloat16", changes={"dropout": 0.1, "depth": 7}).build(0)
    assert (changed.config.dropout, changed.config.depth) == (0.1, 7)
    for x, y in zip(changed.parameters(), model.parameters(), strict=True):
        assert x.dtype == torch.bfloat16 and torch.equal(x, y.to(torch.bfloat16))


@pytest.mark.parametrize("changes", [{"core_layers": 3}, {"injection": {"kind": "concat"}}, {"hidden_size": 16}])
def test_changes_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, changes: dict) -> None:
    lw.save(noisy("stars-addition-tiny", core_layers=2), tmp_path)
    with pytest.raises(ValueError, match=r"model \(load\): changes .* do not fit the weights") as caught:
        FromWeights(str(tmp_path), changes=changes).build(0)
    assert "\n" not in str(caught.value)


def test_a_looped_model_is_upcycled(tmp_path: Path) -> None:
    """The list of layers twice over: one step of it is two of the source, where nothing stands between steps."""
    model, ids = noisy("stars-addition-tiny", core_layers=2).eval(), torch.arange(12)[None]
    lw.save(model, tmp_path)
    grown = FromWeights(str(tmp_path), changes={"core_layers": 4}).build(0).eval()
    assert len(grown.core) == 4
    for depth in (1, 2, 3):
        assert torch.equal(grown(ids, depth=depth).logits, model(ids, depth=2 * depth).logits)
    grown.core[2].mlp.down_proj.weight.data.zero_()
    assert not torch.equal(grown.core[0].mlp.down_proj.weight, grown.core[2].mlp.down_proj.weight), "copies are their own"


@pytest.mark.parametrize("name", ["asura-tiny", "relaxed-tiny", "ouroboros-qwen2.5-3b-tiny"])
def test_more_steps_leave_the_steps_that_are_there_as_they_are(tmp_path: Path, name: str) -> None:
    """Up to the old steps nothing changes, bit for bit; beyond them the last step's rows are repeated, and they train."""
    model, ids = noisy(name).eval(), torch.arange(12)[None]
    steps = model.config.max_steps
    lw.save(model, tmp_path)
    grown = (
        FromWeights(str(tmp_path), changes={"max_steps": steps + 2, "depth": steps + 2, "beyond_max_steps": "refuse"})
        .build(0)
        .eval()
    )
    for depth in range(1, steps + 1):
        assert torch.equal(grown(ids, depth=depth).logits, model(ids, depth=depth).logits)
    model.config.beyond_max_steps = "repeat"
    for depth in (steps + 1, steps + 2):
        torch.testing.assert_close(grown(ids, depth=depth).logits, model(ids, depth=depth).logits, rtol=1e-5, atol=1e-5)
    lw.save(grown, tmp_path / "grown")
    again = lw.load(tmp_path / "grown")
    assert again.config.max_steps == steps + 2 and torch.equal(again(ids).logits, grown(ids).logits)
    grown(ids).logits.square().sum().backward()
    tables = [x for x in grown.parameters() if x.grad is not None and x.shape[:1] == (steps + 2,) and x.grad[-1].abs().sum() > 0]
    assert tables
    with pytest.raises(ValueError, match="do not fit the weights"):
        FromWeights(str(tmp_path), changes={"max_steps": steps - 1, "depth": 1}).build(0)


def test_weights_that_are_not_finite_are_not_trained(tmp_path: Path) -> None:
    model = noisy("stars-addition-tiny")
    with torch.no_grad():
        model.norm.weight[0] = float("nan")
    lw.save(model, tmp_path / "nan")
    wrong = make_recipe({**PLAIN, "model": {"kind": "load", "source": str(tmp_path / "nan")}})
    with pytest.raises(ValueError, match=r"model: norm.weight of .*nan is not finite, so it cannot be trained; give a checkpoint"):
        train(wrong, tmp_path / "run", reporter=Silent())
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_retrofit_is_built_with_its_parts_alone_trainable(tmp_path: Path) -> None:
    lw.save(source("llama"), tmp_path)
    changes = {"adapters": {"rank": 4, "style": 8}, "depth": 2}
    spec = {"kind": "retrofit", "source": str(tmp_path), "system": "ouroboros-identity", "changes": changes}
    check_kind("model", spec, MODELS)
    models = [build_kind(spec, MODELS).build(seed) for seed in (3, 3, 4)]
    made = lw.retrofit(source("llama"), "ouroboros-identity", **changes, seed=3)
    for model in models[:2]:
        assert all(torch.equal(x, y) for x, y in zip(model.parameters(), made.parameters(), strict=True))
    assert not torch.equal(models[0].adapters[0].style1.weight, models[2].adapters[0].style1.weight), "the seed is the parts'"
    free = {name.split(".")[0] for name, p in models[0].named_parameters() if p.requires_grad}
    assert free == {"adapters", "gate"}
    half = FromRetrofit(str(tmp_path), changes={**changes, "core": [2], "prelude": 1, "coda": 2}, dtype="bfloat16").build(0)
    assert half.dtype == torch.bfloat16 and half.config.coda_layers == 2
    whole = FromRetrofit(str(tmp_path), system="ouro", changes={"depth": 2}).build(0)
    assert all(p.requires_grad for p in whole.parameters()), "a system that is trained as a whole"
    with pytest.raises(ValueError, match="did you mean 'static'"):
        FromRetrofit(str(tmp_path), system="statik")


def test_a_healing_run_moves_the_parts_alone_and_resumes(tmp_path: Path) -> None:
    lw.save(source("qwen2"), tmp_path / "dense")
    model = {
        "kind": "retrofit",
        "source": str(tmp_path / "dense"),
        "system": "static",
        "changes": {"adapters": {"rank": 2}, "depth": 2},
    }
    depth = {"kind": "fixed", "depth": 2}
    data = {"kind": "addition", "digits": 2, "train": 64, "valid": 24, "test": 8}
    recipe = make_recipe({**PLAIN, "model": model, "data": data, "depth": depth, "updates": 2, "validate": {"every": 0}})
    outcome = train(recipe, tmp_path / "run", reporter=Silent())
    start = build_kind(model, MODELS).build(recipe.seed)
    moved = {name for name, p in outcome.model.named_parameters() if not torch.equal(p, start.get_parameter(name))}
    assert moved == {"gate.weight", "gate.bias", "adapters.0.table"}
    again = lw.load(outcome.checkpoint)
    assert all(torch.equal(x, y) for x, y in zip(again.parameters(), outcome.model.parameters(), strict=True))


def test_a_run_goes_on_with_the_model_that_it_saved(tmp_path: Path) -> None:
    """A preset may be another in a later version: then the config beside the saved weights is the run's, not the preset's."""
    spec = {"kind": "preset", "name": "universal-tiny"}
    fresh = model_of_run(spec, 0, tmp_path / "none").config
    assert fresh.embedding_scale == 32**0.5 and fresh.init == {"kind": "tensor2tensor"}
    lw.save(lw.build("universal-tiny", embedding_scale=1.0, init={"kind": "normal"}), tmp_path / "00000002")
    (tmp_path / "00000003").mkdir()  # damaged
    again = model_of_run(spec, 0, tmp_path)
    assert again.config.embedding_scale == 1.0 and again.config.init == {"kind": "normal"}
