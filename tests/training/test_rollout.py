"""A rollout = the model's own forward pass, and its truncated gradient = that of the last steps from a constant state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.model.presets import PRESETS
from loopwright.training.gradient import EachStep
from loopwright.training.rollout import Plan, rollout
from tests.cases import UNLIKE, noisy, some
from tests.training.gradient_helpers import differing, gradients, loss_of, padded_batch


@pytest.mark.parametrize("name", some(PRESETS, UNLIKE))
@pytest.mark.parametrize("remat", ["none", "step"])
def test_walk_is_the_forward_pass(name: str, remat: str) -> None:
    model = noisy(f"{name}-tiny")
    batch = padded_batch(model)
    depth = 4 if model.config.max_steps is None else min(4, model.config.max_steps)
    out = model(batch.input_ids, attention_mask=batch.attention_mask, depth=depth, output_steps=True, select="last")
    for plan in (Plan(depth, depth), Plan(depth, 2)):
        for enabled in (True, False):
            with torch.set_grad_enabled(enabled):
                path = rollout(model, batch, plan, remat=remat)
                last = rollout(model, batch, plan, remat=remat, keeps="last")
            assert len(path.states) == plan.grad_steps
            assert all(torch.equal(a, b) for a, b in zip(path.states, out.states[-plan.grad_steps :], strict=True))
            assert torch.equal(model.read_out(path.last, path.p), out.logits)
            assert torch.equal(path.before, out.states[-2]) and torch.equal(last.before, out.states[-2])
            assert len(last.states) == 1 and torch.equal(last.last, out.states[-1])
            assert path.last_step == depth - 1


def test_documents_in_one_row_are_walked_apart() -> None:
    model = noisy("ouroboros-qwen2.5-3b-tiny")
    ids = torch.randint(0, 96, (1, 8), generator=torch.Generator().manual_seed(0))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])
    joined = rollout(model, Batch(ids, ids, segment_ids=segments), Plan(3, 3)).last
    alone = rollout(model, Batch(ids[:, 3:], ids[:, 3:]), Plan(3, 3)).last
    assert torch.allclose(joined[:, 3:], alone, atol=1e-5)


def test_rows_do_not_see_one_another() -> None:
    model = noisy("huginn-tiny")
    batch = padded_batch(model)
    both = rollout(model, batch, Plan(4, 4)).last
    second = rollout(model, Batch(batch.input_ids[1:, 2:], batch.labels[1:, 2:]), Plan(4, 4)).last
    assert torch.allclose(both[1:, 2:], second, atol=1e-5)


@pytest.mark.parametrize("name", ["huginn-tiny", "stars-addition-tiny", "ouroboros-qwen2.5-3b-tiny", "universal-tiny"])
@pytest.mark.parametrize("grad_steps", [1, 2, 5])
def test_truncation_is_the_gradient_from_a_constant_state(name: str, grad_steps: int) -> None:
    model = noisy(name, std=0.3).double()
    batch, depth = padded_batch(model), 5
    found = gradients(model, Plan(depth, grad_steps), batch=batch)

    model.zero_grad()
    e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask)
    states = [model.start_state(e, p)]
    for t in range(depth):
        s = states[-1].detach() if t == depth - grad_steps and t else states[-1]
        states.append(model.step(s, e, t, p))
    path = rollout(model, batch, Plan(depth, grad_steps))
    loss_of(model, type(path)(batch, path.plan, e, p, states[0], states[-grad_steps:], states[-2], path.step)).backward()
    by_hand = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    assert differing(found, by_hand, lambda a, b: torch.allclose(a, b, rtol=1e-9, atol=1e-10)) == []
    if grad_steps < depth:
        whole = gradients(model, Plan(depth, depth), batch=batch)
        assert differing(found, whole, lambda a, b: torch.allclose(a, b, rtol=1e-3)) != []


def test_steps_without_a_gradient_leave_none_in_the_graph() -> None:
    model = noisy("stars-addition-tiny")
    seen: list[tuple[int, bool]] = []

    def watched(s: Tensor, e: Tensor, t: int, p: Any) -> Tensor:
        seen.append((t, torch.is_grad_enabled()))
        return model.step(s, e, t, p)

    rollout(model, padded_batch(model), Plan(5, 2), step=watched)
    assert seen == [(0, False), (1, False), (2, False), (3, True), (4, True)]
    seen.clear()
    with torch.no_grad():
        rollout(model, padded_batch(model), Plan(5, 2), step=watched)
    assert [t for t, _ in seen] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("remat", ["none", "step", "tree"])
@pytest.mark.parametrize("grad_steps", [1, 4])
def test_a_hook_takes_the_last_step(remat: str, grad_steps: int) -> None:
    model = noisy("huginn-tiny")
    batch = padded_batch(model)
    seen: list[tuple[Any, ...]] = []

    class Watcher:
        def run_last_step(self, *given: Any) -> tuple[Tensor, Tensor]:
            seen.append(given)
            step, s, e, t, p, *_ = given
            return step(s, e, t, p) * 2, s.sum()

    path = rollout(model, batch, Plan(4, grad_steps, update=7), remat=remat, hook=Watcher(), step=model.step)
    plain = rollout(model, batch, Plan(4, 4))
    ((step, s, e, t, p, given_batch, update),) = seen
    assert (step, t, given_batch, update) == (model.step, 3, batch, 7) and e is path.e and p is path.p and s is path.before
    assert torch.equal(s, plain.before) and torch.equal(path.last, plain.last * 2)
    assert path.probe is not None and torch.equal(path.probe, s.sum())
    assert plain.probe is None


def test_an_autocast_walk_without_gradients_first_still_trains_the_core() -> None:
    """Autocast must not hand the copies of the weights made without a graph to the steps that have one."""
    model = noisy("stars-addition-tiny").train()
    found = gradients(model, Plan(5, 1), autocast=True)
    assert "core.0.mlp.up_proj.weight" in found and bool(found["core.0.mlp.up_proj.weight"].abs().sum() > 0)


def test_a_dense_model_is_read_as_one_step() -> None:
    model = noisy("huginn-tiny").without_adapters()
    batch = padded_batch(model)
    path = rollout(model, batch, Plan(4, 2), remat="step")
    assert len(path.states) == 1 and path.before is path.last
    assert torch.equal(model.read_out(path.last, path.p), model(batch.input_ids, attention_mask=batch.attention_mask).logits)


def test_remat_may_be_a_kind_already_built() -> None:
    model = noisy("huginn-tiny")
    assert differing(gradients(model, Plan(3, 3)), gradients(model, Plan(3, 3), remat=EachStep())) == []


@pytest.mark.parametrize(("depth", "grad_steps"), [(0, 1), (3, 0), (2, -1)])
def test_a_plan_of_nothing_is_refused(depth: int, grad_steps: int) -> None:
    with pytest.raises(ValueError, match=f"depth {depth}, grad_steps {grad_steps}; allowed: at least 1"):
        Plan(depth, grad_steps)


def test_too_many_steps_with_a_gradient_mean_all() -> None:
    model: lw.LoopedForCausalLM = noisy("huginn-tiny")
    assert len(rollout(model, padded_batch(model), Plan(2, 9)).states) == 2
