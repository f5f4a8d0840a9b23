"""Relaxed Recursive Transformers (arXiv 2410.20672) and the authors' public code: starts, what trains, the SVD."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.recipes import recipe
from loopwright.retrofitting.layout import find_layout, stepwise
from loopwright.training.model import FromRetrofit
from tests.cases import noisy
from tests.systems.items import differs, same

RELAXED = "Relaxed Recursive Transformers"
LAYERS, TIED, RANK = 6, 3, 5


def dense(std: float = 0.3) -> lw.LoopedForCausalLM:
    """A dense model of six layers, its norms away from 1."""
    model = noisy("relaxed-tiny", std=std, core_layers=0, prelude_layers=LAYERS, adapters=[], max_steps=None, depth=1)
    with torch.no_grad():
        for name, x in model.named_parameters():
            if "norm" in name:
                x.copy_(1 + 0.4 * torch.randn(x.shape, generator=torch.Generator().manual_seed(8)))
    return model


def converted(**changes: Any) -> tuple[lw.LoopedForCausalLM, lw.LoopedForCausalLM]:
    source = dense()
    layout = {"kind": "relaxed", "tied": TIED}
    return source, lw.retrofit(source, "relaxed", layout=layout, adapters={"rank": RANK}, **changes)


def linear(block: torch.nn.Module, name: str) -> Tensor:
    return block.get_submodule(("self_attn." if name[0] in "qkvo" else "mlp.") + name).weight.detach().double()


@same(RELAXED, "start of a tied layer: the mean of those it stands for, a stepwise pick, or the lower ones")
def test_starts() -> None:
    source, model = converted()
    for i, block in enumerate(model.core):
        for name, x in block.named_parameters():
            mean = torch.stack([source.prelude[layer].get_parameter(name).double() for layer in (i, i + TIED)]).mean(0)
            assert torch.allclose(x.double(), mean, atol=1e-6)
    for start, layers in {"selected": [0, 1, 2], "stepwise": np.round(np.linspace(0, LAYERS - 1, TIED)).astype(int)}.items():
        _, model = converted(start=start)
        assert all(
            torch.equal(linear(b, "q_proj"), linear(source.prelude[n], "q_proj")) for b, n in zip(model.core, layers, strict=True)
        )


@same(RELAXED, "stepwise layers: round(linspace(0, L − 1, K)), for every L up to 96")
def test_stepwise() -> None:
    for layers in range(2, 97):
        for tied in (n for n in range(1, layers) if layers % n == 0):
            picked = stepwise(find_layout({"kind": "relaxed", "tied": tied}, layers))
            assert list(picked) == [round(x) for x in np.linspace(0, layers - 1, tied)], (layers, tied)


@same(RELAXED, "every parameter is trained")
def test_everything_trains(tmp_path: Path) -> None:
    lw.save(dense(), tmp_path / "dense")
    changes = {"layout": {"kind": "relaxed", "tied": TIED}, "adapters": {"rank": RANK}}
    trained = {}
    for trains in (None, "all", "parts"):
        made = FromRetrofit(str(tmp_path / "dense"), "relaxed", changes, trains=trains)
        model = made.build(0)
        trained[trains] = {name for name, x in model.named_parameters() if x.requires_grad}
        assert (trained[trains] == set(dict(model.named_parameters()))) == (trains != "parts")
    assert trained[None] == trained["all"] and trained["parts"] == {name for name in trained["all"] if name.startswith("adapters.")}
    with pytest.raises(ValueError, match=r"^model \(retrofit\): trains is 'some'; allowed: parts, all, or leave it out$"):
        FromRetrofit("x", "relaxed", trains="some")


@same(RELAXED, "updates: of each step, the truncated SVD of what its own layer differs by, at every linear map")
def test_updates_by_svd_without_norms() -> None:
    source = dense()
    with torch.no_grad():
        for name, x in source.named_parameters():
            if "norm" in name:
                x.fill_(1.0)  # then the folded residual is the plain one
    model = lw.retrofit(source, "relaxed", layout={"kind": "relaxed", "tied": TIED}, adapters={"rank": RANK})
    adapter = model.adapters[0]
    assert set(adapter.shapes) == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    for name in adapter.shapes:
        for step in range(2):
            residual = linear(source.prelude[step * TIED + 1], name) - linear(model.core[1], name)
            u, s, vh = torch.linalg.svd(residual, full_matrices=False)
            made = adapter.scale * adapter.factors.b[name][step, 1] @ adapter.factors.a[name][step, 1]
            assert torch.allclose(made.detach().double(), (u[:, :RANK] * s[:RANK]) @ vh[:RANK], atol=1e-4), (name, step)


@differs(RELAXED, "SVD of the updates")
def test_norms_are_folded_in() -> None:
    source, model = converted()
    adapter, name = model.adapters[0], "q_proj"
    gains = [each.attention_norms.input.weight.detach().double() for each in (source.prelude[4], model.core[1])]
    residual = linear(source.prelude[4], name) * gains[0] - linear(model.core[1], name) * gains[1]
    u, s, vh = torch.linalg.svd(residual, full_matrices=False)
    made = (adapter.scale * adapter.factors.b[name][1, 1] @ adapter.factors.a[name][1, 1]).detach().double()
    assert torch.allclose(made, (u[:, :RANK] * s[:RANK]) @ vh[:RANK] / gains[1], atol=1e-4)
    plain = linear(source.prelude[4], name) - linear(model.core[1], name)
    u, s, vh = torch.linalg.svd(plain, full_matrices=False)
    assert float((made - (u[:, :RANK] * s[:RANK]) @ vh[:RANK]).abs().max()) > 0.05


@differs(RELAXED, "other starts and patterns of sharing; prefix tuning, DoRA")
def test_other_starts_are_refused() -> None:
    for start in ("upper", "random"):
        with pytest.raises(ValueError, match=f"start is '{start}'; allowed: selected, average, stepwise"):
            converted(start=start)


@differs(RELAXED, "recipe `relaxed`")
def test_the_recipe() -> None:
    found = recipe("relaxed", [])
    assert found.model["system"] == "relaxed" and "trains" not in found.model and found.optim["kind"] == "adamw"
    assert "train" not in found.optim and dict(found.depth) == {"kind": "fixed", "depth": 2} and found.schedule["kind"] == "cosine"
    assert find_layout(found.model["changes"]["layout"], 22).depth == 2 and dict(found.objective) == {"kind": "final"}
