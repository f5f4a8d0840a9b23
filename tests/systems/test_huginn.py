"""How Huginn is pretrained ("Scaling up Test-Time Compute with Latent Reasoning" and its public code), written again from them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.data.build import build_data
from loopwright.recipes import recipe
from loopwright.schema import build_kind
from loopwright.training.depth import RULES
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.optim import OPTIMISERS, SCHEDULES, EllisAdam
from loopwright.training.rollout import Plan, rollout
from tests.cases import noisy
from tests.data.words import save_words
from tests.systems.items import differs, same

SYSTEM = "Huginn"
CHOSEN = recipe("huginn-pretrain")


def ellis(weight: np.ndarray, grads: list[np.ndarray], rates: list[float], full: float, decay: float) -> np.ndarray:
    """ELLISAdam as the launch file sets it: running_init, update_clipping, atan_adam, decoupled decay."""
    b1, b2, floor = 0.9, 0.95, 1e-16
    m, v, w = grads[0].copy(), grads[0] ** 2, weight.copy()
    for t, (g, rate) in enumerate(zip(grads, rates, strict=True), start=1):
        m = b1 * m + (1 - b1) * g
        v = np.maximum(b2 * v + (1 - b2) * g**2, floor)
        size = rate / max(1.0, math.sqrt(float((g**2 / v).mean()))) / (1 - b1**t)
        w = w * (1 - rate / full * decay) - size * np.arctan2(m, np.sqrt(v) / math.sqrt(1 - b2**t))
    return w


@same(SYSTEM, "optimiser: Adam by atan2, clipped updates, moments that begin as the first gradient")
def test_optimiser() -> None:
    """Eight updates of two tensors, the fifth with a gradient a thousand times larger; the rate warms up and falls."""
    rng, full, decay = np.random.default_rng(0), 4e-5, 4e-5
    shapes, rates = [(5, 7), (3,)], [full * f for f in (0.25, 0.5, 0.75, 1.0, 1.0, 0.6, 0.3, 0.0)]
    grads = [[rng.normal(size=shape) * (1e3 if t == 4 else 1.0) for t in range(8)] for shape in shapes]
    starts = [rng.normal(size=shape) for shape in shapes]
    weights = [torch.nn.Parameter(torch.tensor(start)) for start in starts]
    optimiser = EllisAdam(weights, lr=full, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay)
    for t, rate in enumerate(rates):
        for group in optimiser.param_groups:
            group["lr"] = rate
        for weight, series in zip(weights, grads, strict=True):
            weight.grad = torch.tensor(series[t])
        optimiser.step()
    for weight, start, series in zip(weights, starts, grads, strict=True):
        moved = ellis(start, series, rates, full, decay) - start
        assert np.abs(weight.detach().numpy() - start - moved).max() < 1e-10 * np.abs(moved).max()
    assert CHOSEN.optim == {"kind": "ellis-adam", "lr": full, "betas": [0.9, 0.95], "weight_decay": decay} and CHOSEN.clip == 1.0


@same(
    SYSTEM,
    "rate 4e-5 after 4,096 updates, 4,096 rows of 4,096 tokens, 0.8 trillion in all",
)
def test_schedule() -> None:
    schedule = build_kind(CHOSEN.schedule, SCHEDULES)
    for update in (0, 1, 100, 2048, 4095, 4096, 20_000, CHOSEN.updates - 1):
        assert schedule(update, CHOSEN.updates) == pytest.approx(min(1.0, update / 4096), abs=1 / 4096)
    assert CHOSEN.batch == CHOSEN.data["length"] == 4096
    assert CHOSEN.updates * 4096**2 == pytest.approx(0.8e12, rel=1e-4)


@same(SYSTEM, "depths: 1 + Poisson of a log-normal rate around 32, gradient through the last 8 steps")
def test_draws() -> None:
    rule, generator, count = build_kind(CHOSEN.depth, RULES), torch.Generator().manual_seed(0), 3000
    plans = [rule.plans(0, 1, generator)[0] for _ in range(count)]
    assert len({plan.depth for plan in rule.plans(0, 64, generator)}) == 1  # however many batches an update has
    own = np.random.default_rng(1)
    wanted = 1 + own.poisson(own.lognormal(math.log(32) - 0.5**2 / 2, 0.5, 20 * count))
    found = np.array([plan.depth for plan in plans])
    grid = np.arange(1, 200)
    distance = np.abs((found[:, None] <= grid).mean(0) - (wanted[:, None] <= grid).mean(0)).max()
    assert distance < 1.63 / math.sqrt(count) and CHOSEN.accumulate == 1  # Kolmogorov and Smirnov at 1 %
    assert all(plan.grad_steps == min(8, plan.depth) for plan in plans)


def released_sampler(mean: int, backprop: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The released model's own draws, written again: steps without a gradient, and with one."""
    own = np.random.default_rng(seed)
    t, s = max(mean - backprop, 0), backprop
    p = own.poisson(own.lognormal(math.log(t + s) - 0.5**2 / 2, 0.5, count)) + 1
    return np.maximum(p - s, 0), np.minimum(s, p)


@differs(SYSTEM, "mean depth below the steps with a gradient")
@pytest.mark.parametrize(
    ("mean", "depth", "without", "with_one"), [(32, 33, 25, 7.98), (8, 9, 2.38, 6.62), (4, 9, 2.38, 6.62), (1, 9, 2.38, 6.62)]
)
def test_short_means(mean: int, depth: float, without: float, with_one: float) -> None:
    """Beside the original's values, which are those of a mean of 8 for every smaller one."""
    free, held = released_sampler(mean, 8, 200_000, 0)
    assert (free + held).mean() == pytest.approx(depth, rel=0.02)
    assert free.mean() == pytest.approx(without, rel=0.05) and held.mean() == pytest.approx(with_one, rel=0.02)

    rule, generator, count = build_kind({"kind": "poisson-log-normal", "mean": mean}, RULES), torch.Generator().manual_seed(0), 4000
    plans = [rule.plans(0, 1, generator)[0] for _ in range(count)]
    found = np.array([plan.depth for plan in plans])
    assert found.mean() == pytest.approx(mean + 1, rel=0.06)
    assert all(plan.grad_steps == min(8, mean, plan.depth) for plan in plans)
    grid = np.arange(1, 200)
    distance = np.abs((found[:, None] <= grid).mean(0) - ((free + held)[:, None] <= grid).mean(0)).max()
    near = 1.63 / math.sqrt(count)  # Kolmogorov and Smirnov at 1 %
    assert distance < near if mean >= 8 else distance > 10 * near
    assert mean >= 8 or np.mean(found > [plan.grad_steps for plan in plans]) > 0.25  # a part of the steps has no gradient


@same(SYSTEM, "loss: cross-entropy after the last step")
def test_loss() -> None:
    model = noisy("huginn-tiny", std=0.1).double()
    ids = torch.randint(0, 96, (2, 9), generator=torch.Generator().manual_seed(1))
    batch = Batch(ids, ids)
    ran = rollout(model, batch, Plan(5, 2))
    loss, _ = build_kind(CHOSEN.objective, OBJECTIVES)(model, ran)
    logits = model.head(model.features(ran.last, ran.p), ran.p)
    wanted = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert loss.item() == pytest.approx(wanted.item(), abs=1e-12)


@same(SYSTEM, "all weights train, with decay of matrices and the embedding")
def test_decay_groups() -> None:
    model = lw.build("huginn-tiny")
    kind = build_kind(CHOSEN.optim, OPTIMISERS)
    kind.prepare(model)
    groups = kind(model).param_groups
    decayed = {name: group["weight_decay"] > 0 for group in groups for name in group["param_names"]}
    assert sorted(decayed) == sorted(name for name, _ in model.named_parameters())
    for name, decays in decayed.items():
        assert decays == ("norm" not in name and "bias" not in name), name


@same(SYSTEM, "packed documents see each other")
def test_packing(tmp_path: Path) -> None:
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": f"{i}{i}"}) + "\n" for i in range(9)))
    words = save_words(tmp_path / "words")
    data = {"kind": "text", "files": str(tmp_path / "text.jsonl"), "tokenizer": words, "length": 8, "valid": 4}
    rows = build_data({**data, "apart": CHOSEN.data["apart"]}, tmp_path / "kept").train.batch([0, 1])
    assert rows.segment_ids is None and rows.attention_mask is None and rows.targets == 2 * (8 - 1)


@same(SYSTEM, "validation at depths 1 to 64, bf16 over fp32 weights, each step recomputed")
def test_validation_and_precision() -> None:
    assert list(CHOSEN.validate.depths) == [1, 4, 8, 16, 32, 64]
    assert (CHOSEN.precision, CHOSEN.remat) == ("bf16", "step")


@differs(SYSTEM, "text of the pretraining")
def test_text_is_another() -> None:
    assert "dataset" not in CHOSEN.data and recipe("huginn-pretrain", ["data.dataset=some/other"]).data["dataset"] == "some/other"


@differs(SYSTEM, "first update")
def test_the_first_update_moves() -> None:
    """The public code leaves its first optimiser step out, and its rate begins at 0."""
    assert build_kind(CHOSEN.schedule, SCHEDULES)(0, CHOSEN.updates) == 1 / 4097


@differs(SYSTEM, "`looped-pretrain`")
def test_ours_is_beside_it() -> None:
    ours = recipe("looped-pretrain")
    assert ours.model == CHOSEN.model and ours.data["apart"] and ours.optim["kind"] == "adamw" and ours.accumulate == 64
