"""How converted models are healed in "Retrofitted recurrence", from the launch script of its Figure 7 and its training code."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import loopwright as lw
from loopwright.recipes import recipe
from loopwright.schema import build_kind
from loopwright.training.depth import RULES
from loopwright.training.optim import OPTIMISERS, SCHEDULES
from tests.cases import noisy
from tests.systems.items import differs, same

SYSTEM = "Retrofitted recurrence"
CHOSEN = recipe("retrofit-curriculum")
LLAMA = "retrofit-llama-1b-tiny"


def orthogonal(g: Tensor) -> Tensor:
    """Five steps of the quintic Newton–Schulz iteration, in bfloat16 as published."""
    x = g.bfloat16() / g.bfloat16().norm().clamp(min=1e-7)
    x = x.mT if len(g) > g.shape[1] else x
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if len(g) > g.shape[1] else x).float()


def muon(w: Tensor, m: Tensor, g: Tensor, rate: float, decay: float) -> tuple[Tensor, Tensor]:
    """One update of the public muon package: Nesterov momentum, √max(1, rows / columns)."""
    m = 0.95 * m + 0.05 * g
    step = orthogonal(0.05 * g + 0.95 * m) * math.sqrt(max(1.0, w.shape[0] / w.shape[1]))
    return w * (1 - rate * decay) - rate * step, m


@same(SYSTEM, "Muon for blocks and adapter, q, k and v one matrix, gate and up another, AdamW for the rest")
def test_optimiser() -> None:
    """Three updates of every tensor, as the public code would move its packed matrices."""
    torch.manual_seed(0)
    model = noisy(LLAMA, std=0.1)
    kind = build_kind(CHOSEN.optim, OPTIMISERS)
    kind.prepare(model)
    optimiser = kind(model)
    packs: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for name, p in model.named_parameters():
        inner = name.replace("q_proj", "Wqkv").replace("k_proj", "Wqkv").replace("v_proj", "Wqkv")
        packs.setdefault(inner.replace("gate_proj", "fc").replace("up_proj", "fc"), []).append((name, p))
    starts = {name: torch.cat([p.detach().clone() for _, p in pack]) for name, pack in packs.items()}
    joined = dict(starts)
    kept = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in joined.items()}
    for t in range(1, 4):
        for p in model.parameters():
            p.grad = torch.randn(p.shape)
        for name, pack in packs.items():
            g, w, (m, v) = torch.cat([p.grad for _, p in pack]), joined[name], kept[name]  # type: ignore[misc]
            if "norm" in name or "embed" in name or "lm_head" in name:
                m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
                step = m / (1 - 0.9**t) / ((v / (1 - 0.95**t)).sqrt() + 1e-10)
                joined[name] = w * (1 - 5e-5 * 1e-4) - 5e-5 * step
            else:
                joined[name], m = muon(w, m, g, 1e-3, 1e-4)
            kept[name] = m, v
        optimiser.step()
    for name, pack in packs.items():
        off = torch.cat([p.detach() for _, p in pack]) - joined[name]
        assert off.norm() < 0.05 * (joined[name] - starts[name]).norm(), name  # products in bfloat16; apart it is 0.5


@same(SYSTEM, "warm-up of 0.25 %, cosine over the last 60 %, 50,000 updates of 1,024 rows of 1,024 tokens")
def test_schedule() -> None:
    schedule, count = build_kind(CHOSEN.schedule, SCHEDULES), CHOSEN.updates
    warm, fall = math.ceil(0.0025 * count), math.ceil(0.6 * count)
    assert (count, CHOSEN.batch, CHOSEN.data["length"]) == (50_000, 1024, 1024)
    for update in (0, 60, warm, 10_000, count - fall, 30_000, 40_000, count - 1):
        progress = max(0.0, (update - (count - fall)) / fall)
        wanted = min(1.0, update / warm) * (0.001 + 0.999 * (1 + math.cos(math.pi * progress)) / 2)
        assert schedule(update, count) == pytest.approx(wanted, abs=1 / warm if update < warm else 1e-12)


@same(SYSTEM, "mean depth grown to 32 over 75 % of the updates, gradient through at most 8 steps")
def test_curriculum() -> None:
    both: Any = build_kind(CHOSEN.depth, RULES)
    rule = both.rule
    assert len({plan.depth for plan in both.plans(49_999, 8, torch.Generator().manual_seed(0))}) == both.draws == 2
    for update in (0, 1, 50, 9_000, 25_000, 37_499, 37_500, 49_999):
        mean = max(1, math.ceil(32 * (1 - math.sqrt(1 - min(1.0, update / (0.75 * CHOSEN.updates))))))
        now = rule.at(update)
        assert now.size == mean and now.grad_steps == min(8, mean), update
    own, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    found = np.array([rule(49_999, generator).depth for _ in range(2000)])
    wanted = own.poisson(own.lognormal(math.log(32) - 0.5**2 / 2, 0.5, 40_000)) + 1
    grid = np.arange(1, 200)
    distance = np.abs((found[:, None] <= grid).mean(0) - (wanted[:, None] <= grid).mean(0)).max()
    assert distance < 1.63 / math.sqrt(2000) and CHOSEN.accumulate == 2


@same(SYSTEM, "cross-entropy after the last step, clip 1.0, bf16 over fp32, all parameters train")
def test_loss_and_what_trains() -> None:
    assert CHOSEN.objective == {"kind": "final"} and CHOSEN.clip == 1.0 and CHOSEN.precision == "bf16"
    model = lw.build(LLAMA)
    kind = build_kind(CHOSEN.optim, OPTIMISERS)
    kind.prepare(model)
    assert set(kind(model).parameters) == {name for name, _ in model.named_parameters()}


@same(SYSTEM, "packed documents see each other, validation at depths 1 to 64")
def test_packing() -> None:
    assert CHOSEN.data["apart"] is False and list(CHOSEN.validate.depths) == [1, 2, 4, 8, 16, 32, 64]


@differs(SYSTEM, "text of the healing")
def test_text_is_another() -> None:
    assert recipe("retrofit-curriculum", ["data.dataset=some/other"]).data["dataset"] == "some/other"
    with pytest.raises(ValueError, match="dataset"):
        recipe("retrofit-curriculum", ["data.dataset=[one, two]"])


@differs(SYSTEM, "tokens of a row")
def test_a_row_asks_for_one_token_less_than_it_reads(tmp_path: Path) -> None:
    from loopwright.data.build import build_data
    from tests.data.words import save_words

    save_words(tmp_path / "tokenizer")
    (tmp_path / "text.jsonl").write_text('{"text": " the a "}\n' * 40)
    data = {"kind": "text", "files": str(tmp_path / "text.jsonl"), "tokenizer": str(tmp_path / "tokenizer"), "valid": 4}
    rows = build_data({**data, "length": 8, "apart": False}, tmp_path / "shards").train.batch([0, 1])
    assert rows.input_ids.shape == (2, 8) and (rows.labels[:, 1:] != -100).sum(1).tolist() == [7, 7]
    assert int(rows.input_ids[0, -1]) == int(rows.input_ids[1, 0])
    words = lw.tokenizer(tmp_path / "tokenizer")
    assert " the a " in words.decode(rows.input_ids.flatten())


@differs(SYSTEM, "warm-up")
def test_the_first_update_moves() -> None:
    schedule = build_kind(CHOSEN.schedule, SCHEDULES)
    assert [schedule(update, CHOSEN.updates) for update in (0, 124, 125)] == [1 / 126, 125 / 126, 1.0]


@differs(SYSTEM, "`retrofit-growing`")
def test_ours_is_beside_it() -> None:
    ours = recipe("retrofit-growing")
    assert ours.data["apart"] and ours.accumulate == 16 and ours.optim["adam_lr"] == 3e-4 and not ours.optim.get("packed")
