"""Halting: Ouro's exit probabilities and ACT's weights against slow loops in float64, and the sign of the ponder cost."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.halting import HALTINGS, AdaptiveComputation, ExitGate, products_before
from loopwright.schema import build_kind
from tests.cases import gap, noisy

CONFIG = LoopedConfig(hidden_size=8)
SPECS = {
    "none": {},
    "exit": {"threshold": 0.7},
    "act": {"bias": 0.5, "eps": 0.02},
    "universal-act": {"bias": 0.5, "eps": 0.02},
    "halter": {"width": 4, "bias": 0.5, "eps": 0.02},
}
LEARNED = ["exit", "act", "universal-act", "halter"]
INTERPOLATES = {"universal-act"}  # what never halts has no remainder
IDS = torch.tensor([[3, 1, 4, 1, 5]])


def made(kind: str, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    torch.manual_seed(0)
    part = build_kind({"kind": kind, **SPECS[kind]}, HALTINGS, CONFIG)
    for parameter in part.parameters():
        torch.nn.init.normal_(parameter)
    return part.to(dtype)


def states(depth: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(depth)
    return tuple(torch.randn(2, 3, 8, generator=generator).to(dtype) for _ in range(depth))


def exit_by_loop(halt: list[float]) -> list[float]:
    probabilities, survive = [], 1.0
    for value in halt[:-1]:
        probabilities.append(survive * value)
        survive *= 1 - value
    return [*probabilities, survive]


def act_by_loop(halt: list[float], eps: float) -> tuple[list[float], float]:
    """Graves' algorithm as it is told: returns the weights and the ponder cost N + R."""
    total = 0.0
    for n, value in enumerate(halt):
        if total + value >= 1 - eps or n == len(halt) - 1:
            remainder = 1 - total
            return halt[:n] + [remainder] + [0.0] * (len(halt) - n - 1), (n + 1) + remainder
        total += value
    raise AssertionError("no steps")


def test_every_kind_has_its_case():
    assert set(SPECS) == set(HALTINGS)


@pytest.mark.parametrize("kind", LEARNED)
@pytest.mark.parametrize("depth", [1, 2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_dtype_sum_and_gradient(kind, depth, dtype):
    part, steps = made(kind, dtype), states(depth, dtype)
    weights = part(part.values(steps))
    assert weights.shape == (2, 3, depth) and weights.dtype == dtype
    assert (weights >= 0).all()
    if kind in INTERPOLATES:
        assert (weights.float().sum(-1) <= 1 + 1e-2).all()
    else:
        assert gap(weights.sum(-1).float(), torch.ones(2, 3)) < (1e-6 if dtype == torch.float32 else 2e-2)
    if depth > 1:
        (weights * torch.randn(depth)).float().sum().backward()
        for parameter in part.parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_exit_probabilities_are_the_product_formula(depth):
    part, steps = made("exit"), states(depth)
    halt = part.values(steps)
    expected = torch.tensor([[exit_by_loop(token.tolist()) for token in row] for row in halt], dtype=torch.float64)
    assert gap(part(part.values(steps)), expected) < 1e-15
    assert gap(halt[..., 0], torch.sigmoid(steps[0] @ part.proj.weight[0] + part.proj.bias)) < 1e-15


def test_the_last_steps_own_value_is_unused():
    part, steps = made("exit"), states(4)
    assert torch.equal(part(part.values(steps)), part(part.values([*steps[:-1], steps[-1] * 100])))


@pytest.mark.parametrize(
    ("probabilities", "threshold", "step"),
    [
        ([0.25, 0.25, 0.5], 0.25, 0),
        ([0.25, 0.25, 0.5], 0.26, 1),
        ([0.25, 0.25, 0.5], 0.5, 1),
        ([0.25, 0.25, 0.5], 0.51, 2),
        ([0.25, 0.25, 0.5], 1.0, 2),
        ([0.25, 0.25, 0.5], 2.0, 2),
        ([1.0, 0.0, 0.0], 1.0, 0),
    ],
)
def test_exit_step_is_the_first_to_reach_the_threshold_else_the_last(probabilities, threshold, step):
    p = torch.tensor([[probabilities]])
    assert ExitGate(CONFIG).exit_step(p, threshold).tolist() == [[step]]
    assert ExitGate(CONFIG, threshold=threshold).exit_step(p).tolist() == [[step]]


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("bias", [-4.0, -1.0, 1.0, 6.0])
def test_act_is_graves_algorithm(depth, bias):
    part, steps = made("act"), states(depth)
    torch.nn.init.constant_(part.bias, bias)
    halt, weights, cost = part.values(steps), part(part.values(steps)), part.ponder_cost(part.values(steps))
    for row in range(2):
        for token in range(3):
            expected, ponder = act_by_loop(halt[row, token].tolist(), part.eps)
            assert gap(weights[row, token], torch.tensor(expected, dtype=torch.float64)) < 1e-12
            assert abs(cost[row, token].item() - ponder) < 1e-12
    assert gap(weights.sum(-1), torch.ones(2, 3, dtype=torch.float64)) < 1e-12


@pytest.mark.long
@given(st.lists(st.floats(0.001, 0.999), min_size=1, max_size=9), st.floats(0.0, 0.5))
def test_act_weights_sum_to_one_for_any_values(halt, eps):
    part = AdaptiveComputation(CONFIG, eps=eps).double()
    # one channel carries the logit, so that the halting values are exactly the ones drawn
    part.weight.data = torch.eye(8, dtype=torch.float64)[:1]
    part.bias.data.zero_()
    steps = tuple(torch.logit(torch.tensor(h, dtype=torch.float64)) * torch.eye(8, dtype=torch.float64)[:1][None] for h in halt)
    weights = part(part.values(steps))[0, 0]
    assert abs(weights.sum().item() - 1) < 1e-12
    assert (weights >= 0).all()
    assert 1 <= part.ponder_cost(part.values(steps)).item() <= len(halt) + 1


@pytest.mark.parametrize("depth", [2, 5])
def test_raising_the_halting_bias_lowers_the_ponder_cost(depth):
    """The sign that a known implementation has wrong: minimising the cost must make the model halt sooner."""
    part, steps = made("act"), states(depth)
    torch.nn.init.constant_(part.bias, -1.5)
    cost = part.ponder_cost(part.values(steps)).mean()
    (gradient,) = torch.autograd.grad(cost, part.bias)
    assert gradient.item() < 0
    torch.nn.init.constant_(part.bias, -1.5 + 1e-3)
    assert part.ponder_cost(part.values(steps)).mean() < cost
    torch.nn.init.constant_(part.bias, 30.0)
    assert gap(part.ponder_cost(part.values(steps)), torch.full((2, 3), 2.0, dtype=torch.float64)) < 1e-6  # one step, remainder 1


def test_starts():
    act = LoopedForCausalLM(LoopedConfig(hidden_size=8, halting={"kind": "act", "bias": 0.25})).halting
    assert act.bias.item() == 0.25 and 0 < act.weight.abs().max() < 0.1


@torch.no_grad()
def test_a_model_without_halting_has_no_probabilities():
    model = noisy("asura-tiny")
    assert model.config.halting["kind"] == "none"
    assert model(IDS, output_steps=True).exit_probs is None
    with pytest.raises(ValueError, match="select: 'expected' needs learned halting, and this model has none; allowed: last"):
        model(IDS, select="expected")


@torch.no_grad()
@pytest.mark.parametrize("kind", LEARNED)
def test_expected_answer_is_the_mean_by_halting_weight(kind):
    """An exit gate mixes the steps' logits; ACT mixes the states, then reads out once."""
    model = noisy("universal-tiny", halting={"kind": kind}, read_out="last")
    out = model(IDS, output_steps=True)
    assert out.exit_probs.shape == (1, 5, 4)
    e, p = model.embed(IDS)
    assert torch.equal(out.exit_probs, model.halting(model.halting_values(model.start_state(e, p), out.states, e, p)))
    if model.halting.reads == "after":
        assert torch.equal(out.exit_probs, model.halting(model.halting.values(out.states)))
    expected = model(IDS, select="expected").logits
    if model.config.halting["kind"] == "exit":
        mixed = torch.einsum("bts,btsv->btv", out.exit_probs, torch.stack(out.step_logits, 2))
    else:
        mean = torch.einsum("bts,btsd->btd", out.exit_probs, torch.stack(out.states, 2))
        mixed = model.read_out(mean, model.embed(IDS)[1])
    assert gap(expected, mixed) < 1e-5
    assert torch.equal(model(IDS).logits, out.step_logits[-1])


@torch.no_grad()
def test_hub_answer_takes_each_tokens_exit_step():
    model = noisy("ouro-1.4b-tiny", halting={"kind": "exit", "threshold": 0.5}, std=2.0)
    out = model(IDS, output_steps=True)
    chosen = model.halting.exit_step(out.exit_probs)[0].tolist()
    assert len(set(chosen)) > 1, "the case must have tokens that leave at different steps"
    hub = model(IDS, select="hub").logits
    for token, step in enumerate(chosen):
        assert torch.equal(hub[0, token], out.step_logits[step][0, token])
    with pytest.raises(ValueError, match="select: 'hub' picks the logits of one step, and this model's halting mixes states"):
        noisy("universal-tiny")(IDS, select="hub")


@pytest.mark.parametrize("kind", HALTINGS)
def test_config_round_trip(kind):
    config = LoopedConfig(halting={"kind": kind, **SPECS[kind]})
    assert LoopedConfig(**config.to_dict()).halting == {"kind": kind, **SPECS[kind]}


def test_the_halter_starts_alike_for_every_token_and_reads_the_state_after() -> None:
    """h = σ(bias) at first, so that −2 halts after 9 steps, and it is a function of the state once its last layer moves."""
    model = noisy("ouro-1.4b-tiny", halting={"kind": "halter", "width": 8})
    model.halting.start()
    states = [torch.randn(2, 3, model.config.hidden_size) for _ in range(12)]
    halt = model.halting.values(states)
    torch.testing.assert_close(halt, torch.full_like(halt, torch.sigmoid(torch.tensor(-2.0))))
    assert model.halting.ponder_cost(halt).floor().unique().tolist() == [9]
    torch.nn.init.normal_(model.halting.last.weight)
    by_hand = model.halting
    x = torch.nn.functional.silu(by_hand.second(torch.nn.functional.silu(by_hand.first(states[0]))))
    torch.testing.assert_close(model.halting.value(states[0]), torch.sigmoid(by_hand.last(x)))
    assert model.halting.value(states[0]).std() > 0


def test_the_products_of_what_stands_before_are_those_of_cumprod():
    x = torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0))
    expected = torch.cat([torch.ones(3, 5, 1), x[..., :-1].cumprod(-1)], dim=-1)
    assert torch.allclose(products_before(x), expected) and torch.equal(products_before(x[..., :1]), torch.ones(3, 5, 1))


def test_the_weights_of_tensor2tensor_are_those_of_its_interpolation():
    """From m = 0, each step's answer is u · s + (1 − u) · m, with different u from step to step."""
    halt = torch.tensor([[[0.2, 0.3, 0.1, 0.9, 0.4], [0.05, 0.1, 0.15, 0.2, 0.25], [0.6, 0.7, 0.5, 0.5, 0.5]]])
    u = torch.tensor([[[0.2, 0.3, 0.1, 0.4, 0.0], [0.05, 0.1, 0.15, 0.2, 0.25], [0.6, 0.4, 0.0, 0.0, 0.0]]])
    states = torch.randn(5, 1, 3, generator=torch.Generator().manual_seed(0))
    mean = torch.zeros(1, 3)
    for t, s in enumerate(states):
        mean = u[..., t] * s + (1 - u[..., t]) * mean
    weights = noisy("universal-tiny").halting(halt)
    assert torch.allclose((weights * states.permute(1, 2, 0)).sum(-1), mean, atol=1e-6)
