"""Searching for a layout: both scores against slow forms, the order, and what cannot be searched."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

import loopwright as lw
from loopwright.model import layers as attention
from loopwright.retrofitting.layout import Layout, find_layout
from loopwright.retrofitting.search import candidates, dense_of, loss_of, run_of, search, turn_of, turns
from tests.cases import gap, noisy
from tests.checkpoints.dense import IDS, LAYERS, source, their_logits

START = find_layout("ouroboros", LAYERS)


def test_candidates_are_all_layouts_of_that_size() -> None:
    found = candidates(find_layout({"kind": "lists", "prelude": 2, "core": [3], "coda": 1}, LAYERS), LAYERS)
    kept = {(layout.prelude, layout.core, layout.coda) for layout in found}
    expected = {((0,), (r,), (4, 5)) for r in (1, 2, 3)} | {((0, 1), (r,), (5,)) for r in (2, 3, 4)}
    assert kept == expected and len(found) == len(kept)
    wide = candidates(find_layout({"kind": "lists", "prelude": 1, "core": [2, 3], "coda": 1}, LAYERS), LAYERS)
    assert {layout.core for layout in wide} == {(1, 2), (2, 3), (3, 4)}
    assert {layout.depth for layout in candidates(Layout((0,), (2,), (5,), ((2,),), 7), LAYERS)} == {7}


def test_the_turn_is_the_mean_angle_between_states() -> None:
    dense = source()
    with torch.no_grad():
        x, _ = dense.embed_at(dense.token_vectors(IDS), dense.embed(IDS)[1].span)  # through all layers
        states = [dense.token_vectors(IDS)]
        for layer in range(1, LAYERS + 1):
            states.append(dense_of(dense, range(layer)).embed(IDS)[0])
    assert gap(states[-1], x) < 1e-6
    angles = turns(dense, IDS)
    for a, b in ((0, 3), (2, 5), (1, 6)):
        cosine = torch.nn.functional.cosine_similarity(states[a], states[b], dim=-1)
        assert angles[a, b].item() == pytest.approx((cosine.clamp(-1, 1).arccos() / math.pi).mean().item(), abs=1e-4)
    layout = find_layout({"kind": "lists", "prelude": 1, "core": [3], "coda": 1}, LAYERS)
    assert turn_of(layout, angles) == pytest.approx(max(angles[1, 3], angles[4, 5]).item())
    assert turn_of(find_layout("ouro", LAYERS), angles) == 0.0
    assert turn_of(find_layout({"kind": "lists", "core": [1, 2], "prelude": 0, "coda": 0}, LAYERS), angles) == pytest.approx(
        max(angles[0, 1], angles[3, 6]).item()
    )


def test_the_loss_is_that_of_the_layers_that_are_kept() -> None:
    dense = source()
    many = torch.randint(2, 96, (11, 12), generator=torch.Generator().manual_seed(1))
    model = dense_of(dense, run_of(START))
    with torch.no_grad():
        assert gap(model(IDS).logits, their_logits("llama", list(START.kept))) < 1e-5
        assert loss_of(model, many) == pytest.approx(model(many, labels=many).loss.item(), abs=1e-5)
    assert model.prelude[0].mlp.up_proj.weight is dense.prelude[0].mlp.up_proj.weight, "nothing is copied"


def test_a_source_that_sees_the_future_is_not_scored_by_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    dense = source()
    assert search(dense, IDS, START)
    with monkeypatch.context() as patch:
        patch.setattr(attention, "attend_in", lambda p, place, q, k, v, dropout: attention.attend(q, k, v, mask=None, causal=False))
        with pytest.raises(ValueError, match="search: the source sees future tokens, so that its loss is not a likelihood"):
            search(dense, IDS, START)
        assert search(dense, IDS, START, by="turn")


def test_the_best_comes_first() -> None:
    told: list[tuple[int, int]] = []
    found = search(source(), IDS, START, progress=lambda done, total: told.append((done, total)))
    sets = {layout.kept for layout in candidates(START, LAYERS)}
    assert len(found) == len(candidates(START, LAYERS)) and told[-1] == (len(sets), len(sets))
    wide = find_layout({"kind": "lists", "prelude": 2, "core": [3], "coda": 1}, LAYERS)
    told.clear()
    assert len(search(source(), IDS, wide, progress=lambda done, total: told.append((done, total)))) == 6
    assert told[-1] == (5, 5), "0, 1, 4, 5 with the core at 1 or at 4 are the same layers, measured once"
    assert all(a.loss <= b.loss for a, b in pairwise(found))
    assert START.kept in [one.layout.kept for one in found]
    assert found[0].loss == pytest.approx(loss_of(dense_of(source(), run_of(found[0].layout)), IDS))
    assert found[0].perplexity == pytest.approx(math.exp(found[0].loss))
    by_turn = search(source(), IDS, START, by="turn")
    assert all(a.turn <= b.turn for a, b in pairwise(by_turn)) and {one.loss for one in by_turn} == {None}
    few = search(source(), IDS, START, most=1)
    assert {one.layout.kept for one in few} == {by_turn[0].layout.kept, START.kept}, "the layout one came with is measured too"
    assert search(source(), IDS, START) == found


def test_a_layer_that_does_nothing_is_dropped_first() -> None:
    """Layers 1 and 2 are made to add nothing: the best layouts drop both, and are the intact model."""
    dense = lw.LoopedForCausalLM(source().config).eval()
    dense.load_state_dict(source().state_dict())
    with torch.no_grad():
        for layer in (1, 2):
            dense.prelude[layer].self_attn.o_proj.weight.zero_()
            dense.prelude[layer].mlp.down_proj.weight.zero_()
    start = find_layout({"kind": "lists", "prelude": 2, "core": [3], "coda": 1}, LAYERS)
    best = search(dense, IDS, start, by="turn")[0]
    assert best.layout.dropped(LAYERS) == (1, 2) and best.turn < 1e-3
    assert loss_of(dense_of(dense, run_of(best.layout)), IDS) == pytest.approx(loss_of(dense, IDS), abs=1e-5)


def test_the_loss_at_a_depth_is_that_of_the_plain_loop() -> None:
    wide = find_layout({"kind": "lists", "prelude": 1, "core": [2, 3], "coda": 1}, LAYERS)
    found = search(source(), IDS, wide, depth=3)
    assert len(found) == len(candidates(wide, LAYERS)) and all(a.loss <= b.loss for a, b in pairwise(found))
    assert run_of(wide, 3) == (0, 2, 3, 2, 3, 2, 3, 5)
    for one in found:
        stacks = {"prelude": list(one.layout.prelude), "core": list(one.layout.core), "coda": list(one.layout.coda)}
        looped = lw.retrofit(source(), "plain-loop", **stacks, depth=3).eval()
        with torch.no_grad():
            assert one.loss == pytest.approx(looped(IDS, labels=IDS, depth=3).loss.item(), abs=1e-5)
    with pytest.raises(ValueError, match=r"depth must be a whole number >= 1 \(got 0\)"):
        search(source(), IDS, wide, depth=0)


def test_what_cannot_be_searched_is_one_line() -> None:
    for rule in ("ouro", "refiner", "repeat"):
        with pytest.raises(ValueError, match="search: the layout keeps"):
            search(source(), IDS, find_layout(rule, LAYERS))
    with pytest.raises(ValueError, match="by is 'los'; allowed: loss, turn"):
        search(source(), IDS, START, by="los")
    with pytest.raises(ValueError, match=r"most must be a whole number >= 1 \(got 0\)"):
        search(source(), IDS, START, most=0)
    with pytest.raises(ValueError, match="rows of at least two tokens"):
        search(source(), IDS[:, :1], START)
    with pytest.raises(ValueError, match="core of 2 layers already"):
        search(noisy("huginn-tiny"), IDS, START)
