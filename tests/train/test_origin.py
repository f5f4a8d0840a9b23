"""Where a model comes from: the seed alone decides a fresh one; loaded weights stay what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import loopwright as lw
from loopwright.settings import build_kind, check_kind
from loopwright.train.origin import MODELS, FromPreset, FromWeights
from tests.cases import noisy


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


@pytest.mark.parametrize("changes", [{"core_layers": 2}, {"injection": {"kind": "concat"}}, {"hidden_size": 16}])
def test_changes_that_do_not_fit_are_refused_in_one_line(tmp_path: Path, changes: dict) -> None:
    lw.save(noisy("stars-addition-tiny"), tmp_path)
    with pytest.raises(ValueError, match=r"model \(load\): changes .* do not fit the weights") as caught:
        FromWeights(str(tmp_path), changes=changes).build(0)
    assert "\n" not in str(caught.value)
