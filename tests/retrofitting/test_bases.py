"""SVD starts: at full rank the converted model is the source; errors are what they say; one residual is there at a time."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import loopwright as lw
from loopwright.model.parts.part import FIRST
from loopwright.model.passes import Place
from loopwright.retrofitting.start import exact, input_scales, randomised, stands_for, start_bases
from tests.cases import gap
from tests.checkpoints.layouts import Layout, cut

IDS = torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(0))
RELAXED = Layout((0,), (1, 2), (7,), ((1, 3, 5), (2, 4, 6)), 3)
MIDDLE = Layout((0, 1), (4,), (7,), ((2, 3, 4, 5, 6),), 4)


def dense(**changes: Any) -> lw.LoopedForCausalLM:
    """A dense model of eight layers whose norms and biases differ by layer."""
    torch.manual_seed(0)
    fields = {
        "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "prelude_layers": 8,
        "core_layers": 0, "depth": 1, "attention_bias": ["q", "k", "v"],
    }  # fmt: skip
    model = lw.LoopedForCausalLM(lw.LoopedConfig(**{**fields, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def per_step(rank: int, **options: Any) -> dict[str, Any]:
    return {"adapters": [{"kind": "low-rank", "rank": rank, **options}], "max_steps": 3}


@torch.no_grad()
@pytest.mark.parametrize("method", ["exact", "randomised"])
@pytest.mark.parametrize("alpha", [None, 5.0])
def test_at_full_rank_the_converted_model_is_the_source(method, alpha):
    source = dense()
    # step-major: the two layers of the core run 1, 2, then 3, 4, then 5, 6
    model = cut(source, RELAXED, **per_step(16, alpha=alpha, bias=True))
    assert gap(model(IDS).logits, source(IDS).logits) > 0.05
    rows = start_bases(model, source, RELAXED, how="per-step", method=method)
    assert gap(model(IDS).logits, source(IDS).logits) < 1e-5
    assert len(rows) == 7 * 2 * 3 and all(row.error < 1e-5 for row in rows)
    assert {(row.layer, row.step) for row in rows} == {(layer, step) for layer in (0, 1) for step in (0, 1, 2)}
    # biases and the order of steps count: without one of them it is another model
    biases = {name: table.clone() for name, table in model.adapters[0].biases.items()}
    for table in model.adapters[0].biases.values():
        table.zero_()
    assert gap(model(IDS).logits, source(IDS).logits) > 1e-3
    for name, table in model.adapters[0].biases.items():
        table.copy_(biases[name])
    turned = Layout((0,), (1, 2), (7,), ((1, 5, 3), (2, 4, 6)), 3)
    start_bases(model, source, turned, how="per-step", method=method)
    assert gap(model(IDS).logits, source(IDS).logits) > 1e-3


@torch.no_grad()
def test_weighted_low_rank_at_full_rank_is_the_source_too():
    source = dense()
    model = cut(source, RELAXED, **per_step(16, bias=True))
    start_bases(model, source, RELAXED, how="weighted", activations=input_scales(source, RELAXED, IDS))
    assert gap(model(IDS).logits, source(IDS).logits) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kind", ["diagonal", "controller"])
def test_bases_hold_the_mean_residual(kind):
    source = dense()
    model = cut(source, MIDDLE, adapters=[{"kind": kind, "rank": 3, "targets": ["k_proj", "up_proj"]}], max_steps=4)
    before = model(IDS).logits
    rows = start_bases(model, source, MIDDLE)
    assert torch.equal(model(IDS).logits, before), "bases alone have no effect"
    for row in rows:
        name = row.name.removeprefix("adapters.0.")
        module = "self_attn" if name == "k_proj" else "mlp"
        weights = [source.prelude[i].get_submodule(f"{module}.{name}").weight for i in range(8)]
        delta = torch.stack([weights[i] - weights[4] for i in (2, 3, 5, 6)]).mean(0)
        bases = model.adapters[0].bases
        product = bases.b[name][0] @ bases.a[name][0]
        best = torch.linalg.svdvals(delta)
        assert row.rank == 3 and row.step is None and row.layer == 0
        assert row.error == pytest.approx(float((delta - product).norm() / delta.norm()), abs=1e-6)
        assert row.error == pytest.approx(float(best[3:].norm() / best.norm()), abs=1e-5)
    assert [row.name for row in rows] == ["adapters.0.k_proj", "adapters.0.up_proj"]


@torch.no_grad()
def test_shared_bases_divide_their_rank_by_layers():
    """The columns that a layer got give that layer's own residual."""
    source = dense()
    model = cut(source, MIDDLE, adapters=[{"kind": "diagonal", "rank": 10, "alpha": 10.0, "targets": ["o_proj"]}], max_steps=4)
    rows = start_bases(model, source, MIDDLE, how="per-step")
    assert [(row.step, row.rank) for row in rows] == [(0, 3), (1, 3), (3, 2), (4, 2)]
    bases = model.adapters[0].bases
    delta = source.prelude[3].self_attn.o_proj.weight - source.prelude[4].self_attn.o_proj.weight
    b, a = exact(delta, 3)
    assert gap(bases.b["o_proj"][0][:, 3:6] @ bases.a["o_proj"][0][3:6], b @ a) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("how", ["per-step", "weighted"])
def test_a_channel_that_a_norm_all_but_shuts_does_not_take_the_rank(how):
    """The residual counts behind the norms: with γ of the core near zero in a channel, W γ there is near zero too."""
    source = dense(attention_bias=[])
    with torch.no_grad():
        source.prelude[1].attention_norms.input.weight[3] = 1e-4
    model = cut(source, RELAXED, **per_step(4, targets=["q_proj"]))
    scales = input_scales(source, RELAXED, IDS) if how == "weighted" else None
    rows = start_bases(model, source, RELAXED, how=how, activations=scales)
    row = next(row for row in rows if (row.layer, row.step) == (0, 1))
    first, third = (source.prelude[i] for i in (1, 3))
    gains = [block.attention_norms.input.weight for block in (first, third)]
    delta = third.self_attn.q_proj.weight * gains[1] - first.self_attn.q_proj.weight * gains[0]
    scale = torch.ones(16) if scales is None else scales["q_proj"][3] / gains[1].abs()
    factors = model.adapters[0].factors
    rest = delta - factors.b["q_proj"][1, 0] @ (factors.a["q_proj"][1, 0] * gains[0])
    best = torch.linalg.svdvals(delta * scale)
    assert row.error == pytest.approx(float(best[4:].norm() / best.norm()), rel=1e-3)
    assert float((rest * scale).norm() / best.norm()) == pytest.approx(row.error, rel=1e-3)


@torch.no_grad()
def test_a_step_that_is_the_core_itself_keeps_its_fresh_start():
    """Nothing to add, and factors that can still learn: A as it started, B zero."""
    source = dense()
    model = cut(source, RELAXED, **per_step(4))
    fresh = {name: table[0].clone() for name, table in model.adapters[0].factors.a.items()}
    rows = start_bases(model, source, RELAXED, how="per-step")
    assert all(row.error == 0.0 for row in rows if row.step == 0)
    for name, table in model.adapters[0].factors.a.items():
        assert torch.equal(table[0], fresh[name]) and not torch.equal(table[1], fresh[name])
        assert not model.adapters[0].factors.b[name][0].any()


@settings(max_examples=20)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 6), st.integers(0, 5))
def test_the_randomised_svd_is_the_exact_one(rows, columns, rank, seed):
    generator = torch.Generator().manual_seed(seed)
    delta = torch.randn(rows, columns, generator=generator) @ torch.diag(0.5 ** torch.arange(float(columns)))
    rank = min(rank, rows, columns)
    (b, a), (rb, ra) = exact(delta, rank), randomised(delta, rank)
    assert gap(b @ a, rb @ ra) < 1e-4
    assert gap(ra @ ra.T, torch.eye(rank)) < 1e-4
    torch.manual_seed(seed)  # the global generator is neither read nor moved
    state = torch.get_rng_state()
    assert torch.equal(randomised(delta, rank)[0], rb) and torch.equal(torch.get_rng_state(), state)


@torch.no_grad()
def test_weights_move_the_error_to_where_little_enters():
    source = dense()
    model = cut(source, MIDDLE, adapters=[{"kind": "diagonal", "rank": 2, "targets": ["down_proj"]}], max_steps=4)
    scales = input_scales(source, MIDDLE, IDS)
    assert scales["down_proj"].shape == (8, 24)
    scale = scales["down_proj"][[2, 3, 5, 6]].square().mean(0).sqrt()
    bases, errors = model.adapters[0].bases, {}
    weights = [source.prelude[i].mlp.down_proj.weight for i in range(8)]
    delta = torch.stack([weights[i] - weights[4] for i in (2, 3, 5, 6)]).mean(0)
    for how in ("mean", "weighted"):
        (row,) = start_bases(model, source, MIDDLE, how=how, activations=scales if how == "weighted" else None)
        rest = delta - bases.b["down_proj"][0] @ bases.a["down_proj"][0]
        errors[how] = float(rest.norm()), float((rest * scale).norm())
    assert errors["weighted"][1] < errors["mean"][1] and errors["mean"][0] < errors["weighted"][0]
    assert row.error == pytest.approx(errors["weighted"][1] / float((delta * scale).norm()), abs=1e-6)


@torch.no_grad()
def test_scales_are_those_of_the_inputs():
    source = dense()
    scales = input_scales(source, RELAXED, IDS)
    _, p = source.embed(IDS)
    x = source.token_vectors(IDS)
    for i, block in enumerate(source.prelude):
        expected = block.attention_norms.input(x).square().flatten(0, 1).mean(0).sqrt() * (1 <= i <= 6)
        assert gap(scales["q_proj"][i], expected) < 1e-6
        x = block(x, p, Place("prelude", FIRST, i))
    assert not any(module._forward_pre_hooks for module in source.modules())


class Alive(TorchDispatchMode):
    """Follows the bytes of every storage that is made while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self.sizes and storage._cdata not in known:
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return result


@pytest.mark.parametrize(("how", "adapters"), [("mean", [{"kind": "diagonal", "rank": 4}]), ("per-step", per_step(4)["adapters"])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_one_residual_is_there_at_a_time(how, adapters, dtype):
    """A residual and what it is made of: a few times one map, though four layers of seven maps were removed."""
    source = dense(hidden_size=64, intermediate_size=96).to(dtype)
    model = cut(source, MIDDLE, adapters=adapters, max_steps=4).to(dtype)
    largest = 64 * 96 * 4
    with Alive() as alive:
        start_bases(model, source, MIDDLE, how=how, method="randomised")
    assert largest <= alive.peak <= 4.5 * largest


@pytest.mark.parametrize(
    ("group", "steps", "expected"),
    [
        ((1, 3, 5), 3, [[1], [3], [5]]),
        ((1, 3, 5), 5, [[1], [3], [5], [5], [5]]),
        ((1, 2, 3, 4, 5), 2, [[1, 2], [3, 4, 5]]),
    ],
)
def test_what_a_step_stands_for(group, steps, expected):
    assert [stands_for(group, step, steps) for step in range(steps)] == expected


@pytest.mark.parametrize(
    ("parts", "layout", "options", "message"),
    [
        (per_step(17), RELAXED, {"how": "per-step"}, r"bases: rank 17 on down_proj; allowed: at most 16, its smaller side"),
        (per_step(2, targets="branches"), RELAXED, {"how": "per-step"}, "target 'attention' is a whole branch"),
        (per_step(2), RELAXED, {"how": "perstep"}, "unknown 'perstep'; did you mean 'per-step'"),
        (per_step(2), RELAXED, {"method": "random"}, "did you mean 'randomised'"),
        (per_step(2), RELAXED, {"how": "weighted"}, "how 'weighted' without activations; 'weighted' needs them"),
        (per_step(2), RELAXED, {"activations": {}}, "how 'mean' with activations"),
        ({"adapters": [{"kind": "abba"}], "max_steps": 3}, RELAXED, {}, "no adapter of the core holds any; allowed: low-rank"),
        (per_step(2), Layout((), (1, 2), (), ((1, 3), (2,)), 3), {}, r"layer 1 of the core stands for \[2\], and nothing was"),
    ],
)
def test_refused_in_one_line_and_nothing_half_done(parts, layout, options, message):
    source = dense()
    model = cut(source, layout, **parts)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        start_bases(model, source, layout, **options)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
