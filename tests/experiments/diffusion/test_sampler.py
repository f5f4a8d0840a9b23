"""The sampler in the limits where it is exact, and what it counts."""

from __future__ import annotations

import pytest
import torch

import loopwright as lw
from experiments.diffusion.sampler import Forcing, force
from tests.cases import noisy

PROMPT = [5, 6, 7, 8]


def greedy(model: lw.LoopedForCausalLM, depth: int, new: int) -> list[int]:
    made = model.generate(torch.tensor([PROMPT]), depth=depth, max_new_tokens=new, do_sample=False, eos_token_id=None)
    return made[0, len(PROMPT) :].tolist()


@pytest.fixture(scope="module")
def model() -> lw.LoopedForCausalLM:
    return noisy("huginn-tiny").double().eval()


@pytest.mark.parametrize("depth", [1, 3, 4])
@pytest.mark.parametrize("threshold", [0.0, 10.0])
def test_one_position_in_one_round_of_all_steps_is_plain_greedy(model: lw.LoopedForCausalLM, depth: int, threshold: float) -> None:
    how = Forcing(inner=depth, rounds=1, threshold=threshold, noise=0.0, average=0.0, wavefront=1)
    forced = force(model, PROMPT, 9, how)
    assert forced.tokens == greedy(model, depth, 9)
    assert (forced.steps, forced.position_steps) == (8 * depth, 8 * depth)


def test_noise_has_no_part_in_a_first_round(model: lw.LoopedForCausalLM) -> None:
    how = Forcing(inner=3, rounds=1, threshold=0.0, noise=0.9, average=0.9, wavefront=1)
    assert force(model, PROMPT, 6, how).tokens == greedy(model, 3, 6)


@torch.no_grad()
def test_rounds_of_one_position_without_noise_go_on_from_its_state(model: lw.LoopedForCausalLM) -> None:
    """With one token there are no other positions' keys: rounds · inner steps are one pass of so many."""
    forced = force(model, [5], 1, Forcing(inner=2, rounds=3, noise=0.0, average=0.0))
    assert forced.tokens == [int(model(torch.tensor([[5]]), depth=6).logits[0, -1].argmax())] and forced.steps == 0


@pytest.mark.parametrize("wavefront", [2, 5, 128])
@pytest.mark.parametrize(("threshold", "rounds"), [(0.03, 4), (0.0, 3), (5.0, 4)])
def test_every_answer_is_whole_and_no_position_has_more_rounds_than_allowed(
    model: lw.LoopedForCausalLM, wavefront: int, threshold: float, rounds: int
) -> None:
    how = Forcing(inner=2, rounds=rounds, threshold=threshold, wavefront=wavefront)
    forced = force(model, PROMPT, 10, how)
    assert len(forced.tokens) == 10 == len(force(model, PROMPT, 10, how).tokens)
    assert forced.tokens == force(model, PROMPT, 10, how).tokens  # noise is a pure function
    # the left end never waits longer than its rounds, however often tokens to its right change
    assert forced.steps <= 9 * rounds * 2 and forced.position_steps <= forced.steps * wavefront


def test_a_copying_model_is_read_ahead() -> None:
    """A model whose states stand still says the same after one round: nearly every round settles a position."""
    model = noisy("huginn-tiny").double().eval()
    with torch.no_grad():
        for name, parameter in model.core.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter.zero_()
    how = Forcing(inner=1, rounds=4, threshold=0.03, noise=0.0, average=0.0)
    forced = force(model, PROMPT, 12, how)
    assert len(forced.tokens) == 12 and forced.steps < 11 * 4
