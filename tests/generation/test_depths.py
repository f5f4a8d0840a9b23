"""What each step would have said equals separate passes at each depth."""

from __future__ import annotations

import pytest
import torch

import loopwright as lw
from loopwright.generation.readings import next_token_by_depth
from loopwright.model import room
from tests.cases import noisy

IDS = torch.tensor([[3, 14, 15, 9, 2, 6]])


@pytest.mark.parametrize("name", ["huginn-tiny", "ouro-1.4b-tiny", "asura-tiny", "ouroboros-qwen2.5-3b-tiny"])
def test_each_step_is_a_pass_of_that_depth(name: str) -> None:
    model = noisy(name)
    guesses = next_token_by_depth(model, IDS, 3)
    last = model(IDS, depth=3).logits[0, -1].log_softmax(-1)
    assert [guess.step for guess in guesses] == [1, 2, 3]
    for guess in guesses:
        log_probs = model(IDS, depth=guess.step).logits[0, -1].log_softmax(-1)
        best = log_probs.exp().topk(3)
        assert guess.tokens == tuple(best.indices.tolist())
        assert guess.probabilities == pytest.approx(best.values.tolist(), abs=1e-5)
        assert guess.entropy == pytest.approx(torch.distributions.Categorical(logits=log_probs).entropy().item(), abs=1e-4)
        divergence = torch.nn.functional.kl_div(last, log_probs, log_target=True, reduction="sum").item()
        assert guess.divergence == pytest.approx(divergence, abs=1e-4)
    assert guesses[-1].divergence == 0
    assert guesses[0].divergence > 0


def test_a_dense_model_has_one_guess_and_refuses_a_depth() -> None:
    model = lw.LoopedForCausalLM(lw.LoopedConfig(prelude_layers=2, core_layers=0, depth=1)).eval()
    assert len(next_token_by_depth(model, IDS[0])) == 1
    with pytest.raises(ValueError, match="dense model"):
        next_token_by_depth(model, IDS, 2)


def test_the_seed_of_the_state_counts() -> None:
    model = noisy("huginn-tiny")
    one, same, other = (next_token_by_depth(model, IDS, 1, state_seed=seed)[0] for seed in (1, 1, 2))
    assert one == same
    assert one.probabilities != other.probabilities


def test_no_gradient_and_bad_input() -> None:
    model = noisy("huginn-tiny")
    with pytest.raises(ValueError, match="one row"):
        next_token_by_depth(model, IDS.expand(2, -1))
    with pytest.raises(ValueError, match="top 0"):
        next_token_by_depth(model, IDS, top=0)
    assert len(next_token_by_depth(model, IDS, 1, top=5)[0].tokens) == 5


def test_logits_that_are_not_finite_are_an_error():
    model = noisy("huginn-tiny")
    with torch.no_grad():
        model.lm_head.weight[5] = torch.inf
    with pytest.raises(ValueError, match=r"not finite after 4 of 4 steps, first after step 1"):
        next_token_by_depth(model, torch.tensor([2, 3]))


def test_a_depth_whose_logits_do_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(room, "free_bytes", lambda device: 2**30)
    with pytest.raises(ValueError, match=r"the logits of 1,000,000 steps take [\d,.]+ GiB, and 1\.0 GiB are free on cpu"):
        next_token_by_depth(noisy("huginn-tiny"), torch.tensor([2, 3]), 10**6)
