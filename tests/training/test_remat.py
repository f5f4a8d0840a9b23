"""Rematerialised = plain gradients, bit by bit, for every system and in every circumstance a run can bring about."""

from __future__ import annotations

from math import comb
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import loopwright as lw
from loopwright.model.presets import PRESETS
from loopwright.training.gradient import REMATS, GradSteps, Recompute, Rerun, Tree, reversible, stops
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
