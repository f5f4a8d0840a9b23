"""Proposition 4.2's bound: what moves is what a trace sees, and the bounds hold, one inside the other."""

import pytest
import torch

import loopwright as lw
from experiments.inside.stages.bound import KINDS, bounds, moves
from loopwright.analysis.trace.trace import trace
from tests.cases import noisy

ROW, DEPTH = [3, 1, 4, 1, 5, 9, 2], 5


def test_moves_are_those_of_a_trace_and_stay_below_the_bounds() -> None:
    model = noisy("retrofit-llama-1b-tiny", std=0.5, num_attention_heads=4, num_key_value_heads=2)
    found = moves(model, ROW, DEPTH)
    traced = trace(model, torch.tensor([ROW]), DEPTH, collect=("attention",))
    for values, name in ((found.change, "step_attention"), (found.query_key, "step_bound")):
        torch.testing.assert_close(values.mean(-1), traced.core(name)[0, 1:].float(), rtol=1e-4, atol=1e-5)
    assert found.change.shape == (DEPTH - 1, model.config.core_layers, 4) and found.change.max() > 0.01
    assert (found.change <= found.query_key * (1 + 1e-5)).all()
    assert (found.query_key <= found.rotary * (1 + 1e-5)).all()
    assert (found.printed <= found.rotary * (1 + 1e-5)).all() and (found.printed < 0.9 * found.rotary).any()


def test_the_bound_is_the_formula() -> None:
    model = noisy(
        "retrofit-llama-1b-tiny", num_attention_heads=2, num_key_value_heads=2
    )  # starts from noise, the same in every pass
    seen: list[torch.Tensor] = []
    hook = model.core[0].self_attn.register_forward_pre_hook(lambda _, given: seen.append(given[0][0].detach()))
    model(torch.tensor([ROW]), depth=3, use_cache=False)
    hook.remove()
    weights = [each.weight.detach() for each in (model.core[0].self_attn.q_proj, model.core[0].self_attn.k_proj)]
    width = model.config.head_dim
    q, k = (weight[width:] for weight in weights)  # the second head
    largest = max(x.norm() for x in seen)
    wanted = torch.linalg.matrix_norm(q.T @ k, ord=2) * largest * (seen[2] - seen[1]).norm() / width**0.5
    torch.testing.assert_close(moves(model, ROW, 3).printed[1, 0, 1], wanted, rtol=1e-4, atol=0)


def test_bounds_are_counted() -> None:
    model = noisy("retrofit-llama-1b-tiny")
    found = bounds(model, [ROW, ROW[:4]], DEPTH)
    one, other = (moves(model, row, DEPTH) for row in (ROW, ROW[:4]))
    assert found["kinds"] == list(KINDS) and found["broken"][:2] == [0, 0]
    torch.testing.assert_close(
        torch.tensor(found["means"][0]), (one.change.mean((1, 2)) + other.change.mean((1, 2))) / 2, rtol=1e-3, atol=1e-6
    )
    telling = [(each.query_key < (2 * length) ** 0.5).float().mean((1, 2)) for each, length in ((one, 7), (other, 4))]
    torch.testing.assert_close(torch.tensor(found["telling"][0]), sum(telling) / 2, rtol=1e-2, atol=1e-3)


def test_what_the_proposition_does_not_speak_of_is_refused() -> None:
    with pytest.raises(ValueError, match="dense"):
        bounds(lw.LoopedForCausalLM(lw.LoopedConfig(prelude_layers=1, core_layers=0, hidden_size=8, vocab_size=16)), [ROW], 3)
    with pytest.raises(ValueError, match="norms or biases"):
        bounds(lw.build("huginn-tiny"), [ROW], 3)  # it has biases
