"""Reading out at the targets alone equals reading out everywhere, for every preset, in values and in gradients."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.data.batch import Batch
from loopwright.model.presets import PRESETS
from loopwright.training.objectives import readout
from loopwright.training.objectives.readout import (
    StepWeights,
    cross_entropies,
    find_targets,
    over_chunks,
    target_features,
    target_logits,
)
from loopwright.training.rollout import Plan, rollout
from tests.cases import gap, noisy

TINY = [f"{name}-tiny" for name in PRESETS]


def packed() -> Batch:
    """Three rows: one padded, one of two documents, one without any target."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(15, (3, 7), generator=generator)
    labels = ids.clone()
    labels[:, :3] = labels[0, 5:] = labels[2] = -100
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[0, 5:] = 0
    segments = torch.zeros(3, 7, dtype=torch.long)
    segments[1, 4:] = 1
    return Batch(ids, labels, mask, segments)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=4))
@settings(max_examples=40)
def test_targets_are_the_labels_that_are_not_ignored_each_asked_of_the_place_before(rows):
    length = max(map(len, rows))
    ids = torch.arange(len(rows) * length).view(len(rows), length)
    asked = torch.tensor([row + [False] * (length - len(row)) for row in rows])
    labels = torch.where(asked, ids, -100)
    batch = Batch(ids, labels)
    targets = find_targets(batch)
    wanted = [(b * length + i - 1, int(ids[b, i])) for b in range(len(rows)) for i in range(1, length) if asked[b, i]]
    assert list(zip(targets.places.tolist(), targets.ids.tolist(), strict=True)) == wanted
    assert targets.ids.numel() == batch.targets
    assert gap(labels, torch.where(asked, ids, -100)) == 0  # the batch is not changed


@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
def test_targets_further_ahead_stay_in_their_row_document_and_real_tokens(ready, side):
    batch = packed()
    batch.labels[1, 1] = batch.input_ids[1, 1]  # two places before it lies another row
    if side == "left":
        batch.attention_mask[:] = 1
        batch.attention_mask[1, :2] = 0
        batch.labels[1, 3] = batch.input_ids[1, 3]
    targets = find_targets(batch.ready() if ready else batch, ahead=2)
    counted = [(p, i) for p, i, w in zip(targets.places.tolist(), targets.ids.tolist(), targets.share.tolist(), strict=True) if w]
    wanted = [
        (b * 7 + i - 2, int(batch.labels[b, i]))
        for b in range(3)
        for i in range(2, 7)
        if batch.labels[b, i] != -100 and batch.attention_mask[b, i - 2] and batch.segment_ids[b, i] == batch.segment_ids[b, i - 2]
    ]
    assert counted == wanted and wanted and sum(targets.share) == pytest.approx(1)


@pytest.mark.parametrize("name", TINY)
def test_equals_the_full_read_out_one_step_at_a_time(name):
    model, batch = noisy(name).double(), packed()
    path = rollout(model, batch, Plan(3 if model.config.max_steps is None else 2, 3))
    targets = find_targets(batch)
    losses, log_z = cross_entropies(model, target_features(model, path.states, path.p, targets), path.p, targets)
    plain, plain_z = [], []
    for s in path.states:
        logits = model.read_out(s, path.p)[:, :-1]
        wanted = batch.labels[:, 1:]
        plain.append(F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")[wanted.flatten() != -100])
        plain_z.append(logits.logsumexp(-1)[wanted != -100])
    assert losses.shape == (len(path.states), batch.targets)
    assert gap(losses, torch.stack(plain)) < 1e-12
    assert gap(log_z, torch.stack(plain_z)) < 1e-12
    parameters = [p for p in model.parameters() if p.requires_grad]
    ours = torch.autograd.grad(losses.sum() + (log_z**2).sum(), parameters, retain_graph=True, allow_unused=True)
    theirs = torch.autograd.grad(sum(x.sum() for x in plain) + sum((z**2).sum() for z in plain_z), parameters, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert gap(a, b) < 1e-10


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny"])
@pytest.mark.parametrize("rows", [1, 5])
def test_chunks_change_neither_values_nor_gradients(name, rows, monkeypatch):
    model, batch = noisy(name).double(), packed()
    path = rollout(model, batch, Plan(3, 3))
    targets = find_targets(batch)

    def run() -> tuple[torch.Tensor, ...]:
        losses, log_z = cross_entropies(model, target_features(model, path.states, path.p, targets), path.p, targets)
        return losses, *torch.autograd.grad((losses * log_z).sum(), [model.lm_head.weight, *path.states], retain_graph=True)

    whole = run()
    reads = []
    monkeypatch.setattr(readout, "CHUNK", rows * model.config.vocab_size)
    monkeypatch.setattr(readout, "target_logits", lambda *a: reads.append(a[1].shape[0]) or target_logits(*a))
    for a, b in zip(run(), whole, strict=True):
        assert gap(a, b) < 1e-10
    assert max(reads) == rows and sum(reads) == 2 * 3 * batch.targets  # once forward, once more for the gradient


def test_a_mean_over_no_targets_is_zero_with_a_zero_gradient():
    model, batch = noisy("huginn-tiny"), packed()
    batch = Batch(batch.input_ids, torch.full_like(batch.labels, -100), batch.attention_mask, batch.segment_ids)
    path = rollout(model, batch, Plan(2, 2))
    targets = find_targets(batch)
    losses, _ = cross_entropies(model, target_features(model, path.states, path.p, targets), path.p, targets)
    loss = targets.mean(losses.mean(0))
    loss.backward()
    assert loss.item() == 0
    assert all(p.grad is not None and (p.grad == 0).all() for p in model.parameters())


def test_half_precision_is_read_in_full():
    model = noisy("ouro-1.4b-tiny").to(torch.bfloat16)
    batch = packed()
    path = rollout(model, batch, Plan(2, 2))
    targets = find_targets(batch)
    losses, log_z = cross_entropies(model, target_features(model, path.states, path.p, targets), path.p, targets)
    assert losses.dtype == log_z.dtype == torch.float32
    assert losses.mean().item() == pytest.approx(math.log(model.config.vocab_size), rel=0.5)


def test_over_chunks_joins_what_several_rows_give(monkeypatch):
    x, y = torch.randn(7, 3), torch.arange(7.0)
    monkeypatch.setattr(readout, "CHUNK", 20)
    found = over_chunks(lambda a, b: torch.stack([a.sum(1) * b, b]), 10, x, y)
    assert gap(found, torch.stack([x.sum(1) * y, y])) < 1e-6


# Weights over steps: their sum, their forms, and what is refused


@given(st.integers(1, 9), st.sampled_from(["uniform", "linear", "geometric", [0.0, 0.0, 2.0]]), st.floats(0.1, 2))
@settings(max_examples=30)
def test_weights_sum_to_one(steps, weights, ratio):
    found = StepWeights("x", weights, ratio)(steps)
    assert len(found) == (steps if isinstance(weights, str) else min(steps, 3))
    assert sum(found) == pytest.approx(1) and min(found) >= 0


def test_the_forms():
    assert StepWeights("x", "linear")(4) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert StepWeights("x", "geometric", 0.5)(3) == pytest.approx([1 / 7, 2 / 7, 4 / 7])


@pytest.mark.parametrize("weights", ["linera", [], [1.0, 0.0], [-1.0, 1.0], [float("nan"), 1.0]])
def test_what_is_no_weighting_is_refused_in_one_line(weights):
    with pytest.raises(ValueError, match=r"^objective \(grpo\): credit is") as error:
        StepWeights("objective (grpo): credit", weights)
    assert "\n" not in str(error.value)


# The cross-entropy as a kernel, beside torch's own in float64


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(1, 7), (5, 4096), (33, 9001), (0, 16)])
def test_kernel_is_the_cross_entropy(rows: int, width: int, dtype: torch.dtype) -> None:
    from loopwright.kernels.entropy import CrossEntropy

    draws = torch.Generator("cuda").manual_seed(rows + width)
    logits = (8 * torch.randn(rows, width, generator=draws, device="cuda")).to(dtype).requires_grad_()
    ids = torch.randint(0, width, (rows,), generator=draws, device="cuda")
    of_loss, of_z = (torch.randn(rows, generator=draws, device="cuda") for _ in range(2))
    exact = logits.detach().double().requires_grad_()
    z = exact.logsumexp(1)
    wanted = z - exact.gather(1, ids[:, None])[:, 0]
    (wanted @ of_loss.double() + z @ of_z.double()).backward()

    loss, log_z = CrossEntropy.apply(logits, ids)
    (loss @ of_loss + log_z @ of_z).backward()
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(log_z.double(), z, rtol=1e-5, atol=1e-5)
    assert logits.grad is not None and exact.grad is not None and logits.grad.dtype == dtype
    near = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=near, atol=near * 0.1)
