"""The compiled step is one program for all steps: it is handed the rows of a step, not the tables and the step's number."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import loopwright as lw
from loopwright.parts import Gate, Injection, StepIndex, take_width
from loopwright.training.compile import CompiledStep
from tests.cases import noisy
from tests.own_kinds import own_kinds

SMALL: dict[str, Any] = {
    "vocab_size": 16, "hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 2, "num_key_value_heads": 1,
    "core_layers": 2, "max_position_embeddings": 64,
}  # fmt: skip
ADAPTERS: dict[str, dict[str, Any]] = {
    "low-rank": {"rank": 2, "bias": True},
    "hira": {"rank": 2},
    "abba": {"rank1": 2, "rank2": 2, "targets": "branches"},
    "diagonal": {"rank": 2},
    "controller": {"rank": 2, "style": 4},
    "basis-controller": {"rank": 2, "style": 4, "count": 2, "state": 4, "step": 4, "width": 8},
}


class Gains(Injection):
    """x = s + g_t ⊙ e, as somebody else's part has it."""

    per_step = True

    def __init__(self, config: lw.LoopedConfig) -> None:
        super().__init__()
        self.gains = nn.Parameter(torch.empty(config.max_steps or 0, config.hidden_size))

    def start(self) -> None:
        nn.init.normal_(self.gains)

    def forward(self, s: Tensor, e: Tensor, step: StepIndex) -> Tensor:
        return s + take_width(self.gains, step) * e


class Rows(Gains):
    """The same by the row's number, which a part may read."""

    def forward(self, s: Tensor, e: Tensor, step: StepIndex) -> Tensor:
        return s + self.gains[step.row] * e


class Fading(Gate):
    """s′ = new / (t + 1): reads the step's number, and says nothing of it."""

    def __init__(self, config: lw.LoopedConfig) -> None:
        super().__init__()

    def forward(self, old: Tensor, new: Tensor, step: StepIndex) -> Tensor:
        return new / (step.t + 1)


@pytest.fixture(autouse=True)
def _own() -> Iterator[None]:
    with own_kinds():
        lw.register("injection", "gains")(Gains)
        lw.register("injection", "rows")(Rows)
        lw.register("gate", "fading")(Fading)
        yield


# what a model has → its config
TABLES: dict[str, dict[str, Any]] = {
    "norms": {"layer_post_norm": "per-step", "end_norm": "per-step", "norm": {"kind": "layer", "eps": 1e-5}},
    "rms": {"layer_post_norm": "per-step"},
    "layers": {"layer_post_norm": "per-layer-and-step"},
    "injection": {"injection": {"kind": "concat-per-step"}},
    "own": {"injection": {"kind": "gains"}},
    **{kind: {"adapters": [{"kind": kind, **options}]} for kind, options in ADAPTERS.items()},
}
PLAIN: dict[str, dict[str, Any]] = {"nothing": {}, "mix": {"gate": {"kind": "mix"}}}
NUMBERED: dict[str, dict[str, Any]] = {
    "signal": {"adapters": [{"kind": "sinusoidal"}]},
    "grown": {"gate": {"kind": "grown", "bias": 0.3}},
    "fading": {"gate": {"kind": "fading"}},
}


def built(changes: dict[str, Any], steps: int | None, **more: Any) -> lw.LoopedForCausalLM:
    """A small model with every parameter moved, in float64."""
    torch.manual_seed(0)
    tables = {} if steps is None else {"max_steps": steps}
    model = lw.LoopedForCausalLM(lw.LoopedConfig(**{**SMALL, **more}, **tables, depth=2, **changes)).double().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def unrolled(model: lw.LoopedForCausalLM, depth: int, step: Any = None) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the last state of a batch, and the gradients of all that led to it."""
    model.zero_grad()
    ids = torch.arange(10).view(2, 5) % model.config.vocab_size
    e, p = model.embed(ids)
    *_, s = model.unroll(e, depth, p, state=0.5 * e, step=step)  # where the state is the input itself, that step is another program
    s.sin().sum().backward()
    return s.detach(), {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def same(some: tuple[Tensor, dict[str, Tensor]], others: tuple[Tensor, dict[str, Tensor]], gap: float) -> bool:
    assert some[1].keys() == others[1].keys()
    pairs = [(some[0], others[0]), *((some[1][name], others[1][name]) for name in some[1])]
    return all(torch.allclose(a, b, rtol=gap, atol=gap) for a, b in pairs)


def compiled(monkeypatch: pytest.MonkeyPatch, model: lw.LoopedForCausalLM) -> tuple[CompiledStep, list[object]]:
    """Returns the compiled step, and the list of programs that come to be."""
    from torch._dynamo.backends.debugging import aot_eager

    programs: list[object] = []

    def counting(graph: Any, inputs: Any) -> Any:
        programs.append(graph)
        return aot_eager(graph, inputs)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counting))
    return CompiledStep(model), programs


@pytest.mark.slow  # the compiler's import and its tracing take seconds
@pytest.mark.parametrize("depth", [3, 4])
@pytest.mark.parametrize("name", [*TABLES, *PLAIN])
def test_one_program_serves_all_steps(name: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built((TABLES | PLAIN)[name], 4 if name in TABLES else None)
    step, programs = compiled(monkeypatch, model)
    assert same(unrolled(model, depth, step), unrolled(model, depth), 1e-9)
    assert len(programs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["asura-tiny", "ouroboros-qwen2.5-3b-tiny", "ouro-1.4b-tiny", "huginn-tiny"])
def test_one_program_serves_all_steps_of_a_published_system(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = noisy(name, std=0.3).double().train()
    depth = model.config.max_steps or 3
    step, programs = compiled(monkeypatch, model)
    assert same(unrolled(model, depth, step), unrolled(model, depth), 1e-9)
    assert len(programs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NUMBERED, "rows"])
def test_a_part_that_reads_the_number_of_its_step_has_a_program_for_each(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(NUMBERED.get(name, {"injection": {"kind": "rows"}}), 3 if name == "rows" else None)
    step, programs = compiled(monkeypatch, model)
    assert same(unrolled(model, 3, step), unrolled(model, 3), 1e-9)
    assert len(programs) == 3


@pytest.mark.slow
def test_steps_beyond_the_tables_share_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(TABLES["norms"], 2, beyond_max_steps="repeat")
    step, programs = compiled(monkeypatch, model)
    assert same(unrolled(model, 5, step), unrolled(model, 5), 1e-9)
    assert len(programs) == 1


@pytest.mark.slow
def test_the_product_with_the_jacobian_is_one_program_for_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from loopwright.metrics.dual import product

    model = built(TABLES["norms"] | TABLES["injection"], 3)  # torch 2.11 cannot follow RMS norms here
    step, programs = compiled(monkeypatch, model)
    e, p = model.embed(torch.arange(10).view(2, 5))
    e, v = e.detach(), torch.randn_like(e)
    for t in range(3):
        for a, b in zip(step.product(e, v, e, t, p), product(lambda x, t=t: model.step(x, e, t, p), e, v), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert len(programs) == 1


@pytest.mark.parametrize(("name", "tables"), [("asura-tiny", True), ("ouro-1.4b-tiny", False)])
def test_it_is_handed_the_rows_of_every_table(name: str, tables: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    model, seen = noisy(name), list[StepIndex]()

    def step_at(s: Tensor, e: Tensor, index: StepIndex, p: Any) -> Tensor:
        seen.append(index)
        return s

    monkeypatch.setattr(model, "step_at", step_at)
    e, p = model.embed(torch.arange(4)[None])
    list(model.unroll(e, 3, p, step=CompiledStep(model)))
    assert [index.t for index in seen] == [index.row for index in seen] == [0, 1, 2]
    parts = [getattr(model, name) for name in ("layer_post_norm", "end_norm", "injection", "adapters") if tables]
    per_step = {x for part in parts for x in part.parameters()}
    for index in seen:
        assert index.taken is not None and index.taken.keys() == per_step
        assert all(torch.equal(row, table[index.t]) for table, row in index.taken.items())


def test_a_table_that_two_parts_share_or_that_was_exchanged_is_found() -> None:
    """By what the parts hold at the step, as after sharding, not by what they held when the step was compiled."""
    model = built(TABLES["norms"], 3)
    step = CompiledStep(model)
    model.layer_post_norm.weight = model.end_norm.weight = nn.Parameter(torch.randn_like(model.end_norm.weight))
    assert model.end_norm.weight in (taken := step.index(1).taken or {}) and len(taken) == 3
    found = unrolled(model, 3, lambda s, e, t, p: model.step_at(s, e, step.index(t), p))
    assert same(found, unrolled(model, 3), 1e-12)


def test_a_step_beyond_the_tables_is_refused() -> None:
    model = built(TABLES["rms"], 2)
    e, p = model.embed(torch.arange(4)[None])
    with pytest.raises(ValueError, match="step: 2 is beyond max_steps=2; layer_post_norm have no later parameters"):
        CompiledStep(model)(e, e, 2, p)


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([*TABLES, *PLAIN, "rows"]),
    steps=st.integers(1, 4),
    depth=st.integers(1, 5),
    heads=st.integers(1, 3),
    size=st.integers(1, 3),
)
@example(name="norms", steps=12, depth=3, heads=2, size=3)  # tables with as many rows as the model is wide
def test_rows_that_were_taken_before_change_nothing(name: str, steps: int, depth: int, heads: int, size: int) -> None:
    """What is compiled, before it is: the same states bit for bit, and the same gradients, of which a row that several steps or
    layers read has the sum in another order."""
    shape = {"hidden_size": 2 * heads * size, "num_attention_heads": heads, "num_key_value_heads": heads}
    tables = (TABLES | PLAIN | {"rows": {"injection": {"kind": "rows"}}})[name]
    more = {} if name in PLAIN else {"beyond_max_steps": "repeat"}
    model = built(tables, None if name in PLAIN else steps, **shape, **more)
    step = CompiledStep(model)
    taken = unrolled(model, depth, lambda s, e, t, p: model.step_at(s, e, step.index(t), p))
    plain = unrolled(model, depth)
    assert torch.equal(taken[0], plain[0]) and same(taken, plain, 1e-12)
