"""Rematerialised = plain gradients, bit by bit, for every system and in every circumstance a run can bring about."""

from __future__ import annotations

from itertools import pairwise
from math import comb
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.model.passes import Pass
from loopwright.model.presets import PRESETS
from loopwright.training.gradient import (
    OUTSIDE,
    REMATS,
    GradSteps,
    Implicit,
    Recompute,
    Rerun,
    Start,
    Tree,
    forget_casts,
    pull_back,
    reversible,
    step_parameters,
    stops,
)
from loopwright.training.rollout import Plan, rollout
from tests.cases import UNLIKE, noisy, some
from tests.training.gradient_helpers import differing, gradients, loss, padded_batch

BITWISE = ("step", "tree")


def trained(name: str, **changes: Any) -> lw.LoopedForCausalLM:
    return noisy(name, std=0.3, **changes).train()


def deepest(model: lw.LoopedForCausalLM) -> int:
    return 5 if model.config.max_steps is None else min(5, model.config.max_steps)


@pytest.mark.parametrize("name", some(PRESETS, UNLIKE))
def test_gradients_are_bitwise_those_of_the_plain_loop(name: str) -> None:
    model = trained(f"{name}-tiny", dropout=0.1)
    depth = deepest(model)
    plain = gradients(model, Plan(depth, depth), keeps="every")
    assert len(plain) > 10
    assert differing(plain, gradients(model, Plan(depth, depth), keeps="every", remat="step")) == []
    few = Plan(depth, max(2, depth - 1))
    plain = gradients(model, few, keeps="last", autocast=True)
    for remat in ("step", "tree"):
        assert differing(plain, gradients(model, few, keeps="last", autocast=True, remat=remat)) == []


CHANGES: list[dict[str, Any]] = [
    {"injection": {"kind": "none"}}, {"injection": {"kind": "add"}}, {"gate": {"kind": "learned"}}, {"gate": {"kind": "mix"}},
    {"gate": {"kind": "grown", "bias": 0.3}},
    {"state": {"kind": "input"}, "injection": {"kind": "add"}}, {"state": {"kind": "learned"}},
    {"adapters": [{"kind": "sinusoidal"}, {"kind": "abba", "rank1": 2, "rank2": 2}], "max_steps": 5},
    {"adapters": [{"kind": "low-rank", "rank": 2, "stack": "coda"}, {"kind": "controller", "rank": 2, "stack": "prelude"}]},
    {"adapters": [{"kind": "controller", "rank": 2, "style": 4, "dropout": 0.3}], "max_steps": 5},
    {"adapters": [{"kind": "basis-controller", "rank": 2, "state": 4, "width": 4, "dropout": 0.3}], "max_steps": 5},
    {"adapters": [{"kind": "low-rank", "rank": 2}], "max_steps": 2, "beyond_max_steps": "repeat"},
]  # fmt: skip


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_every_part_is_bitwise(changes: dict[str, Any]) -> None:
    model = trained("huginn-tiny", **changes)
    plain = gradients(model, Plan(4, 4), keeps="last")
    for remat in ("step", "tree"):
        assert differing(plain, gradients(model, Plan(4, 4), keeps="last", remat=remat)) == []


SUMMED_FIRST: list[tuple[dict[str, Any], str]] = [
    ({"injection": {"kind": "diagonal"}}, "injection.step_size"),
]


@pytest.mark.parametrize(("changes", "read_twice"), SUMMED_FIRST, ids=str)
def test_what_a_step_reads_twice_agrees_to_rounding(changes: dict[str, Any], read_twice: str) -> None:
    model = trained("huginn-tiny", **changes)
    plain = gradients(model, Plan(5, 5), keeps="last")
    found = gradients(model, Plan(5, 5), keeps="last", remat="tree")
    assert all(name.endswith(read_twice) for name in differing(plain, found))
    assert differing(plain, found, lambda a, b: torch.allclose(a, b, rtol=1e-5, atol=1e-6 * float(b.abs().max()))) == []
    assert differing(plain, gradients(model, Plan(5, 5), keeps="last", remat="step")) == []


@pytest.mark.parametrize("depth", [1, 2, 3, 11])
def test_any_depth(depth: int) -> None:
    model = trained("stars-addition-tiny", dropout=0.2)
    for keeps in ("every", "last"):
        plain = gradients(model, Plan(depth, depth), keeps=keeps)
        for remat in BITWISE:
            assert differing(plain, gradients(model, Plan(depth, depth), keeps=keeps, remat=remat)) == []


@pytest.mark.parametrize("remat", BITWISE)
def test_random_numbers_after_the_pass_are_those_of_the_plain_loop(remat: str) -> None:
    model = trained("stars-addition-tiny", dropout=0.3)
    gradients(model, Plan(6, 4), keeps="last")
    after = torch.rand(4)
    gradients(model, Plan(6, 4), keeps="last", remat=remat)
    assert torch.equal(after, torch.rand(4))


@pytest.mark.long
def test_gradients_add_to_what_is_there() -> None:
    model = trained("huginn-tiny")

    def twice(remat: str) -> dict[str, Tensor]:
        gradients(model, Plan(4, 4), remat=remat)
        loss(model, Plan(5, 3), remat=remat).backward()
        return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}

    plain = twice("none")
    assert all(differing(plain, twice(remat)) == [] for remat in BITWISE)


def test_asked_for_some_gradients_only() -> None:
    model = trained("huginn-tiny")
    wanted = [model.core[1].mlp.up_proj.weight, model.embed_tokens.weight]
    plain = torch.autograd.grad(loss(model, Plan(5, 5)), wanted)
    for remat in BITWISE:
        found = torch.autograd.grad(loss(model, Plan(5, 5), remat=remat), wanted)
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    assert all(x.grad is None for x in model.parameters())


@pytest.mark.parametrize("frozen", ["core", "embed_tokens prelude", "injection", "core injection embed_tokens prelude"])
def test_frozen_parts(frozen: str) -> None:
    model = trained("huginn-tiny", tie_word_embeddings=False)
    for part in frozen.split():
        model.get_submodule(part).requires_grad_(False)
    plain = gradients(model, Plan(4, 4), keeps="last")
    assert not any(name.startswith(tuple(frozen.split())) for name in plain)
    assert all(differing(plain, gradients(model, Plan(4, 4), keeps="last", remat=remat)) == [] for remat in BITWISE)


@pytest.mark.parametrize("inside", [False, True])
def test_steps_run_again_in_the_autocast_they_ran_in_first(inside: bool) -> None:
    """Whatever surrounds the backward pass: on a CPU its own products follow that, in the plain loop as well."""
    model = trained("stars-addition-tiny")

    def found(remat: str) -> dict[str, Tensor]:
        model.zero_grad()
        value = loss(model, Plan(4, 4), keeps="last", remat=remat, autocast=inside)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not inside):
            value.backward()
        return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}

    plain = found("none")
    assert all(differing(plain, found(remat)) == [] for remat in BITWISE)


@pytest.mark.parametrize("remat", BITWISE)
def test_a_graph_kept_gives_the_same_gradients_again(remat: str) -> None:
    model = trained("stars-addition-tiny", dropout=0.1)
    found = loss(model, Plan(9, 9), keeps="last", remat=remat)
    weight = model.core[0].mlp.up_proj.weight
    first, second = (torch.autograd.grad(found, weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_another_step_is_used_first_and_again() -> None:
    model = trained("stars-addition-tiny")
    calls: list[tuple[int, bool]] = []

    def watched(s: Tensor, e: Tensor, t: int, p: Any) -> Tensor:
        calls.append((t, torch.is_grad_enabled()))
        return model.step(s, e, t, p)

    plain = gradients(model, Plan(6, 4), keeps="last")
    assert differing(plain, gradients(model, Plan(6, 4), keeps="last", remat="step", step=watched)) == []
    forward = [(0, False), (1, False), (2, True), (3, True), (4, True), (5, True)]
    assert calls == [*forward, (4, True), (3, True), (2, True)]


def test_tree_holds_few_states_and_runs_no_step_more_than_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained("stars-addition-tiny")
    runs, held = dict.fromkeys(range(64), 0), []

    def watched(s: Tensor, e: Tensor, t: int, p: Any) -> Tensor:
        runs[t] += 1
        return model.step(s, e, t, p)

    take = Rerun.start_of

    def counted(self: Rerun, t: int, e: Tensor) -> Any:
        held.append(len(self.kept))
        start = take(self, t, e)
        held.append(len(self.kept) + 1)
        return start

    monkeypatch.setattr(Rerun, "start_of", counted)
    gradients(model, Plan(64, 64), keeps="last", remat="tree", step=watched)
    assert max(held) == 11
    assert max(runs.values()) == 3 and runs[63] == 1
    held.clear()
    gradients(model, Plan(64, 64), keeps="every", remat="tree")
    assert held == []  # all states are kept anyway: as "step" does


@given(count=st.integers(1, 200), held=st.integers(0, 12))
@settings(max_examples=60)
def test_stops_reverse_all_steps_with_no_more_states_and_passes_than_said(count: int, held: int) -> None:
    shelf, runs = [0, *stops(0, count - 1, held)], [1] * count
    runs[count - 1] = 0  # the pass ends before the last step, whose state is at hand
    assert shelf == sorted(set(shelf)) and shelf[-1] < max(count - 1, 1)
    for t in reversed(range(count - 1)):
        while shelf[-1] > t:
            shelf.pop()
        if shelf[-1] < t:
            for step in range(shelf[-1], t):
                runs[step] += 1
            shelf += stops(shelf[-1], t, held + 1 - len(shelf))
        assert len(shelf) <= held + 1
    assert max(runs) <= next(r for r in range(count + 1) if reversible(held, r) >= count)


def test_reversible_counts_what_its_equation_says() -> None:
    assert reversible(0, 3) == 4 and reversible(5, 0) == 1
    assert all(reversible(k, r) == reversible(k - 1, r) + reversible(k, r - 1) for k in range(1, 6) for r in range(1, 6))
    assert reversible(9, 2) == comb(12, 2) == 66


def test_a_parameter_changed_before_the_backward_pass_is_noticed_by_the_tree() -> None:
    model = trained("stars-addition-tiny")
    found = loss(model, Plan(4, 4), keeps="last", remat="tree")
    with torch.no_grad():
        model.core[0].mlp.up_proj.bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.backward()


def test_second_derivatives_are_refused_by_the_tree() -> None:
    model = trained("stars-addition-tiny")
    weight = model.core[0].mlp.up_proj.weight
    (first,) = torch.autograd.grad(loss(model, Plan(3, 3), keeps="last", remat="tree"), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


@pytest.mark.parametrize(("remat", "depth"), [("none", 4), ("step", 4), ("tree", 4), ("tree", 16), ("tree", 33)])
def test_cost_counts_the_steps_that_run_again(remat: str, depth: int) -> None:
    model, calls = trained("stars-addition-tiny"), []

    def watched(s: Tensor, e: Tensor, t: int, p: Any) -> Tensor:
        calls.append(t)
        return model.step(s, e, t, p)

    gradients(model, Plan(depth, depth), keeps="last", remat=remat, step=watched)
    assert len(calls) == depth + REMATS[remat]().cost(depth - 1, "last").reruns


@pytest.mark.parametrize("remat", BITWISE)
def test_without_gradients_nothing_is_held(remat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained("huginn-tiny").eval()
    monkeypatch.setattr(Recompute, "start", lambda *_: pytest.fail("held"))
    with torch.no_grad():
        plain = rollout(model, padded_batch(model), Plan(5, 3))
        found = rollout(model, padded_batch(model), Plan(5, 3), remat=remat)
    assert all(torch.equal(a, b) for a, b in zip(plain.states, found.states, strict=True))


def test_a_pass_with_a_cache_is_refused() -> None:
    model = trained("huginn-tiny")
    e, p = model.embed(torch.ones(1, 3, dtype=torch.long), cache=lw.LoopCache(model.config))
    with pytest.raises(ValueError, match="cache"):
        Tree()(GradSteps(model, e, p, e, 0, 3, model.step, "last"))


def test_table() -> None:
    assert set(REMATS) == {"none", "step", "tree", "implicit"}


# Running a step again: from where, with which random numbers, in which autocast, and through which parameters


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


# The implicit gradient against the exact one through many steps, on maps that contract, in float64


DEPTH = 30


def contracting(**changes: Any) -> lw.LoopedForCausalLM:
    """A model whose state part of the step is small: each step moves the state by about half of what the one before did."""
    model = noisy("huginn-tiny", std=0.3, gate={"kind": "mix", "weight": 0.7}, **changes).double()
    with torch.no_grad():
        model.injection.proj.weight[:, : model.config.hidden_size] *= 0.2
    return model


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return float(max((a[name] - b[name]).norm() / b[name].norm() for name in b))


@pytest.mark.long
def test_agreement_with_the_exact_gradient_grows_with_the_terms() -> None:
    model = contracting()
    exact = gradients(model, Plan(DEPTH, DEPTH), keeps="last")
    assert all(bool(grad.abs().sum() > 0) for grad in exact.values())
    kinds = [Implicit(terms) for terms in (1, 4, 16, 32)]
    gaps = [distance(gradients(model, Plan(DEPTH, DEPTH), keeps="last", remat=kind), exact) for kind in kinds]
    assert all(later < earlier / 1.5 for earlier, later in pairwise(gaps))
    assert gaps[0] > 0.05 and gaps[-1] < 1e-7
    assert kinds[0].residual is not None and kinds[0].residual < 1e-9


def test_one_term_is_the_gradient_of_the_last_step() -> None:
    model = contracting()
    one = gradients(model, Plan(DEPTH, 1), keeps="last")
    found = gradients(model, Plan(DEPTH, DEPTH), keeps="last", remat=Implicit(terms=1))
    assert distance(found, one) < 1e-12


def test_k_terms_are_the_gradient_of_the_last_k_steps_at_the_fixed_point() -> None:
    model = contracting()
    few = gradients(model, Plan(50, 4), keeps="last")
    assert distance(gradients(model, Plan(50, 50), keeps="last", remat=Implicit(terms=4)), few) < 1e-9


def test_random_numbers_are_those_of_the_forward_pass_alone() -> None:
    model = contracting(dropout=1e-12).train()  # draws, and drops nothing: dropout leaves no fixed point
    path = rollout(model, padded_batch(model), Plan(DEPTH, 2), remat="implicit", keeps="last")
    state = torch.get_rng_state()
    path.last.sum().backward()
    assert torch.equal(state, torch.get_rng_state())


def test_refuses_away_from_a_fixed_point() -> None:
    model = contracting()
    with pytest.raises(ValueError, match=r"relative step is 0\.\d+; allowed: at most 0.001"):
        rollout(model, padded_batch(model), Plan(3, 3), remat="implicit", keeps="last")
    nowhere = contracting()
    with torch.no_grad():
        nowhere.core[0].mlp.down_proj.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="relative step is nan"):
        rollout(nowhere, padded_batch(nowhere), Plan(DEPTH, 4), remat="implicit", keeps="last")


@pytest.mark.parametrize("rows", [[0, 1], [1]])
def test_the_residual_is_that_of_the_worst_row_without_padding(rows: list[int]) -> None:
    model, kind = contracting(), Implicit()
    whole = padded_batch(model)
    batch = Batch(whole.input_ids[rows], whole.labels[rows], whole.attention_mask[rows])
    with torch.no_grad():
        path = rollout(model, batch, Plan(6, 6))
        rollout(model, batch, Plan(6, 6), remat=kind, keeps="last")
    a, b = path.states[3], path.states[4]  # the last step of all is not part of what is measured
    real = [mask.bool() for mask in batch.attention_mask]
    found = [float((y[r] - x[r]).norm() / x[r].norm()) for x, y, r in zip(a, b, real, strict=True)]
    assert kind.residual == pytest.approx(max(found), rel=1e-9)
    assert len(set(found)) == len(rows)


def test_refuses_what_has_no_meaning() -> None:
    model = contracting()
    with pytest.raises(ValueError, match="reads every step"):
        rollout(model, padded_batch(model), Plan(DEPTH, DEPTH), remat="implicit", keeps="every")
    with pytest.raises(ValueError, match="one step with a gradient"):
        rollout(model, padded_batch(model), Plan(DEPTH, 1), remat="implicit", keeps="last")
    with pytest.raises(ValueError, match=r"terms must be a whole number >= 1 \(got 0\)"):
        Implicit(terms=0)
