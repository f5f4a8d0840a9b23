"""The monitor: right, and without a trace in the run it watches."""

from itertools import pairwise

import pytest
import torch

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.metrics.spectrum import causal_radius
from loopwright.model.causal_lm import plain_config
from loopwright.model.taps import Recorder
from loopwright.training.rollout import evaluating
from loopwright.training.validation import measure, parts_by_step, state_map
from tests.cases import noisy
from tests.metrics.test_dual import NAMES
from tests.training.objectives.test_jacobian import SMALL, batch_of

KEYS = ["radius_mean", "radius_least", "radius_largest", "reading", "drift_mean", "drift_largest", "contraction"]


@pytest.mark.long
def test_measure_says_what_the_map_does():
    model, batch = noisy("stars-addition-tiny", std=0.5, **SMALL).double(), batch_of(6, 4)
    found = measure(model, batch, 4, rows=3, krylov=32)
    with torch.no_grad():
        e, p = model.embed(batch.input_ids)
        states = [model.start_state(e, p), *model.unroll(e, 4, p)]
    steps = [(b - a).flatten(1).norm(dim=1) for a, b in pairwise(states)]
    drift = steps[-1] / states[-2].flatten(1).norm(dim=1)
    radius = causal_radius(state_map(model, e, p, 3), states[-1])[[0, 2, 5]]  # spread over the batch
    assert list(found) == KEYS
    assert found["radius_mean"] == pytest.approx(radius.mean().item(), rel=1e-2)
    assert found["radius_least"] == pytest.approx(radius.min().item(), rel=1e-2)
    assert found["radius_largest"] == pytest.approx(radius.max().item(), rel=1e-2)
    assert found["drift_mean"] == pytest.approx(drift.mean().item(), rel=1e-6)
    assert found["drift_largest"] == pytest.approx(drift.max().item(), rel=1e-6)
    assert found["contraction"] == pytest.approx((steps[-1] / steps[-2]).log().mean().exp().item(), rel=1e-6)
    assert 0 < found["reading"] < 10


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_measured(name):
    model = noisy(f"{name}-tiny", std=0.2)
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    assert all(x >= 0 and x == x for x in measure(model, batch_of(2, 6, attention_mask=mask), 2, krylov=6).values())


@pytest.mark.long
def test_padding_changes_nothing():
    model, batch = noisy("stars-addition-tiny", std=0.5, **SMALL).double(), batch_of(2, 3)
    right = torch.nn.functional.pad(batch.input_ids, (0, 3), value=13)
    padded = Batch(right, right, lengths=torch.tensor([3, 3]))
    a, b = measure(model, batch, 3, krylov=48, rows=2), measure(model, padded, 3, krylov=48, rows=2)
    for key in ("radius_mean", "drift_mean", "contraction"):
        assert a[key] == pytest.approx(b[key], rel=1e-5)


def test_a_run_is_not_touched():
    model, batch = noisy("stars-addition-tiny", std=0.3, dropout=0.2).train(), batch_of(4, 5)
    model.core[0].eval()  # a part that its owner has frozen
    model(batch.input_ids, labels=batch.labels).loss.backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = measure(model, batch, 3, krylov=8)
    assert measure(model, batch, 3, krylov=8) == mixed  # in the precision of the weights, and the same each time
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(p.grad, grads[name]) for name, p in model.named_parameters() if name in grads)
    assert torch.is_grad_enabled()


def test_evaluating_gives_the_modes_back_after_an_error():
    model = noisy("stars-addition-tiny").train()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert all(module.training for module in model.modules())
    with pytest.raises(ValueError, match="input"), evaluating(model):
        model(None)
    assert all(module.training for module in model.modules())


def test_depth_one_has_no_contraction_and_no_loop_is_refused():
    model = noisy("stars-addition-tiny", std=0.3)
    assert list(measure(model, batch_of(2, 4), 1, krylov=4)) == KEYS[:-1]
    with pytest.raises(ValueError, match="no core"):
        measure(lw.LoopedForCausalLM(plain_config(model.config)), batch_of(2, 4), 1)


def test_parts_by_step_are_the_gate_and_the_diagonals_of_a_pass() -> None:
    model = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3, vocab_size=15).train()
    ids = torch.randint(0, 15, (3, 6), generator=torch.Generator().manual_seed(2))
    batch, seen = Batch(ids, ids), Recorder(("gate", "diagonal"))
    found = parts_by_step(model, batch, 3)
    assert model.training and {name: list(steps) for name, steps in found.items()} == {"diagonal": [1, 2, 3], "gate": [1, 2, 3]}
    with torch.no_grad():
        model.eval()(ids, depth=3, tap=seen)
    for t in range(3):
        assert found["gate"][t + 1] == pytest.approx(seen.seen["gate", "core", t, 1].mean().item(), rel=1e-5)
        size = seen.seen["diagonal", "core", t, 0].square().mean().sqrt().item()
        assert found["diagonal"][t + 1] == pytest.approx(size, rel=1e-5)
    assert parts_by_step(noisy("huginn-tiny"), batch, 2) == {}
