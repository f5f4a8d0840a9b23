"""The tap: every point is seen once per (stack, step, layer), reading changes nothing, writing changes what follows."""

import pytest
import torch

import loopwright as lw
from loopwright.model.parts.part import FIRST
from loopwright.model.passes import Pass, Place
from loopwright.model.taps import OF_PARTS, POINTS, Recorder
from tests.cases import gap, noisy

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def tiny(**changes):
    return noisy("huginn-tiny", prelude_layers=1, core_layers=2, coda_layers=1, **changes)


def expected_keys(model: lw.LoopedForCausalLM, depth: int) -> set[tuple[str, str, int, int]]:
    places = [("prelude", 0, i) for i in range(len(model.prelude))] + [("coda", 0, i) for i in range(len(model.coda))]
    places += [("core", t, i) for t in range(depth) for i in range(len(model.core))]
    keys = {(name, *place) for name in ("query", "key", "attention", "mlp", "residual") for place in places}
    keys |= {("state", "core", t, len(model.core)) for t in range(depth)}
    return keys | {("embed", "prelude", 0, 0), ("logits", "coda", 0, len(model.coda))}


@torch.no_grad()
def test_every_point_once_and_nothing_else():
    model, seen = tiny(), []

    def count(name, value, *, stack, step, layer):
        seen.append((name, stack, step, layer))
        return value

    model(IDS, depth=3, tap=count)
    assert len(seen) == len(set(seen))
    assert set(seen) == expected_keys(model, 3)
    assert {name for name, *_ in seen} == set(POINTS) - set(OF_PARTS)


@torch.no_grad()
def test_recording_changes_nothing_and_holds_what_the_pass_returns():
    model, recorder = tiny(), Recorder()
    plain, taped = model(IDS, depth=3, output_steps=True), model(IDS, depth=3, tap=recorder)
    assert torch.equal(plain.logits, taped.logits)
    assert set(recorder.seen) == expected_keys(model, 3)
    for t, state in enumerate(plain.states):
        assert torch.equal(recorder.seen["state", "core", t, 2], state)
    assert torch.equal(recorder.seen["logits", "coda", 0, 1], plain.logits)
    assert recorder.seen["query", "core", 1, 0].shape == (1, 8, 4, 8)


@torch.no_grad()
def test_points_are_the_terms_of_the_block():
    """Pre-norm: residual = x + attention + mlp, so the points of one layer add up."""
    model, recorder = noisy("retrofit-tinyllama-tiny"), Recorder(("embed", "attention", "mlp", "residual"))
    model(IDS, depth=1, tap=recorder)
    x = recorder.seen["embed", "prelude", 0, 0]
    y = x + recorder.seen["attention", "prelude", 0, 0] + recorder.seen["mlp", "prelude", 0, 0]
    assert gap(y, recorder.seen["residual", "prelude", 0, 0]) < 1e-6


@torch.no_grad()
def test_editing_a_state_is_starting_from_it():
    model = tiny()
    swap = torch.randn(1, 8, 32, generator=torch.Generator().manual_seed(1))

    def patch(name, value, *, stack, step, layer):
        return swap if (name, step) == ("state", 0) else value

    edited = model(IDS, depth=3, tap=patch)
    e, p = model.embed(IDS)
    *_, s = model.unroll(e, 2, p, state=swap, first_step=1)
    assert gap(edited.logits, model.read_out(s, p)) < 1e-6
    assert gap(edited.logits, model(IDS, depth=3).logits) > 1e-3


@torch.no_grad()
def test_recorder_keeps_copies_of_the_chosen_points_only():
    model, recorder = tiny(), Recorder(("state",))
    model(IDS, depth=2, tap=recorder)
    assert set(recorder.seen) == {("state", "core", 0, 2), ("state", "core", 1, 2)}
    value = torch.ones(2, requires_grad=True)
    assert recorder("state", value, stack="core", step=5, layer=0) is value
    kept = recorder.seen["state", "core", 5, 0]
    assert not kept.requires_grad and kept.data_ptr() != value.data_ptr()


def test_recorder_refusals():
    with pytest.raises(ValueError, match=r"recorder: unknown point \['atention'\]; allowed: embed, query"):
        Recorder(("atention",))
    with pytest.raises(ValueError, match="recorder: rows at different steps have no common key"):
        Recorder()("state", torch.zeros(2), stack="core", step=torch.tensor([0, 1]), layer=0)


def test_a_pass_without_a_tap_returns_the_tensor_itself():
    value = torch.zeros(1)
    assert Pass(None, None, None, True).see("state", value, Place("core", FIRST, 0)) is value


@pytest.mark.parametrize("gate", ["learned", "grown"])
@pytest.mark.parametrize("kind", ["controller", "diagonal"])
@torch.no_grad()
def test_gate_and_diagonals_are_seen_and_can_be_replaced(gate, kind):
    """At every step the state is what the gate seen makes of old and new, and reading changes nothing; a gate of 0 keeps the state,
    one of 1 takes the new one; without diagonals the adapter is as if it were not there."""
    spec = {"kind": kind, "rank": 4} | ({"style": 8} if kind == "controller" else {})
    model = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3, gate={"kind": gate}, adapters=[spec], core_layers=2)
    seen = Recorder()
    taped, plain = model(IDS, depth=3, tap=seen), model(IDS, depth=3, output_steps=True)
    assert torch.equal(taped.logits, plain.logits)
    assert {key[1:] for key in seen.seen if key[0] == "gate"} == {("core", t, 2) for t in range(3)}
    assert {key[1:] for key in seen.seen if key[0] == "diagonal"} == {("core", t, layer) for t in range(3) for layer in range(2)}
    assert seen.seen["gate", "core", 1, 2].shape == (1, 8, 32) and seen.seen["diagonal", "core", 1, 0].shape == (1, 8, 7, 4)

    def put(point, value):
        return lambda name, x, **_: torch.full_like(x, value) if name == point else x

    kept, taken = Recorder(("state", "gate")), Recorder(("state",))
    model(IDS, depth=2, tap=lambda n, x, **at: kept(n, put("gate", 0.0)(n, x), **at))
    assert torch.equal(kept.seen["state", "core", 0, 2], kept.seen["state", "core", 1, 2])
    model(IDS, depth=1, tap=lambda n, x, **at: taken(n, put("gate", 1.0)(n, x), **at))
    ungated = Recorder(("state",))
    bare = lw.LoopedForCausalLM(lw.LoopedConfig(**{**model.config.to_dict(), "gate": {"kind": "none"}})).eval()
    bare.load_state_dict({n: x for n, x in model.state_dict().items() if not n.startswith("gate")})
    bare(IDS, depth=1, tap=ungated)
    assert gap(taken.seen["state", "core", 0, 2], ungated.seen["state", "core", 0, 2]) < 1e-6
    without = lw.LoopedForCausalLM(lw.LoopedConfig(**{**model.config.to_dict(), "adapters": []})).eval()
    without.load_state_dict({n: x for n, x in model.state_dict().items() if not n.startswith("adapters")})
    assert gap(model(IDS, depth=2, tap=put("diagonal", 0.0)).logits, without(IDS, depth=2).logits) < 1e-5


def test_an_edit_of_a_part_that_is_not_there_is_refused():
    from loopwright.analysis.trace.edit import at, zero

    for point in ("gate", "diagonal"):
        with pytest.raises(ValueError, match=f"edit: {point} at step 0 would change nothing; the pass shows it at: no place"):
            tiny()(IDS, depth=2, tap=zero(point, at(step=0)))
