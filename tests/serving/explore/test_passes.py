"""One pass read after every step = `output_steps` of the model = `lw.trace` = what the engine does at an exit rule."""

from __future__ import annotations

import pytest
import torch

import loopwright as lw
from loopwright.generation.exit_rules import build_exit, parse_exit
from loopwright.metrics.limits import LIMITS, classify_limit
from loopwright.metrics.predictions import prediction_divergence, prediction_entropy
from loopwright.model.taps import Recorder
from loopwright.serving.explore.passes import exit_probabilities, movement, paths, read_steps, settling, unrolled
from tests.cases import noisy
from tests.generation.mix import make

IDS = [2, 4, 8, 3, 11]
DEPTH = 6
EXACT = {"rtol": 0.0, "atol": 5.1e-5}  # four decimals


@pytest.fixture(scope="module", params=["huginn-tiny", "ouro-1.4b-tiny"])
def model(request: pytest.FixtureRequest) -> lw.LoopedForCausalLM:
    return make(request.param).float()


@torch.no_grad()
def test_steps_are_those_of_output_steps(model: lw.LoopedForCausalLM) -> None:
    out = model(torch.tensor([IDS]), depth=DEPTH, output_steps=True)
    through = unrolled(model, IDS, DEPTH)
    assert all(torch.equal(a, b) for a, b in zip(through.states, out.states, strict=True))
    found = read_steps(model, IDS, through, top=4)
    for t, logits in enumerate(out.step_logits):
        best = logits[0].softmax(-1).topk(4)
        assert found["tokens"][t] == best.indices.tolist()
        torch.testing.assert_close(torch.tensor(found["probabilities"][t]), best.values, **EXACT)
        torch.testing.assert_close(torch.tensor(found["entropy"][t]), prediction_entropy(logits[0]), **EXACT)
        far = prediction_divergence(logits[0], out.step_logits[-1][0])
        torch.testing.assert_close(torch.tensor(found["divergence"][t]), far, **EXACT)
        follows = logits[0].softmax(-1)[torch.arange(len(IDS) - 1), IDS[1:]]
        torch.testing.assert_close(torch.tensor(found["follows"][t]), follows, **EXACT)
    assert found["leaves"] is None and "shift" not in found


@torch.no_grad()
def test_exit_probabilities_are_the_models(model: lw.LoopedForCausalLM) -> None:
    out, found = model(torch.tensor([IDS]), depth=DEPTH, output_steps=True), exit_probabilities(model, unrolled(model, IDS, DEPTH))
    if out.exit_probs is None:
        assert found is None
    else:
        torch.testing.assert_close(torch.tensor(found).T, out.exit_probs[0], **EXACT)


@pytest.mark.parametrize("rule", ["change:1.2", "entropy:3.5", "stable:2"])
def test_tokens_leave_where_the_engine_lets_them(model: lw.LoopedForCausalLM, rule: str) -> None:
    spec = parse_exit(rule)
    found = read_steps(model, IDS, unrolled(model, IDS, DEPTH), top=1, rule=build_exit(spec, model))
    with lw.Engine(model, max_rows=2, max_tokens=200, readings=DEPTH) as engine:
        for t in (1, len(IDS) - 1):
            request = engine.submit(IDS[: t + 1], depth=DEPTH, max_new_tokens=1, exit=spec, ignore_eos=True)
            assert found["leaves"][t] == request.result().depths[0]


def test_curves_and_limits_are_those_of_a_trace(model: lw.LoopedForCausalLM) -> None:
    traced = lw.trace(model, torch.tensor([IDS]), depth=DEPTH, collect=("lens", "residual", "fixed"))
    through = unrolled(model, IDS, DEPTH)
    moved = torch.tensor(movement(through)["change"])
    torch.testing.assert_close(moved.mean(-1)[1:], traced.values["state_step_norm"][0, 1:], rtol=1e-4, atol=1e-4)
    last = [row[-1] for row in read_steps(model, IDS, through, top=1)["tokens"]]
    assert [best[0] for best in last] == traced.values["answer_token"][0].long().tolist()
    limits = classify_limit(traced.values["state_token_cosine"][0, :-1].T)
    found = settling(through)
    assert found is not None and [one["limit"] for one in found] == [LIMITS[int(label)] for label in limits.label]
    assert settling(unrolled(model, IDS, 4)) is None


def test_paths_keep_the_distances_that_two_directions_hold(model: lw.LoopedForCausalLM) -> None:
    through = unrolled(model, IDS, 2)  # three points lie in a plane: nothing is lost
    found = paths(through)
    assert found is not None
    every = torch.cat([through.start, *through.states])
    for token in range(len(IDS)):
        flat = torch.tensor(found["coordinates"][token])
        torch.testing.assert_close(torch.cdist(flat, flat), torch.cdist(every[:, token], every[:, token]), rtol=1e-3, atol=1e-3)
        assert sum(found["explained"][token]) == pytest.approx(1, abs=1e-3)


def test_states_that_overflow_have_no_path(model: lw.LoopedForCausalLM) -> None:
    through = unrolled(model, IDS, 2)
    through.states[1][0, 0, 0] = torch.inf
    assert paths(through) is None


def test_gate_and_diagonals_are_those_of_a_pass_and_none_of_other_models() -> None:
    model, ids, seen = noisy("ouroboros-qwen2.5-3b-tiny", std=0.3).eval(), [3, 1, 4, 1], Recorder(("gate", "diagonal"))
    with torch.no_grad():
        model(torch.tensor([ids]), depth=3, tap=seen)
    found = movement(unrolled(model, ids, 3))
    for t in range(3):
        assert found["gate"][t] == pytest.approx(seen.seen["gate", "core", t, 1][0].mean(-1).tolist(), abs=1e-4)
        size = seen.seen["diagonal", "core", t, 0][0].square().mean((-1, -2)).sqrt()
        assert found["diagonal"][t] == pytest.approx(size.tolist(), abs=1e-4)
    other = movement(unrolled(noisy("huginn-tiny").eval(), ids, 2))
    assert other["gate"] is None and other["diagonal"] is None
