"""ASURA: the blog's equations and pseudocode, and the settings of its public trainer, written again from them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.model.cost import parameters
from loopwright.model.parts.part import FIRST
from loopwright.model.presets import preset
from loopwright.recipes import recipe
from loopwright.schema import build_kind
from loopwright.training.gradient import REMATS
from loopwright.training.loop import train
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.optim import OPTIMISERS, SCHEDULES
from loopwright.training.report import Silent
from loopwright.training.rollout import Plan, rollout
from tests.cases import noisy
from tests.systems.items import differs, same

SYSTEM = "ASURA"
CHOSEN = recipe("asura-text")


def normed(x: Tensor, norm: Any, step: int | None = None) -> Tensor:
    weight, bias = (p if step is None else p[step] for p in (norm.weight, norm.bias))
    return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) * weight + bias


def attention(m: Any, a: Tensor) -> Tensor:
    """Causal attention with rotary positions, by halves."""
    heads, width = 4, a.shape[-1] // 4
    q, k, v = (getattr(m, f"{n}_proj")(a).unflatten(-1, (heads, width)).transpose(1, 2) for n in "qkv")
    angles = torch.arange(a.shape[1])[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    cos, sin = (f(torch.cat([angles, angles], -1).float()).double() for f in (torch.cos, torch.sin))

    def turn(x: Tensor) -> Tensor:
        return x * cos + torch.cat([-x[..., width // 2 :], x[..., : width // 2]], -1) * sin

    scores = turn(q) @ turn(k).mT / math.sqrt(width)
    scores = scores.masked_fill(torch.ones_like(scores[0, 0]).triu(1).bool(), -math.inf)
    return m.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def asura(model: Any, ids: Tensor, steps: int, between: str) -> Tensor:
    """The pseudocode: embed_and_ln, then ProjConcat_i, the blocks with a norm behind each, LayerNorm_i; without adapters."""
    start = normed(model.embed_tokens(ids), model.embed_norm)
    latent = start
    for i in range(steps):
        x = torch.cat([latent, start], -1) @ model.injection.weight[i].T + model.injection.bias[i]
        for layer, block in enumerate(model.core):
            x = x + attention(block.self_attn, normed(x, block.attention_norms.input))
            inner = block.mlp.up_proj(normed(x, block.mlp_norms.input))
            x = x + block.mlp.down_proj(F.gelu(inner, approximate="tanh"))
            norms = model.layer_post_norm if between != "none" else None
            if between == "per-layer-and-step":
                x = normed(x, norms[layer], i)
            elif between != "none":
                x = normed(x, norms, i if between == "per-step" else None)
        latent = normed(x, model.end_norm, i)
    return model.lm_head(normed(latent, model.norm))


@pytest.mark.parametrize("between", ["per-step", "none", "shared", "per-layer-and-step"])
@same(
    SYSTEM,
    "the pseudocode: embedding norm, ProjConcat of each step, blocks, norms behind layers and steps (eq. 2 to 4)",
)
def test_forward(between: str) -> None:
    model = noisy("asura-tiny", std=0.3, core_layers=2, adapters=[], layer_post_norm=between).double()
    ids = torch.randint(0, 96, (2, 7), generator=torch.Generator().manual_seed(0))
    for steps in (1, 3):
        found = model(ids, depth=steps).logits
        assert torch.allclose(found, asura(model, ids, steps, between), atol=1e-5, rtol=0)  # angles are float32
        if between != "none":
            assert not torch.allclose(found, asura(model, ids, steps, "none"), atol=1e-2)
    assert preset("asura").layer_post_norm == preset("asura").end_norm == "per-step"


def test_norms_behind_layers_are_as_many_as_their_name_says() -> None:
    counts = {"shared": 1, "per-step": 3, "per-layer-and-step": 6}
    for between, count in counts.items():
        model = lw.build("asura-tiny", core_layers=2, max_steps=3, layer_post_norm=between)
        assert sum(p.numel() for p in model.layer_post_norm.parameters()) == 2 * 32 * count
        assert ("layer_post_norm" in model.config.step_tables) == (between != "shared")
    kept = {"layer_post_norm": "per-step", "end_norm": "per-step", "max_steps": 3, "depth": 3}  # as saved before there were others
    assert [n for n in lw.LoopedForCausalLM(lw.LoopedConfig(**kept)).state_dict() if "post" in n] == ["layer_post_norm.weight"]


@same(SYSTEM, "ABBA by Khatri-Rao factors, without an SVD start, of its own for each step")
def test_abba() -> None:
    model = noisy("asura-tiny", std=0.3, core_layers=1, adapters=[{"kind": "abba", "rank1": 2, "rank2": 3, "targets": ["o_proj"]}])
    ids = torch.randint(0, 96, (1, 5), generator=torch.Generator().manual_seed(0))
    (adapter,) = model.double().adapters
    found = [model(ids, depth=t).logits for t in (1, 2)]
    tables = dict(adapter.named_parameters())
    assert all(table.shape[0] == model.config.max_steps and table.requires_grad for table in tables.values())
    merged = noisy("asura-tiny", std=0.3, core_layers=1, adapters=[]).double()
    merged.load_state_dict({n: p for n, p in model.state_dict().items() if not n.startswith("adapters.")})
    (b1, a1), (b2, a2) = (each.at("o_proj", 0, FIRST) for each in (adapter.first, adapter.second))
    with torch.no_grad():
        merged.core[0].self_attn.o_proj.weight += (b1 @ a1) * (b2 @ a2)
    assert torch.allclose(found[0], merged(ids, depth=1).logits, atol=1e-9, rtol=0)
    assert not torch.allclose(found[1], merged(ids, depth=2).logits, atol=1e-6)  # the second step has another


@same(SYSTEM, "loss: last step's cross-entropy plus 1e-4 (log Z)², gradient through every step, no moving average")
def test_loss() -> None:
    model = noisy("asura-tiny", std=0.1).double()
    ids = torch.randint(0, 96, (2, 9), generator=torch.Generator().manual_seed(1))
    loss, _ = build_kind(CHOSEN.objective, OBJECTIVES)(model, rollout(model, Batch(ids, ids), Plan(3, 3)))
    logits = model(ids, depth=3).logits[:, :-1].flatten(0, 1)
    log_z = logits.exp().sum(-1).log()
    wanted = (log_z - logits.gather(1, ids[:, 1:].flatten()[:, None])[:, 0] + 1e-4 * log_z**2).mean()
    assert loss.item() == pytest.approx(wanted.item(), abs=1e-10)
    assert CHOSEN.average is None and CHOSEN.depth == {"kind": "fixed", "depth": 3}


@same(SYSTEM, "the launch file's sizes, rate, betas and decay")
def test_settings() -> None:
    config = preset("asura")
    assert (config.hidden_size, config.core_layers, config.num_attention_heads, config.max_steps) == (1024, 13, 8, 3)
    assert (CHOSEN.batch, CHOSEN.data["length"], CHOSEN.optim["lr"], CHOSEN.optim["betas"]) == (512, 512, 9e-4, [0.9, 0.98])
    model = lw.build("asura-tiny")
    kind = build_kind(CHOSEN.optim, OPTIMISERS)
    kind.prepare(model)
    groups = kind(model).param_groups
    assert {name: group["weight_decay"] for group in groups for name in group["param_names"]} == {
        name: 3e-3 for name, _ in model.named_parameters()
    }
    schedule = build_kind(CHOSEN.schedule, SCHEDULES)
    for update in (1000, 5000, 200_000, CHOSEN.updates - 1):
        progress = (update - 1000) / (CHOSEN.updates - 1000)
        wanted = 0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2
        assert schedule(update, CHOSEN.updates) == pytest.approx(wanted, abs=1e-12)


@same(SYSTEM, "rematerialisation by treeverse")
def test_remat(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    ran: list[str] = []
    for name, kind in REMATS.items():
        monkeypatch.setattr(kind, "__call__", _told(kind.__call__, name, ran))
    notes = {}
    for name in ("asura-text", "asura-every-step"):
        ran.clear()
        reporter = Silent()
        overrides = [] if name == "asura-text" else ["remat=tree"]
        train(recipe(name, [*overrides, "depth.depth=3"], toy=True), tmp_path / name, reporter=reporter)
        notes[name] = [note for note in reporter.notes if "remat" in note], list(dict.fromkeys(ran))
    assert notes["asura-text"] == ([], ["tree"]) and CHOSEN.remat == "tree"
    assert notes["asura-every-step"] == (
        ["remat: tree runs as step: the objective every-step reads the state after every step, so all are kept"], ["tree", "step"],
    )  # fmt: skip


def _told(run: Any, name: str, ran: list[str]) -> Any:
    def told(self: Any, steps: Any) -> Any:
        ran.append(name)
        return run(self, steps)

    return told


@same(SYSTEM, "no more steps than were trained")
def test_later_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="depth: 4 is beyond max_steps=3"):
        lw.build("asura-tiny", max_steps=3, depth=3)(torch.arange(4)[None], depth=4)


@differs(SYSTEM, "norms behind layers")
def test_the_reading_of_equation_4() -> None:
    """The preset takes "shared across the whole iteration"; the other reading can be had."""
    assert preset("asura").layer_post_norm == "per-step"
    assert preset("asura", layer_post_norm="per-layer-and-step").layer_post_norm == "per-layer-and-step"


@differs(SYSTEM, "block")
def test_the_block_has_residuals() -> None:
    """With all that branches write taken away, a block passes its input on: the literal LN(MLP(MHA(LN(x)))) would not."""
    model = lw.build("asura-tiny", core_layers=1, adapters=[], layer_post_norm="none", end_norm="never")
    with torch.no_grad():
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            for p in model.core[0].get_submodule(name).parameters():
                p.zero_()
    x = torch.randn(1, 4, 32)
    e, p = model.embed(torch.arange(4)[None])
    assert torch.equal(model.run_layers("core", x, p, model.step_index(0)), x) and e.shape == x.shape


@differs(SYSTEM, "adapters")
def test_ranks_are_ours() -> None:
    assert preset("asura").adapters == [{"kind": "abba", "rank1": 8, "rank2": 8, "targets": "branches"}]
    public = {"kind": "low-rank", "rank": 64, "targets": "branches", "bias": True}
    assert preset("asura", adapters=[public]).adapters == [public]


@differs(SYSTEM, "number of parameters")
def test_size() -> None:
    assert parameters(preset("asura"))["total"].unique == 275_690_624


@differs(SYSTEM, "optimiser")
def test_clipping_is_by_the_norm_of_all() -> None:
    assert CHOSEN.clip == 1.0 and CHOSEN.optim["kind"] == "adamw" and "nesterov" not in CHOSEN.optim


@differs(SYSTEM, "warm-up")
def test_warm_up_begins_at_the_bottom() -> None:
    assert build_kind(CHOSEN.schedule, SCHEDULES)(0, CHOSEN.updates) == 1 / 1001


@differs(SYSTEM, "rows of text")
def test_rows_are_packed() -> None:
    assert CHOSEN.data["dataset"] == "HuggingFaceFW/fineweb" and CHOSEN.data["subset"] == "sample-100BT"
    assert CHOSEN.data["apart"] is False and CHOSEN.updates * 512 * 512 == pytest.approx(100e9, rel=0.01)


@differs(SYSTEM, "`asura-every-step`")
def test_ours_is_beside_it() -> None:
    ours = recipe("asura-every-step")
    assert ours.objective["kind"] == "every-step" and ours.average["kind"] == "ema" and ours.remat == "step"


@differs(SYSTEM, "biases and positions")
def test_the_printed_maps_have_no_biases() -> None:
    """The blog prints Q = X W_q and its like; its code has biases and turns queries and keys by their positions."""
    config = preset("asura")
    assert set(config.attention_bias) == {"q", "k", "v", "o"} and config.mlp_bias and config.head_bias
    assert config.positions == "rotary" and noisy("asura-tiny").injection.bias.any()
