"""Running a step again: from where, with which random numbers, in which autocast, and through which parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from loopwright.model.passes import Pass
from loopwright.model.presets import PRESETS
from loopwright.training.gradient import OUTSIDE, GradSteps, Recompute, Start, forget_casts, pull_back, step_parameters
from tests.cases import UNLIKE, noisy, some
from tests.training.gradient_helpers import padded_batch


@pytest.mark.parametrize("name", some(PRESETS, UNLIKE))
def test_step_parameters_are_all_that_a_step_uses(name: str) -> None:
    model = noisy(f"{name}-tiny")
    batch = padded_batch(model)
    e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask)
    after = model.step(torch.randn_like(e), e.detach(), 0, p)
    every = dict(model.named_parameters())
    found = pull_back(after, list(every.values()), torch.randn_like(after))
    used = {id(every[name]) for name, grad in zip(every, found, strict=True) if grad is not None}
    listed = [id(x) for x in step_parameters(model)]
    assert used <= set(listed) and len(listed) == len(set(listed))
    assert all(x.requires_grad for x in step_parameters(model))


def test_what_is_outside_the_loop_is_named_as_the_model_names_it() -> None:
    names = {n for preset in PRESETS for n, _ in noisy(f"{preset}-tiny").named_children()}
    assert names >= set(OUTSIDE)
    assert names - set(OUTSIDE) == {"core", "injection", "adapters", "gate", "end_norm", "layer_post_norm"}


def test_onward_finds_the_states_and_random_numbers_of_the_first_run() -> None:
    model = noisy("stars-addition-tiny", dropout=0.3).train()
    batch = padded_batch(model)
    e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask)
    recompute = Recompute(GradSteps(model, e, p, e, 0, 6, model.step, "last"))
    torch.manual_seed(4)
    starts: list[Start] = []

    def noted(s: Tensor, e: Tensor, t: int, p: Pass) -> Tensor:
        starts.append(recompute.start(t, s))
        return model.step(s, e, t, p)

    with torch.no_grad():
        states = list(model.unroll(e, 6, p, state=e, step=noted))
    assert all(torch.equal(start.s, s) for start, s in zip(starts, [e, *states], strict=False))
    before = torch.get_rng_state()
    found = recompute.onward(starts[1], e, [3, 5])
    assert torch.equal(before, torch.get_rng_state())
    for start in found:
        assert torch.equal(start.s, starts[start.t].s) and torch.equal(start.random, starts[start.t].random)
    assert [start.t for start in found] == [3, 5]
    assert not torch.equal(starts[3].random, starts[5].random)


def test_random_state_is_read_only_where_something_is_drawn() -> None:
    for model, draws in (
        (noisy("stars-addition-tiny").train(), False), (noisy("stars-addition-tiny", dropout=0.1).eval(), False),
        (noisy("stars-addition-tiny", dropout=0.1).train(), True),
    ):  # fmt: skip
        e, p = model.embed(padded_batch(model).input_ids)
        assert (Recompute(GradSteps(model, e, p, e, 0, 6, model.step, "last")).start(0, e).random is not None) == draws


def test_random_state_is_put_back_after_an_error() -> None:
    model = noisy("stars-addition-tiny", dropout=0.1).train()
    e, p = model.embed(padded_batch(model).input_ids)
    recompute = Recompute(GradSteps(model, e, p, e, 0, 6, model.step, "last"))
    start = recompute.start(0, e)
    torch.rand(3)
    before = torch.get_rng_state()

    def broken() -> None:
        with recompute.again(start):
            assert torch.equal(torch.get_rng_state(), start.random)
            raise ZeroDivisionError(torch.rand(5))

    with pytest.raises(ZeroDivisionError):
        broken()
    assert torch.equal(before, torch.get_rng_state())


def test_autocast_is_entered_again() -> None:
    model = noisy("stars-addition-tiny")
    e, p = model.embed(padded_batch(model).input_ids)
    with torch.autocast("cpu", dtype=torch.float16):
        inside = Recompute(GradSteps(model, e, p, e, 0, 6, model.step, "last"))
    outside = Recompute(GradSteps(model, e, p, e, 0, 6, model.step, "last"))
    with inside.again(inside.start(0, e)):
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.float16
    with torch.autocast("cpu", dtype=torch.bfloat16), outside.again(outside.start(0, e)):
        assert not torch.is_autocast_enabled("cpu")


def test_forgotten_casts_let_gradients_be_summed_in_float32() -> None:
    weight, x = torch.nn.Parameter(torch.randn(8, 8)), torch.randn(4, 8)

    def summed(forget: bool) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            total = torch.zeros(4, 8)
            for factor in range(1, 9):
                if forget:
                    forget_casts()
                total = total + torch.nn.functional.linear(x * factor, weight).float()
        return torch.autograd.grad(total.square().sum(), weight)[0]

    kept, forgotten = summed(False), summed(True)
    assert torch.equal(kept, kept.bfloat16().float())  # autocast alone: eight shares, one low-precision sum
    assert not torch.equal(forgotten, forgotten.bfloat16().float())


def test_pull_back_leaves_out_what_needs_no_gradient() -> None:
    a, b, c = torch.ones(2, requires_grad=True), torch.ones(2), torch.ones(2, requires_grad=True)
    assert [None if g is None else g.tolist() for g in pull_back(a * b, [a, b, c], torch.tensor([2.0, 3.0]))] == [
        [2.0, 3.0],
        None,
        None,
    ]
    assert pull_back(b * b, [a, b], torch.ones(2)) == [None, None]


def test_blocks_sharded_on_their_own_are_refused() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = noisy("huginn-tiny")
        assert step_parameters(model)
        fully_shard(model.core[0], mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match=r"sharded on their own \(FSDP\); shard the whole model, or use remat none"):
            step_parameters(model)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("keeps", ["every", "last"])
def test_a_stretch_returns_the_states_that_are_wanted(keeps: str) -> None:
    model = noisy("huginn-tiny")
    e, p = model.embed(padded_batch(model).input_ids)
    seen: list[int] = []

    def noted(s: Tensor, e: Tensor, t: int, p: Pass) -> Tensor:
        seen.append(t)
        return model.step(s, e, t, p)

    states = list(model.unroll(e, 4, p, state=e, first_step=2))
    found = GradSteps(model, e, p, e, 2, 4, model.step, keeps).run(noted)
    assert seen == [2, 3, 4, 5]
    assert all(torch.equal(a, b) for a, b in zip(found, states if keeps == "every" else states[-1:], strict=True))
    assert GradSteps(model, e, p, e, 2, 0, model.step, keeps).run(noted) == []
